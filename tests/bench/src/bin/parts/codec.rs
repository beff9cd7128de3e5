//! Codecs on a pod of 3.8 kB, and selectors.

use std::hint::black_box;
use std::time::Duration;

use apimachinery::clock::{Clock, SystemClock};
use apimachinery::codec::{Limits, json, yaml};
use apimachinery::selector::label::LabelSelector;
use serde_json::{Value, json};

/// Pod of about 3.8 kB of JSON.
fn pod() -> Value {
    let container = |name: &str| {
        json!({
            "name": name,
            "image": format!("registry.example.com/team/{name}:v1.2.3"),
            "imagePullPolicy": "IfNotPresent",
            "command": ["/bin/server", "--listen=:8080", "--config=/etc/server/config.yaml"],
            "env": (0..15).map(|i| json!({"name": format!("SETTING_{i}"), "value": format!("value number {i}")})).collect::<Vec<_>>(),
            "ports": [{"containerPort": 8080, "name": "http", "protocol": "TCP"}, {"containerPort": 9090, "name": "metrics", "protocol": "TCP"}],
            "resources": {"limits": {"cpu": "500m", "memory": "256Mi"}, "requests": {"cpu": "100m", "memory": "128Mi"}},
            "livenessProbe": {"httpGet": {"path": "/healthz", "port": "http", "scheme": "HTTP"}, "initialDelaySeconds": 5, "periodSeconds": 10},
            "volumeMounts": [{"mountPath": "/etc/server", "name": "config", "readOnly": true}],
            "terminationMessagePath": "/dev/termination-log",
        })
    };
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "server-7d9f8b6c5-x2x4z", "generateName": "server-7d9f8b6c5-", "namespace": "production",
            "uid": "3f0c6c2e-6a52-4a56-9d0a-0f3f6c1c9f6e", "resourceVersion": "123456", "creationTimestamp": "2024-05-06T07:08:09Z",
            "labels": {"app.kubernetes.io/name": "server", "app.kubernetes.io/part-of": "shop", "pod-template-hash": "7d9f8b6c5"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "server-7d9f8b6c5", "uid": "5b3f9f3e-91d4-4c53-8a0e-27f1f7a2d6c1", "controller": true, "blockOwnerDeletion": true}],
        },
        "spec": {
            "containers": [container("server"), container("proxy")],
            "volumes": [{"name": "config", "configMap": {"name": "server-config", "defaultMode": 420}}],
            "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst", "nodeName": "node-17",
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}],
        },
        "status": {"phase": "Running", "hostIP": "10.1.2.3", "podIP": "10.244.1.17", "startTime": "2024-05-06T07:08:10Z"},
    })
}

/// Runs `run` for a second and prints the mean time.
fn measure(name: &str, mut run: impl FnMut()) {
    let clock = SystemClock::new();
    let mut rounds = 0_u32;
    while clock.monotonic() < Duration::from_secs(1) {
        run();
        rounds += 1;
    }
    println!("{name}: {:.2} µs", clock.monotonic().as_secs_f64() * 1e6 / f64::from(rounds));
}

pub(crate) fn run() {
    let tree = pod();
    let text = json::encode(&tree);
    println!("pod: {} bytes", text.len());
    measure("json decode", || drop(black_box(json::decode(black_box(&text), Limits::BODY))));
    measure("json decode, library's own tree", || {
        drop(black_box(serde_json::from_slice::<Value>(black_box(&text))));
    });
    measure("json encode", || drop(black_box(json::encode(black_box(&tree)))));
    let block = yaml::encode(&tree);
    measure("yaml decode", || drop(black_box(yaml::decode(black_box(&block), Limits::BODY))));
    measure("yaml encode", || drop(black_box(yaml::encode(black_box(&tree)))));
    let selector = "app.kubernetes.io/name=server,tier in (a,b),!legacy";
    measure("label selector parse", || drop(black_box(LabelSelector::parse(black_box(selector)))));
    if let Ok(selector) = LabelSelector::parse(selector) {
        let label = |key: &str| (key == "app.kubernetes.io/name").then_some("server");
        measure("label selector match", || {
            black_box(selector.matches(label));
        });
    }
}
