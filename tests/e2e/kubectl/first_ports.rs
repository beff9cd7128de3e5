//! `kubectl apply` of the first ports: TCP and UDP with one number stay two ports.

use serde_json::{Value, json};
use tests::harness::ControlPlane;

use super::changes::deployment;
use super::{Kubectl, with_each_release};

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_applies_first_ports_with_one_number_and_two_protocols() {
    with_each_release(first_ports).await;
}

/// A field of an object as JSON.
fn value(kubectl: &Kubectl, object: &str, pointer: &str) -> Value {
    let text = kubectl.ok(&format!("get {object} -n default -o json"), "");
    let object: Value = serde_json::from_str(&text).expect("JSON");
    object.pointer(pointer).cloned().unwrap_or_default()
}

fn first_ports(_: &ControlPlane, kubectl: &Kubectl) {
    let ports = json!([
        {"name": "dns", "containerPort": 53, "protocol": "UDP"},
        {"name": "dns-tcp", "containerPort": 53, "protocol": "TCP"},
    ]);
    let of = |index: usize| format!("/spec/template/spec/containers/{index}/ports");
    let with_ports = json!({"name": "a", "image": "a:1", "ports": ports});

    // First ports of a container that has none, and then of a new container.
    kubectl.ok("apply -f -", &deployment(&json!([{"name": "a", "image": "a:1"}])));
    kubectl.ok("apply -f -", &deployment(&json!([with_ports])));
    assert_eq!(value(kubectl, "deployment/web", &of(0)), ports);
    let second = json!({"name": "b", "image": "b:1", "ports": [
        {"name": "http", "containerPort": 80, "protocol": "TCP"},
        {"name": "quic", "containerPort": 80, "protocol": "UDP"},
    ]});
    kubectl.ok("apply -f -", &deployment(&json!([with_ports, second])));
    assert_eq!(value(kubectl, "deployment/web", &of(0)), ports);
    assert_eq!(value(kubectl, "deployment/web", &of(1)), second["ports"]);

    // First ports of a headless Service without ports.
    let service = |ports: Value| {
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "dns", "namespace": "default"},
            "spec": {"clusterIP": "None", "selector": {"app": "web"}, "ports": ports},
        })
        .to_string()
    };
    kubectl.ok("apply -f -", &service(json!([])));
    let ports = json!([
        {"name": "dns", "port": 53, "protocol": "UDP", "targetPort": 53},
        {"name": "dns-tcp", "port": 53, "protocol": "TCP", "targetPort": 53},
    ]);
    kubectl.ok("apply -f -", &service(ports.clone()));
    assert_eq!(value(kubectl, "service/dns", "/spec/ports"), ports);
}
