//! `kubectl scale` on all kinds with a scale subresource, and `kubectl autoscale`.

use serde_json::{Value, json};
use tests::harness::ControlPlane;

use super::changes::{deployment, field};
use super::{Kubectl, with_each_release};

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_scales() {
    with_each_release(scale).await;
}

fn scale(_: &ControlPlane, kubectl: &Kubectl) {
    kubectl.ok("create -f -", &deployment(&json!([{"name": "a", "image": "a:1"}])));
    let generation = || field(kubectl, ".metadata.generation");
    assert_eq!(generation(), "1");
    assert_eq!(
        kubectl.ok("scale deployment web -n default --replicas=5", ""),
        "deployment.apps/web scaled\n"
    );
    assert_eq!(field(kubectl, ".spec.replicas"), "5");
    assert_eq!(generation(), "2");
    assert!(
        kubectl
            .must_fail("scale deployment web -n default --current-replicas=4 --replicas=6")
            .contains("Expected replicas to be 4")
    );
    let scale: Value =
        serde_json::from_str(&kubectl.ok("get deployment web -n default --subresource=scale -o json", ""))
            .expect("JSON");
    assert_eq!((&scale["kind"], &scale["spec"]["replicas"]), (&json!("Scale"), &json!(5)));
    assert_eq!(scale["status"]["selector"], "app=web");
    for (kind, resource) in [
        ("ReplicaSet", "replicaset.apps"),
        ("StatefulSet", "statefulset.apps"),
        ("ReplicationController", "replicationcontroller"),
    ] {
        let mut object: Value =
            serde_json::from_str(&deployment(&json!([{"name": "a", "image": "a:1"}]))).expect("JSON");
        object["kind"] = json!(kind);
        if kind == "ReplicationController" {
            object["apiVersion"] = json!("v1");
            object["spec"]["selector"] = json!({"app": "web"});
        }
        kubectl.ok("create -f -", &object.to_string());
        assert_eq!(
            kubectl.ok(&format!("scale {resource}/web -n default --replicas=3"), ""),
            format!("{resource}/web scaled\n")
        );
        let replicas =
            kubectl.ok(&format!("get {resource}/web -n default -o jsonpath={{.spec.replicas}}"), "");
        assert_eq!(replicas, "3", "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_autoscales() {
    with_each_release(autoscale).await;
}

fn autoscale(_: &ControlPlane, kubectl: &Kubectl) {
    kubectl.ok("create -f -", &deployment(&json!([{"name": "a", "image": "a:1"}])));
    kubectl.ok("autoscale deployment web -n default --min=2 --max=3 --cpu-percent=50", "");
    // Old releases write autoscaling/v1; every release reads v2.
    for (version, target) in [
        ("v1", "/spec/targetCPUUtilizationPercentage"),
        ("v2", "/spec/metrics/0/resource/target/averageUtilization"),
    ] {
        let line = format!("get horizontalpodautoscaler.{version}.autoscaling web -n default -o json");
        let live: Value = serde_json::from_str(&kubectl.ok(&line, "")).expect("JSON");
        assert_eq!(live["apiVersion"], format!("autoscaling/{version}"));
        assert_eq!(live.pointer(target), Some(&json!(50)), "{live:#}");
        assert_eq!(live["spec"]["scaleTargetRef"]["name"], "web");
    }
    let table = kubectl.ok("get hpa web -n default", "");
    assert!(table.contains("Deployment/web") && table.contains("/50%"), "{table}");
}
