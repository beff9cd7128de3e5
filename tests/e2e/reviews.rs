//! Access reviews end to end: permissions, discovery, and the audit log of decisions (requirements A-REV, A-AZD-43 to 48).
//!
//! `authd/src/review` tests the results of reviews.

use serde_json::{Value, json};
use tests::harness::{AuditLog, Client, ControlPlane, Options};

struct ReviewFixture {
    plane: ControlPlane,
    admin: Client,
    reviews: String,
}

impl ReviewFixture {
    /// Starts a server with permissions for alice in the namespace `a` only.
    ///
    /// She may get deployments, pod logs and the ConfigMap `x`.
    async fn start(options: Options) -> ReviewFixture {
        let plane = ControlPlane::start(options).await;
        let fixture =
            ReviewFixture { admin: plane.admin(), reviews: plane.api("authorization", "v1"), plane };
        for namespace in ["a", "b"] {
            fixture
                .admin
                .post("/api/v1/namespaces", &json!({"metadata": {"name": namespace}}))
                .await
                .expect(201);
        }
        let group = fixture.plane.names().group("rbac.authorization");
        let rbac = format!("{}/namespaces/a", fixture.plane.api("rbac.authorization", "v1"));
        let rules = json!([
            {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get"]},
            {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["x"], "verbs": ["get"]},
            {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
        ]);
        fixture
            .admin
            .post(&format!("{rbac}/roles"), &json!({"metadata": {"name": "r"}, "rules": rules}))
            .await
            .expect(201);
        let binding = json!({"metadata": {"name": "b"},
            "subjects": [{"kind": "User", "name": "alice"}, {"kind": "ServiceAccount", "namespace": "a", "name": "x"}],
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "r"}});
        fixture.admin.post(&format!("{rbac}/rolebindings"), &binding).await.expect(201);
        fixture
    }

    fn path(&self, review: &str) -> String {
        format!("{}/{review}", self.reviews)
    }

    /// Creates a review and returns its status.
    async fn review(&self, client: &Client, review: &str, spec: Value) -> Value {
        let object = json!({"apiVersion": self.reviews.trim_start_matches("/apis/"), "spec": spec});
        let answer = client.post(&self.path(review), &object).await.expect(201);
        assert_eq!(answer["spec"], spec, "the response contains the spec");
        answer["status"].clone()
    }
}

const SELF: &str = "selfsubjectaccessreviews";
const ANY: &str = "subjectaccessreviews";

/// The attributes of a `get` of Deployments in namespace `a`.
fn deployment_attributes() -> Value {
    json!({"group": "apps", "resource": "deployments", "namespace": "a", "verb": "get"})
}

#[tokio::test(flavor = "multi_thread")]
async fn access_review_of_other_user_requires_permission() {
    let fixture = ReviewFixture::start(Options::kubernetes()).await;
    let attributes = deployment_attributes();
    for (who, allowed) in [
        (json!({"user": "alice"}), true),
        (json!({"user": "bob"}), false),
        (json!({"user": "system:serviceaccount:a:x"}), true),
        (json!({"user": "system:serviceaccount:b:x"}), false),
        (json!({"user": "bob", "groups": ["system:masters"]}), true),
        (json!({"groups": ["system:masters"]}), true),
        (json!({"user": "bob", "uid": "alice", "extra": {"user": ["alice"]}}), false),
    ] {
        let mut spec = who.clone();
        spec["resourceAttributes"] = attributes.clone();
        assert_eq!(fixture.review(&fixture.admin, ANY, spec.clone()).await["allowed"], allowed, "{who}");
        let local = "namespaces/a/localsubjectaccessreviews";
        let object = json!({"metadata": {"namespace": "a"}, "spec": spec});
        let answer = fixture.admin.post(&fixture.path(local), &object).await.expect(201);
        assert_eq!(
            (&answer["status"]["allowed"], &answer["metadata"]["namespace"]),
            (&json!(allowed), &json!("a"))
        );
        fixture.plane.user("alice").post(&fixture.path(ANY), &json!({"spec": spec})).await.expect(403);
    }
    // Self reviews with impersonation are about the impersonated user.
    for (user, allowed) in [("alice", true), ("system:serviceaccount:a:x", true), ("bob", false)] {
        let headers = [("Impersonate-User", user), ("Content-Type", "application/json")];
        let body = json!({"spec": {"resourceAttributes": attributes}}).to_string();
        let answer = fixture.admin.request("POST", &fixture.path(SELF), &headers, body.as_bytes()).await;
        assert_eq!(answer.expect(201)["status"]["allowed"], allowed, "{user}");
    }
    // Reviews of paths; a binding to a missing role is reported in the status.
    let spec = |path: &str| json!({"user": "carol", "groups": ["system:authenticated"], "nonResourceAttributes": {"path": path, "verb": "get"}});
    assert_eq!(fixture.review(&fixture.admin, ANY, spec("/version")).await["allowed"], true);
    assert_eq!(fixture.review(&fixture.admin, ANY, spec("/metrics")).await["allowed"], false);
    fixture.plane.bind("a", "dangling", "Role/nosuch", "User/carol").await;
    let status =
        fixture.review(&fixture.admin, ANY, json!({"user": "carol", "resourceAttributes": attributes})).await;
    let evaluation = format!("{} {}", status["reason"], status["evaluationError"]);
    assert!(evaluation.contains("nosuch") && evaluation.contains("not found"), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn reviews_are_create_only_validated_and_not_stored() {
    let fixture = ReviewFixture::start(Options::kubernetes()).await;
    let listed = fixture.admin.get(&fixture.reviews).await.expect(200);
    let mut found: Vec<(&str, Value)> = Vec::new();
    for resource in listed["resources"].as_array().expect("resources") {
        found.push((resource["name"].as_str().expect("a name"), resource["verbs"].clone()));
    }
    found.sort_by_key(|(name, _)| *name);
    let names: Vec<&str> = found.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["localsubjectaccessreviews", SELF, "selfsubjectrulesreviews", ANY]);
    assert!(found.iter().all(|(_, verbs)| *verbs == json!(["create"])), "{found:?}");
    let revision =
        |list: Value| -> u64 { list["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap() };
    let before = revision(fixture.admin.get("/api/v1/namespaces").await.expect(200));
    for review in [SELF, ANY, "selfsubjectrulesreviews", "namespaces/a/localsubjectaccessreviews"] {
        for method in ["GET", "DELETE", "PUT"] {
            let answer = fixture.admin.request(method, &fixture.path(review), &[], b"{}").await;
            assert_eq!(answer.status, 405, "{method} {review}");
        }
    }
    let dry = format!("{}?dryRun=All", fixture.path(SELF));
    let review_of = json!({
        "metadata": {"creationTimestamp": null},
        "spec": {"resourceAttributes": deployment_attributes()},
    });
    assert_eq!(
        fixture.plane.user("alice").post(&dry, &review_of).await.expect(201)["status"]["allowed"],
        true
    );
    for (metadata, code) in [
        (json!({"name": "x"}), 422),
        (json!({"labels": {"a": "b"}}), 422),
        (json!({"managedFields": []}), 201),
    ] {
        let review_of =
            json!({"metadata": metadata, "spec": {"resourceAttributes": deployment_attributes()}});
        let response = fixture.plane.user("alice").post(&dry, &review_of).await;
        assert_eq!(response.status, code, "{metadata}: {}", response.text());
        let rules_review = json!({"metadata": metadata, "spec": {"namespace": "a"}});
        let rules = format!("{}?dryRun=All", fixture.path("selfsubjectrulesreviews"));
        let rules = fixture.plane.user("alice").post(&rules, &rules_review).await.expect(201);
        assert!(rules["status"]["resourceRules"].is_array(), "{metadata}: {rules}");
    }
    for _ in 0..50 {
        let review_of = json!({"spec": {"resourceAttributes": deployment_attributes()}});
        fixture.plane.user("alice").post(&fixture.path(SELF), &review_of).await.expect(201);
    }
    // Controllers may still write a few objects after the start.
    let after = revision(fixture.admin.get("/api/v1/namespaces").await.expect(200));
    assert!(after - before < 50, "reviews must not be stored: revision {before} to {after}");

    let path = json!({"path": "/x", "verb": "get"});
    for (review, spec) in [
        (SELF, json!({})),
        (SELF, json!({"resourceAttributes": deployment_attributes(), "nonResourceAttributes": path})),
        (ANY, json!({"resourceAttributes": deployment_attributes()})),
        (ANY, json!({"user": "alice"})),
        (
            "namespaces/b/localsubjectaccessreviews",
            json!({"user": "alice", "resourceAttributes": deployment_attributes()}),
        ),
        ("namespaces/a/localsubjectaccessreviews", json!({"user": "alice", "nonResourceAttributes": path})),
    ] {
        let namespace =
            if review.contains('/') { json!({"namespace": review.split('/').nth(1)}) } else { json!({}) };
        let answer =
            fixture.admin.post(&fixture.path(review), &json!({"metadata": namespace, "spec": spec})).await;
        assert_eq!(answer.status, 422, "{review} {spec}: {}", answer.text());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn system_masters_need_no_role_and_decisions_are_audited() {
    let audit = AuditLog::new();
    let fixture = ReviewFixture::start(Options::kubernetes().flag(&audit.flag())).await;
    let bindings = format!("{}/clusterrolebindings", fixture.plane.api("rbac.authorization", "v1"));
    let master = fixture.plane.certificate("root", &["system:masters"]);
    let granted = fixture.plane.certificate("op", &["ops"]);
    let secrets = "/api/v1/namespaces/a/secrets";
    // Permissions of a group bound to cluster-admin can be revoked; those of system:masters cannot.
    fixture.plane.bind("", "ops", "ClusterRole/cluster-admin", "Group/ops").await;
    granted.get(secrets).await.expect(200);
    for name in ["cluster-admin", "ops"] {
        fixture.admin.delete(&format!("{bindings}/{name}")).await.expect(200);
    }
    granted.get(secrets).await.expect(403);
    master.get(secrets).await.expect(200);
    let refused = fixture.plane.user("carol").get("/api/v1/namespaces/a/pods").await.expect(403);
    let message = "pods is forbidden: User \"carol\" cannot list resource \"pods\" in API group \"\" in the namespace \"a\"";
    assert!(refused["message"].as_str().is_some_and(|text| text.starts_with(message)), "{refused}");
    fixture.plane.user("alice").get("/api/v1/namespaces/a/configmaps/x").await.expect(404);
    let group = fixture.plane.names().group("authorization");
    let decided = |user: &str, decision: &str| {
        audit
            .events()
            .iter()
            .filter(|event| {
                event["user"]["username"] == user
                    && event["annotations"][format!("{group}/decision")] == decision
            })
            .filter_map(|event| event["annotations"][format!("{group}/reason")].as_str().map(str::to_owned))
            .collect::<Vec<String>>()
    };
    tests::harness::eventually("the audit log has both decisions", || async {
        let (forbidden, allowed) = (decided("carol", "forbid"), decided("alice", "allow"));
        (!forbidden.is_empty() && allowed.iter().any(|reason| reason.contains("RoleBinding \"b/a\"")))
            .then_some(())
    })
    .await;
}
