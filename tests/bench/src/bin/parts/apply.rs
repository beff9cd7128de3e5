//! Field ownership on a Deployment of about 4 kB: a no-op apply, and the overhead of other writes.

use std::time::Instant;

use apimachinery::object::Object;
use apply::server_side::Apply;
use apply::set::Set;
use apply::update::{ManagedWrite, OneVersion};
use jiff::Timestamp;
use schema::Schema;
use serde_json::{Value, json};

const ROUNDS: u32 = 5_000;

pub(crate) fn run() {
    let schema = Schema::of("apps/v1.Deployment").unwrap();
    let merge = schema.merge();
    let versions = OneVersion { api_version: "apps/v1".to_owned(), merge: merge.clone() };
    let (ignored, empty) = (Set::default(), schema.empty());
    let patch = deployment();
    let run = |live: &Object, second: i64| {
        let write = ManagedWrite {
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
    assert_eq!(run(&live, 2).object, live);
    measure(&format!("apply, nothing changes ({bytes} bytes with owners)"), || {
        assert!(!run(&live, 2).changed)
    });

    let update = |old: Option<&Object>, mut new: Object| {
        let write = ManagedWrite {
            manager: "two",
            api_version: "apps/v1",
            subresource: "",
            now: Some(Timestamp::UNIX_EPOCH),
            merge: &merge,
            versions: &versions,
            ignored: &ignored,
            empty: &empty,
            reset_then_track: false,
        };
        write.update(old, &mut new).unwrap();
        new
    };
    let stored = update(None, patch.clone());
    let mut changed = stored.clone();
    changed.meta_mut().insert("labels".to_owned(), json!({"app": "e", "tier": "web"}));
    measure("a copy of the object, which is part of each of the next", || drop(patch.clone()));
    measure("create", || drop(update(None, patch.clone())));
    measure("update, nothing changes", || drop(update(Some(&stored), stored.clone())));
    measure("update, a label changes", || drop(update(Some(&stored), changed.clone())));
}

fn measure(what: &str, run: impl Fn()) {
    let start = Instant::now();
    for _ in 0..ROUNDS {
        run();
    }
    println!("{:>8.1} µs  {what}", start.elapsed().as_secs_f64() * 1e6 / f64::from(ROUNDS));
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
