//! Authorization verbs and scopes, and access reviews of them (requirements D-NAME-11 to -17).

use serde_json::{Value, json};
use tests::harness::{Client, ControlPlane, Options};

const MAPS: &str = "/api/v1/namespaces/a/configmaps";

/// Replaces the rules of alice in the namespace `a`.
async fn grant(plane: &ControlPlane, rules: Value) {
    let (admin, base) = (plane.admin(), format!("{}/namespaces/a", plane.api("rbac.authorization", "v1")));
    let role = json!({"metadata": {"name": "r"}, "rules": rules});
    let answer = admin.put(&format!("{base}/roles/r"), &role).await;
    assert!(matches!(answer.status, 200 | 201), "{}", answer.text());
}

async fn start() -> ControlPlane {
    let plane = ControlPlane::start(Options::default()).await;
    let admin = plane.admin();
    for name in ["a", "b"] {
        admin.post("/api/v1/namespaces", &json!({"metadata": {"name": name}})).await.expect(201);
    }
    let group = plane.names().group("rbac.authorization");
    let binding = json!({"metadata": {"name": "r"}, "subjects": [{"kind": "User", "name": "alice"}],
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "r"}});
    grant(&plane, json!([])).await;
    let base = format!("{}/namespaces/a", plane.api("rbac.authorization", "v1"));
    admin.post(&format!("{base}/rolebindings"), &binding).await.expect(201);
    plane
}

/// Sends a request with the given verb and returns its status.
///
/// Tests create the object before each call, because some verbs delete it.
async fn attempt(client: &Client, verb: &str) -> u16 {
    let item = format!("{MAPS}/x");
    let body = json!({"metadata": {"name": "x"}, "data": {"by": verb}});
    let answer = match verb {
        "get" => client.get(&item).await,
        "list" => client.get(MAPS).await,
        "watch" => client.get(&format!("{MAPS}?watch=1&timeoutSeconds=1")).await,
        "create" => client.post(MAPS, &json!({"metadata": {"generateName": "new-"}})).await,
        "update" => client.put(&item, &body).await,
        "patch" => client.patch(&item, "application/merge-patch+json", &body).await,
        "delete" => client.delete(&item).await,
        _ => client.delete(MAPS).await,
    };
    answer.status
}

/// A rule allows exactly the verb that it names, and only in its namespace.
#[tokio::test(flavor = "multi_thread")]
async fn rule_allows_only_its_verb_in_its_namespace() {
    let plane = start().await;
    let (admin, alice) = (plane.admin(), plane.user("alice"));
    let verbs = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];
    for allowed in verbs {
        grant(&plane, json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": [allowed]}])).await;
        for verb in verbs {
            admin.post(MAPS, &json!({"metadata": {"name": "x"}})).await;
            let status = attempt(&alice, verb).await;
            let want = match verb {
                _ if verb != allowed => 403,
                "create" => 201,
                _ => 200,
            };
            assert_eq!(status, want, "{verb} with a rule for {allowed}");
        }
    }
    grant(&plane, json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}])).await;
    admin.post(MAPS, &json!({"metadata": {"name": "x"}})).await;
    assert_eq!(alice.get(MAPS).await.status, 200);
    assert_eq!(alice.get("/api/v1/namespaces/b/configmaps").await.status, 403);
    assert_eq!(alice.get("/api/v1/configmaps").await.status, 403, "a list over all namespaces");
    assert_eq!(
        alice.get(&format!("{MAPS}/x?watch=1&timeoutSeconds=1")).await.status,
        403,
        "a watch of one object"
    );
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

/// Access reviews and token reviews are served in version v1 only.
#[tokio::test(flavor = "multi_thread")]
async fn reviews_are_served_in_v1_only() {
    let plane = start().await;
    let admin = plane.admin();
    let resource = json!({"verb": "get", "resource": "configmaps", "namespace": "a"});
    let access = json!({"spec": {"resourceAttributes": resource}});
    let of_group =
        json!({"spec": {"resourceAttributes": resource, "user": "nobody", "groups": ["system:masters"]}});
    let local =
        json!({"metadata": {"namespace": "a"}, "spec": {"resourceAttributes": resource, "user": "nobody"}});
    for (stem, path, body) in [
        ("authorization", "selfsubjectaccessreviews", &access),
        ("authorization", "subjectaccessreviews", &of_group),
        ("authorization", "selfsubjectrulesreviews", &json!({"spec": {"namespace": "a"}})),
        ("authorization", "namespaces/a/localsubjectaccessreviews", &local),
        ("authentication", "tokenreviews", &json!({"spec": {"token": "none"}})),
    ] {
        let answer = admin.post(&format!("{}/{path}", plane.api(stem, "v1")), body).await;
        assert_eq!(answer.status, 201, "{path}: {}", answer.text());
        assert_eq!(
            admin.post(&format!("{}/{path}", plane.api(stem, "v1beta1")), body).await.status,
            404,
            "{path}"
        );
        if path == "subjectaccessreviews" {
            assert_eq!(answer.json()["status"]["allowed"], true, "the review uses the groups in its spec");
        }
    }
}
