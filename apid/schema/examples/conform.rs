//! Benchmark of a pod: conforming compared with parsing, and Protobuf encoding compared with JSON.
//!
//! `cargo run --release -p schema --example conform`.

use apimachinery::clock::{Clock, SystemClock};
use apimachinery::object::Object;
use schema::Schema;
use serde_json::json;

/// Number of timed batches. The fastest batch is reported, to reduce noise from other processes.
const BATCHES: u32 = 200;
const ROUNDS: u32 = 50;

#[expect(clippy::expect_used, reason = "an example with a constant body")]
fn main() {
    let body = body();
    let parse = || Object(serde_json::from_str(&body).expect("JSON"));
    let clock = SystemClock::new();
    let start = clock.monotonic();
    let schema = Schema::of("core/v1.Pod").expect("a type of the table");
    let found = clock.monotonic() - start;
    schema.conform(&mut parse()).expect("a pod");
    println!("first use: index and type {found:?}, first pod {:?}", clock.monotonic() - start - found);
    let time = |work: &mut dyn FnMut()| {
        let batch = |_| {
            let start = clock.monotonic();
            (0..ROUNDS).for_each(|_| work());
            clock.monotonic() - start
        };
        (0..BATCHES).map(batch).min().unwrap_or_default() / ROUNDS
    };
    let parsed = time(&mut || drop(std::hint::black_box(parse())));
    let both = time(&mut || {
        let mut pod = parse();
        schema.conform(&mut pod).expect("a pod");
        std::hint::black_box(pod);
    });
    println!("{} bytes: parse {parsed:?}, conform {:?} more", body.len(), both.saturating_sub(parsed));
    let mut pod = parse();
    schema.conform(&mut pod).expect("a pod");
    let mut out = Vec::new();
    let taken = time(&mut || {
        out.clear();
        serde_json::to_writer(&mut out, &pod.0).expect("a tree");
    });
    println!("as JSON {} bytes in {taken:?}", out.len());
    let taken = time(&mut || {
        out.clear();
        schema.write_protobuf(&pod, &mut out);
    });
    println!("as Protobuf {} bytes in {taken:?}", out.len());
}

/// A pod of about 4 kB.
fn body() -> String {
    let container = |name: &str| {
        json!({
            "name": name,
            "image": "registry.example.com/team/service@sha256:0000000000000000000000000000000000000000000000000000000000000000",
            "args": ["--listen=:8080", "--verbose", "--data=/var/lib/service"],
            "env": [
                {"name": "POD_NAME", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}},
                {"name": "LEVEL", "value": "info"},
                {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "token", "key": "value"}}},
            ],
            "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
            "resources": {"requests": {"cpu": "250m", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "128Mi"}},
            "volumeMounts": [
                {"name": "data", "mountPath": "/var/lib/service"},
                {"name": "config", "mountPath": "/etc/service", "readOnly": true},
            ],
            "livenessProbe": {"httpGet": {"path": "/livez", "port": "http", "scheme": "HTTP"}, "periodSeconds": 10},
            "readinessProbe": {"httpGet": {"path": "/readyz", "port": 8080, "scheme": "HTTP"}, "periodSeconds": 5},
            "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            "terminationMessagePath": "/dev/termination-log",
            "imagePullPolicy": "IfNotPresent",
        })
    };
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "service-7d4b9c6f5d-abcde",
            "namespace": "team",
            "labels": {"app": "service", "pod-template-hash": "7d4b9c6f5d"},
            "annotations": {"example.com/revision": "17"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "service-7d4b9c6f5d",
                "uid": "11111111-2222-3333-4444-555555555555", "controller": true, "blockOwnerDeletion": true}],
        },
        "spec": {
            "containers": [container("service"), container("proxy"), container("agent")],
            "volumes": [
                {"name": "data", "emptyDir": {"sizeLimit": "1Gi"}},
                {"name": "config", "configMap": {"name": "service", "defaultMode": 420}},
            ],
            "restartPolicy": "Always",
            "nodeName": "node-1",
            "serviceAccountName": "service",
            "tolerations": [{"key": "example.com/dedicated", "operator": "Exists", "effect": "NoSchedule"}],
        },
        "status": {
            "phase": "Running",
            "conditions": [
                {"type": "Ready", "status": "True", "lastTransitionTime": "2024-01-02T03:04:05Z"},
                {"type": "Initialized", "status": "True", "lastTransitionTime": "2024-01-02T03:04:05Z"},
            ],
            "podIP": "10.0.0.1",
            "startTime": "2024-01-02T03:04:05Z",
        },
    })
    .to_string()
}
