//! Restart with many role bindings: no request is denied because authd has not loaded the policy yet.
//!
//! The test checks INVARIANT (fresh policy) at a restart. `MANY_BINDINGS` sets the number of bindings
//! (default 2,000).

use std::time::Duration;

use serde_json::json;
use tests::harness::{ControlPlane, Options, eventually};

/// Number of concurrent write connections.
const WRITERS: usize = 8;

#[tokio::test(flavor = "multi_thread")]
async fn restarted_authd_decides_only_with_complete_policy() {
    let many: usize = std::env::var("MANY_BINDINGS").ok().and_then(|text| text.parse().ok()).unwrap_or(2000);
    let mut plane = ControlPlane::start(Options::kubernetes()).await;
    let admin = plane.admin();
    let rbac = plane.api("rbac.authorization", "v1");
    let group = plane.names().group("rbac.authorization");
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]);
    let role = json!({"metadata": {"name": "look"}, "rules": rules});
    admin.post(&format!("{rbac}/clusterroles"), &role).await.expect(201);
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let (client, path, group) =
            (admin.clone(), format!("{rbac}/namespaces/default/rolebindings"), group.clone());
        writers.spawn(async move {
            let mut session = client.connect().await.expect("a connection");
            for number in (writer..many).step_by(WRITERS) {
                // Only the last binding grants alice access.
                let user = if number + 1 == many { "alice".to_owned() } else { format!("user-{number}") };
                let binding = json!({"metadata": {"name": format!("b{number}")},
                    "subjects": [{"kind": "User", "name": user}],
                    "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "look"}});
                let response = session.request("POST", &path, binding.to_string().as_bytes()).await;
                response.expect("a response").expect(201);
            }
        });
    }
    writers.join_all().await;
    let maps = "/api/v1/namespaces/default/configmaps";
    for restart in 0..3 {
        let before = plane.authd_pids();
        plane.kill_authd();
        let (alice, bob) = (plane.user("alice"), plane.user("bob"));
        let mut decided = 0;
        // Without authd, apid responds with 503; every decision after the restart uses the complete policy.
        while decided < 20 || plane.authd_pids() == before || plane.authd_pids().is_empty() {
            for (client, want) in [(&alice, 200), (&bob, 403)] {
                let response = client.get(maps).await;
                assert!([want, 503].contains(&response.status), "restart {restart}: {}", response.text());
                decided += usize::from(response.status == want);
            }
        }
        eventually("/readyz reports readiness", || async {
            (plane.admin().get("/readyz").await.status == 200).then_some(())
        })
        .await;
    }
    plane.kill();
    let start = std::time::Instant::now();
    plane.launch().await;
    plane.user("alice").get(maps).await.expect(200);
    println!("{many} bindings: ready {:?} after a kill of both processes", start.elapsed());
    tokio::time::timeout(Duration::from_secs(60), plane.stop()).await.expect("the server stops");
}
