//! End-to-end test of INVARIANT (fresh watches).
//!
//! A watch delivers no event of a write after the revocation of its user's right, and ends. The number of
//! grants and revocations is a fiftieth of `ROUNDS` (default 2,000).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use tests::harness::{ControlPlane, DEADLINE, Options};

use super::fresh_policy::env_number;

/// Revokes watches under continuous writes: all events precede the revocation, and the stream ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revoked_watch_delivers_no_later_writes_and_ends() {
    let plane = ControlPlane::start(Options::default()).await;
    let admin = plane.admin();
    let rbac = format!("{}/namespaces/default", plane.api("rbac.authorization", "v1"));
    let group = plane.names().group("rbac.authorization");
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["watch"]}]);
    admin
        .post(&format!("{rbac}/roles"), &json!({"metadata": {"name": "r"}, "rules": rules}))
        .await
        .expect(201);
    let binding = |subjects: Value| {
        let role = json!({"apiGroup": group, "kind": "Role", "name": "r"});
        json!({"metadata": {"name": "b"}, "subjects": subjects, "roleRef": role})
    };
    let alice = json!([{"kind": "User", "apiGroup": group, "name": "alice"}]);
    admin.post(&format!("{rbac}/rolebindings"), &binding(json!([]))).await.expect(201);
    let maps = "/api/v1/namespaces/default/configmaps";
    admin.post(maps, &json!({"metadata": {"name": "x"}})).await.expect(201);

    let stop = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn({
        let (admin, stop) = (plane.admin(), Arc::clone(&stop));
        async move {
            let mut session = admin.connect().await.expect("a connection");
            let mut count = 0_u64;
            while !stop.load(Ordering::SeqCst) {
                count += 1;
                let body = json!({"metadata": {"name": "x"}, "data": {"n": count.to_string()}}).to_string();
                let response = session.request("PUT", &format!("{maps}/x"), body.as_bytes()).await;
                assert_eq!(response.expect("a response").status, 200);
            }
            count
        }
    });
    let mut delivered = 0;
    for round in 0..env_number("ROUNDS", 2000) / 50 {
        admin.put(&format!("{rbac}/rolebindings/b"), &binding(alice.clone())).await.expect(200);
        let mut watch = plane.user("alice").watch(&format!("{maps}?watch=1")).await;
        for _ in 0..round % 7 {
            watch.next().await.expect("the watch continues while it is allowed");
        }
        let written = admin.put(&format!("{rbac}/rolebindings/b"), &binding(json!([]))).await.expect(200);
        let revoked: u64 = version(&written);
        let rest = async {
            let mut last = 0;
            while let Some(event) = watch.next().await {
                if event["type"] != "ERROR" {
                    last = version(&event["object"]);
                    assert!(
                        last < revoked,
                        "the watch delivered revision {last} after the revocation at revision {revoked}"
                    );
                    delivered += 1;
                }
            }
            last
        };
        tokio::time::timeout(DEADLINE, rest).await.expect("the stream ends");
    }
    stop.store(true, Ordering::SeqCst);
    let written = writer.await.expect("the writer succeeds");
    println!(
        "{written} writes, {delivered} events delivered after a revocation request, none of them written later"
    );
}

/// Watches without events end too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_watch_ends_after_revocation() {
    let plane = ControlPlane::start(Options::default()).await;
    let admin = plane.admin();
    let rbac = plane.api("rbac.authorization", "v1");
    let group = plane.names().group("rbac.authorization");
    let binding = json!({
        "metadata": {"name": "alice-views"},
        "subjects": [{"kind": "User", "apiGroup": group, "name": "alice"}],
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "view"},
    });
    let bindings = format!("{rbac}/clusterrolebindings");
    admin.post(&bindings, &binding).await.expect(201);
    let mut watches = Vec::new();
    for _ in 0..20 {
        watches.push(plane.user("alice").watch("/api/v1/namespaces/default/configmaps?watch=1").await);
    }
    let other = plane.admin().watch("/api/v1/namespaces/default/configmaps?watch=1").await;
    let begin = std::time::Instant::now();
    admin.delete(&format!("{bindings}/alice-views")).await.expect(200);
    for watch in &mut watches {
        let ended = async { while watch.next().await.is_some() {} };
        tokio::time::timeout(DEADLINE, ended).await.expect("the stream ends");
    }
    println!("20 idle watches ended {:?} after the revocation request", begin.elapsed());
    drop(other);
}

fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().and_then(|v| v.parse().ok()).expect("a resourceVersion")
}
