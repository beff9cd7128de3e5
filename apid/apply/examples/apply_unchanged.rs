//! What it costs to apply an unchanged Deployment of about 4 kB: `cargo run --release -p apply --example apply_unchanged`.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::print_stdout, reason = "a measurement")]

use std::time::Instant;

use apimachinery::object::Object;
use apply::server_side::Apply;
use apply::set::Set;
use apply::update::{OneVersion, Write};
use jiff::Timestamp;
use schema::Schema;
use serde_json::{Value, json};

const ROUNDS: u32 = 5_000;

fn main() {
    let schema = Schema::of("apps/v1.Deployment").unwrap();
    let merge = schema.merge();
    let versions = OneVersion { api_version: "apps/v1".to_owned(), merge: merge.clone() };
    let (ignored, empty) = (Set::default(), schema.empty());
    let patch = deployment();
    let run = |live: &Object, second: i64| {
        let write = Write {
            manager: "one",
            api_version: "apps/v1",
            subresource: "",
            now: Some(Timestamp::from_second(second).unwrap()),
            merge: &merge,
            versions: &versions,
            ignored: &ignored,
            empty: &empty,
            reset_then_track: false,
        };
        Apply { write, force: false, last_applied: None }.run(live, &patch).unwrap()
    };
    let live = run(&schema.empty(), 1).object;
    let bytes = live.clone().into_value().to_string().len();
    let start = Instant::now();
    for _ in 0..ROUNDS {
        let applied = run(&live, 2);
        assert!(!applied.changed);
    }
    let each = start.elapsed() / ROUNDS;
    assert_eq!(run(&live, 2).object, live);
    println!("{bytes} bytes with owners: {each:?} each");
}

fn deployment() -> Object {
    let container = |name: &str| {
        let env: Vec<Value> =
            (0..8).map(|i| json!({"name": format!("VARIABLE_{i}"), "value": format!("value {i}")})).collect();
        json!({
            "name": name, "image": format!("registry.example/{name}:1"), "imagePullPolicy": "IfNotPresent", "env": env,
            "ports": [{"containerPort": 8080, "name": "http", "protocol": "TCP"},
                      {"containerPort": 9090, "name": "metrics", "protocol": "TCP"}],
            "resources": {"limits": {"cpu": "500m", "memory": "128Mi"}, "requests": {"cpu": "250m", "memory": "64Mi"}},
            "volumeMounts": [{"name": "config", "mountPath": "/etc/config"}],
            "livenessProbe": {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 10},
        })
    };
    Object::from_value(json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "d", "namespace": "n", "labels": {"app": "d", "tier": "web"}},
        "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "d"}},
            "template": {"metadata": {"labels": {"app": "d"}},
                "spec": {"containers": [container("app"), container("side")],
                         "volumes": [{"name": "config", "configMap": {"name": "c"}}]}}},
    }))
    .unwrap()
}
