//! Requests with a namespace or verb that the path does not show (requirements D-NAME-12 and -16).

use serde_json::{Value, json};
use tests::harness::{ControlPlane, Options};

/// Replaces the rules of alice in the namespace `a`.
async fn grant(plane: &ControlPlane, rules: Value) {
    let (admin, base) = (plane.admin(), format!("{}/namespaces/a", plane.api("rbac.authorization", "v1")));
    let role = json!({"metadata": {"name": "r"}, "rules": rules});
    admin.put(&format!("{base}/roles/r"), &role).await.expect(200);
}

async fn start() -> ControlPlane {
    let plane = ControlPlane::start(Options::default()).await;
    let admin = plane.admin();
    for name in ["a", "b"] {
        admin.post("/api/v1/namespaces", &json!({"metadata": {"name": name}})).await.expect(201);
    }
    plane.grant("a", "r", "User/alice", &json!([])).await;
    plane
}

/// Requests on a Namespace object are authorized in the namespace of that name.
///
/// An update that creates an object needs the `create` verb as well.
#[tokio::test(flavor = "multi_thread")]
async fn namespace_requests_use_their_namespace_and_create_on_update_needs_both_verbs() {
    let plane = start().await;
    let alice = plane.user("alice");
    grant(&plane, json!([{"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get"]}])).await;
    assert_eq!(alice.get("/api/v1/namespaces/a").await.status, 200);
    assert_eq!(alice.get("/api/v1/namespaces/b").await.status, 403);
    assert_eq!(alice.get("/api/v1/namespaces").await.status, 403);

    let coordination = plane.names().group("coordination");
    let lease = format!("{}/namespaces/a/leases/x", plane.api("coordination", "v1"));
    let body = json!({"metadata": {"name": "x"}, "spec": {"holderIdentity": "me"}});
    let rule = |verbs: Value| json!([{"apiGroups": [coordination], "resources": ["leases"], "verbs": verbs}]);
    grant(&plane, rule(json!(["update"]))).await;
    assert_eq!(alice.put(&lease, &body).await.status, 403);
    grant(&plane, rule(json!(["create"]))).await;
    assert_eq!(alice.put(&lease, &body).await.status, 403);
    grant(&plane, rule(json!(["update", "create"]))).await;
    let made = alice.put(&lease, &body).await.expect(201);
    grant(&plane, rule(json!(["update"]))).await;
    assert_eq!(
        alice.put(&lease, &made).await.status,
        200,
        "update of an existing lease needs only the update verb"
    );
}
