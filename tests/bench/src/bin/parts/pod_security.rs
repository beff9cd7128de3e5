//! PodSecurity on pod writes, by the policy of the namespace.

use std::collections::BTreeMap;
use std::sync::Arc;

use apimachinery::names::{Names, Preset};
use apimachinery::object::{Object, Value};
use kinds::Registry;
use serde_json::json;

use crate::fixed_objects::{FixedObjects, time_of_validation};

fn object(value: Value) -> Object {
    Object::from_value(value).unwrap_or_default()
}

/// A pod with three containers, with or without a hardened security context.
fn pod(hardened: bool) -> Object {
    let security_context = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
    let container = |name: &str| {
        json!({
            "name": name, "image": "img.example.com/app:1",
            "ports": [{"containerPort": 8080, "protocol": "TCP"}],
            "volumeMounts": [{"name": "config", "mountPath": "/etc/app"}],
            "securityContext": if hardened { security_context.clone() } else { json!({}) },
        })
    };
    let pod_security_context = json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}});
    let spec = json!({
        "containers": [container("app"), container("side")],
        "initContainers": [container("setup")],
        "volumes": [{"name": "config", "configMap": {"name": "app"}}, {"name": "tmp", "emptyDir": {}}],
        "securityContext": if hardened { pod_security_context } else { json!({}) },
    });
    object(json!({"metadata": {"name": "p", "namespace": "team"}, "spec": spec}))
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn run() {
    let names = Arc::new(Names::new(Preset::Kubernetes, "").expect("names"));
    let registry = Registry::new(&names);
    let pods = registry.find("", "v1", "pods").expect("pods");
    for (level, hardened) in
        [("privileged", false), ("baseline", false), ("restricted", true), ("restricted", false)]
    {
        let namespace = object(json!({
            "metadata": {"name": "team", "labels": {names.label_sub_key("pod-security", "enforce"): level}},
        }));
        let objects = FixedObjects(BTreeMap::from([("Namespace", vec![Arc::new(namespace)])]));
        let chain = objects.into_chain("PodSecurity", &names);
        let (time, is_allowed) = time_of_validation(&chain, pods, &pod(hardened)).await;
        println!("enforce {level}: {time:?} a pod, {}", if is_allowed { "allowed" } else { "rejected" });
    }
}
