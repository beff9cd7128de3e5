//! Access reviews, rules reviews and token reviews end to end (requirements A-REV, A-AZD-43 to 48).

use serde_json::{Value, json};

use crate::harness::{Client, ControlPlane, Options};

struct World {
    plane: ControlPlane,
    admin: Client,
    reviews: String,
}

impl World {
    /// Starts a server with permissions for alice in the namespace `a` only.
    ///
    /// She may get deployments, pod logs and the ConfigMap `x`.
    async fn start(options: Options) -> World {
        let plane = ControlPlane::start(options).await;
        let world = World { admin: plane.admin(), reviews: plane.api("authorization", "v1"), plane };
        for namespace in ["a", "b"] {
            world
                .admin
                .post("/api/v1/namespaces", &json!({"metadata": {"name": namespace}}))
                .await
                .expect(201);
        }
        let group = world.plane.names().group("rbac.authorization");
        let rbac = format!("{}/namespaces/a", world.plane.api("rbac.authorization", "v1"));
        let rules = json!([
            {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get"]},
            {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["x"], "verbs": ["get"]},
            {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
        ]);
        world
            .admin
            .post(&format!("{rbac}/roles"), &json!({"metadata": {"name": "r"}, "rules": rules}))
            .await
            .expect(201);
        let binding = json!({"metadata": {"name": "b"},
            "subjects": [{"kind": "User", "name": "alice"}, {"kind": "ServiceAccount", "namespace": "a", "name": "x"}],
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "r"}});
        world.admin.post(&format!("{rbac}/rolebindings"), &binding).await.expect(201);
        world
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

fn deployments() -> Value {
    json!({"group": "apps", "resource": "deployments", "namespace": "a", "verb": "get"})
}

#[tokio::test(flavor = "multi_thread")]
async fn every_attribute_counts() {
    let world = World::start(Options::kubernetes()).await;
    let alice = world.plane.user("alice");
    let maps = json!({"resource": "configmaps", "namespace": "a", "verb": "get", "name": "x"});
    for (attributes, field, other) in [
        (deployments(), "group", json!("")),
        (deployments(), "verb", json!("delete")),
        (deployments(), "namespace", json!("b")),
        (deployments(), "namespace", json!("")),
        (deployments(), "resource", json!("statefulsets")),
        (deployments(), "subresource", json!("scale")),
        (maps.clone(), "name", json!("y")),
        (maps, "name", json!("")),
    ] {
        for (review, who) in [(SELF, json!({})), (ANY, json!({"user": "alice"}))] {
            let client = if review == SELF { &alice } else { &world.admin };
            let asked = |attributes: &Value| {
                let mut spec = who.clone();
                spec["resourceAttributes"] = attributes.clone();
                spec
            };
            let held = world.review(client, review, asked(&attributes)).await;
            assert_eq!(held["allowed"], true, "{attributes}");
            let reason = held["reason"].as_str().expect("a reason");
            assert!(reason.contains("RoleBinding \"b/a\"") && reason.contains("Role \"r\""), "{reason}");
            let mut changed = attributes.clone();
            changed[field] = other.clone();
            if other == "" {
                changed.as_object_mut().expect("attributes").remove(field);
            }
            let refused = world.review(client, review, asked(&changed)).await;
            assert_eq!((&refused["allowed"], refused.get("denied")), (&json!(false), None), "{changed}");
        }
    }
    // RBAC rules have no API version, so the version is ignored.
    let mut versioned = deployments();
    versioned["version"] = "v7".into();
    assert_eq!(world.review(&alice, SELF, json!({"resourceAttributes": versioned})).await["allowed"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn anybody_may_be_asked_about_by_those_who_may_ask() {
    let world = World::start(Options::kubernetes()).await;
    let attributes = deployments();
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
        assert_eq!(world.review(&world.admin, ANY, spec.clone()).await["allowed"], allowed, "{who}");
        let local = "namespaces/a/localsubjectaccessreviews";
        let object = json!({"metadata": {"namespace": "a"}, "spec": spec});
        let answer = world.admin.post(&world.path(local), &object).await.expect(201);
        assert_eq!(
            (&answer["status"]["allowed"], &answer["metadata"]["namespace"]),
            (&json!(allowed), &json!("a"))
        );
        world.plane.user("alice").post(&world.path(ANY), &json!({"spec": spec})).await.expect(403);
    }
    // Self reviews with impersonation are about the impersonated user.
    for (user, allowed) in [("alice", true), ("system:serviceaccount:a:x", true), ("bob", false)] {
        let headers = [("Impersonate-User", user), ("Content-Type", "application/json")];
        let body = json!({"spec": {"resourceAttributes": attributes}}).to_string();
        let answer = world.admin.request("POST", &world.path(SELF), &headers, body.as_bytes()).await;
        assert_eq!(answer.expect(201)["status"]["allowed"], allowed, "{user}");
    }
    // Reviews of paths; a binding to a missing role is reported in the status.
    let spec = |path: &str| json!({"user": "carol", "groups": ["system:authenticated"], "nonResourceAttributes": {"path": path, "verb": "get"}});
    assert_eq!(world.review(&world.admin, ANY, spec("/version")).await["allowed"], true);
    assert_eq!(world.review(&world.admin, ANY, spec("/metrics")).await["allowed"], false);
    let group = world.plane.names().group("rbac.authorization");
    let dangling = json!({"metadata": {"name": "dangling"}, "subjects": [{"kind": "User", "name": "carol"}],
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "nosuch"}});
    let bindings = format!("{}/namespaces/a/rolebindings", world.plane.api("rbac.authorization", "v1"));
    world.admin.post(&bindings, &dangling).await.expect(201);
    let status =
        world.review(&world.admin, ANY, json!({"user": "carol", "resourceAttributes": attributes})).await;
    let said = format!("{} {}", status["reason"], status["evaluationError"]);
    assert!(said.contains("nosuch") && said.contains("not found"), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn reviews_are_created_checked_and_never_kept() {
    let world = World::start(Options::kubernetes()).await;
    let listed = world.admin.get(&world.reviews).await.expect(200);
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
    let before = revision(world.admin.get("/api/v1/namespaces").await.expect(200));
    for review in [SELF, ANY, "selfsubjectrulesreviews", "namespaces/a/localsubjectaccessreviews"] {
        for method in ["GET", "DELETE", "PUT"] {
            let answer = world.admin.request(method, &world.path(review), &[], b"{}").await;
            assert_eq!(answer.status, 405, "{method} {review}");
        }
    }
    let dry = format!("{}?dryRun=All", world.path(SELF));
    let asked =
        json!({"metadata": {"creationTimestamp": null}, "spec": {"resourceAttributes": deployments()}});
    assert_eq!(world.plane.user("alice").post(&dry, &asked).await.expect(201)["status"]["allowed"], true);
    for _ in 0..50 {
        let asked = json!({"spec": {"resourceAttributes": deployments()}});
        world.plane.user("alice").post(&world.path(SELF), &asked).await.expect(201);
    }
    // Controllers may still write a few objects after the start.
    let after = revision(world.admin.get("/api/v1/namespaces").await.expect(200));
    assert!(after - before < 50, "reviews must not be stored: revision {before} to {after}");

    let path = json!({"path": "/x", "verb": "get"});
    for (review, spec) in [
        (SELF, json!({})),
        (SELF, json!({"resourceAttributes": deployments(), "nonResourceAttributes": path})),
        (ANY, json!({"resourceAttributes": deployments()})),
        (ANY, json!({"user": "alice"})),
        (
            "namespaces/b/localsubjectaccessreviews",
            json!({"user": "alice", "resourceAttributes": deployments()}),
        ),
        ("namespaces/a/localsubjectaccessreviews", json!({"user": "alice", "nonResourceAttributes": path})),
    ] {
        let namespace =
            if review.contains('/') { json!({"namespace": review.split('/').nth(1)}) } else { json!({}) };
        let answer =
            world.admin.post(&world.path(review), &json!({"metadata": namespace, "spec": spec})).await;
        assert_eq!(answer.status, 422, "{review} {spec}: {}", answer.text());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rules_of_a_caller_are_all_they_may_do() {
    let world = World::start(Options::kubernetes()).await;
    let rules = async |user: &str, namespace: &str| {
        let body = json!({"spec": {"namespace": namespace}});
        let path = world.path("selfsubjectrulesreviews");
        world.plane.user(user).post(&path, &body).await.expect(201)["status"].clone()
    };
    let has = |status: &Value, resource: &str| {
        let rules = status["resourceRules"].as_array().cloned().unwrap_or_default();
        rules.iter().any(|rule| rule["resources"] == json!([resource]))
    };
    let (here, there) = (rules("alice", "a").await, rules("alice", "b").await);
    assert_eq!(
        here["incomplete"], false,
        "RBAC and Node list all rules of a user that is not a node: {here}"
    );
    for resource in ["deployments", "configmaps", "pods/log"] {
        assert!(has(&here, resource) && !has(&there, resource), "{resource}: {here} {there}");
    }
    let named = here["resourceRules"]
        .as_array()
        .expect("rules")
        .iter()
        .find(|rule| rule["resources"] == json!(["configmaps"]));
    assert_eq!(named.expect("the rule on maps")["resourceNames"], json!(["x"]));
    let paths = there["nonResourceRules"].as_array().cloned().unwrap_or_default();
    assert!(paths.iter().any(|rule| rule["nonResourceURLs"].to_string().contains("/version")), "{there}");
}

#[tokio::test(flavor = "multi_thread")]
async fn masters_need_no_role_and_every_decision_is_audited() {
    let dir = tempfile::tempdir().expect("a folder for the log");
    let log = dir.path().join("audit.log");
    let options = Options::kubernetes().flag(&format!("--audit-log-path={}", log.display()));
    let world = World::start(options).await;
    let bindings = format!("{}/clusterrolebindings", world.plane.api("rbac.authorization", "v1"));
    let master = world.plane.certificate("root", &["system:masters"]);
    let granted = world.plane.certificate("op", &["ops"]);
    let secrets = "/api/v1/namespaces/a/secrets";
    // Permissions of a group bound to cluster-admin can be revoked; those of system:masters cannot.
    let binding = json!({"metadata": {"name": "ops"}, "subjects": [{"kind": "Group", "name": "ops"}],
        "roleRef": {"apiGroup": world.plane.names().group("rbac.authorization"), "kind": "ClusterRole", "name": "cluster-admin"}});
    world.admin.post(&bindings, &binding).await.expect(201);
    granted.get(secrets).await.expect(200);
    for name in ["cluster-admin", "ops"] {
        world.admin.delete(&format!("{bindings}/{name}")).await.expect(200);
    }
    granted.get(secrets).await.expect(403);
    master.get(secrets).await.expect(200);
    let refused = world.plane.user("carol").get("/api/v1/namespaces/a/pods").await.expect(403);
    let message = "pods is forbidden: User \"carol\" cannot list resource \"pods\" in API group \"\" in the namespace \"a\"";
    assert!(refused["message"].as_str().is_some_and(|text| text.starts_with(message)), "{refused}");
    world.plane.user("alice").get("/api/v1/namespaces/a/configmaps/x").await.expect(404);
    let group = world.plane.names().group("authorization");
    let decided = |user: &str, decision: &str| {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let events: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        events
            .iter()
            .filter(|event| {
                event["user"]["username"] == user
                    && event["annotations"][format!("{group}/decision")] == decision
            })
            .filter_map(|event| event["annotations"][format!("{group}/reason")].as_str().map(str::to_owned))
            .collect::<Vec<String>>()
    };
    crate::harness::eventually("the audit log has both decisions", || async {
        let (forbidden, allowed) = (decided("carol", "forbid"), decided("alice", "allow"));
        (!forbidden.is_empty() && allowed.iter().any(|reason| reason.contains("RoleBinding \"b/a\"")))
            .then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_reviewed_for_those_who_may_ask() {
    let world = World::start(Options::kubernetes()).await;
    let account = "/api/v1/namespaces/a/serviceaccounts";
    world.admin.post(account, &json!({"metadata": {"name": "robot"}})).await.expect(201);
    let issued = world.admin.post(&format!("{account}/robot/token"), &json!({"spec": {}})).await.expect(201);
    let token = issued["status"]["token"].as_str().expect("a token");
    let path = format!("{}/tokenreviews", world.plane.api("authentication", "v1"));
    let review = |token: &str| json!({"spec": {"token": token}});
    let status = world.admin.post(&path, &review(token)).await.expect(201)["status"].clone();
    assert_eq!(status["authenticated"], true, "{status}");
    assert_eq!(status["user"]["username"], "system:serviceaccount:a:robot");
    let status = world.admin.post(&path, &review(&format!("{token}x"))).await.expect(201)["status"].clone();
    assert!(status["authenticated"] != true && status["error"].is_string(), "{status}");
    world.plane.user("alice").post(&path, &review(token)).await.expect(403);
}
