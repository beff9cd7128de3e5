//! Authorization bypasses known from other API servers.
//!
//! The attacks use paths, bodies, scopes, roles and bindings. Other modules test further attacks: stale cached
//! decisions, request bodies and credentials, impersonation (`tokens`), and node authorization (`nodes`).

use serde_json::{Value, json};

use crate::e2e::rbac::{MERGE, RbacFixture, rule};

const MAPS: &str = "/api/v1/namespaces/a/configmaps";

/// The server authorizes the object in the path, and rejects a body that names a different object.
#[tokio::test(flavor = "multi_thread")]
async fn body_with_other_name_or_namespace_than_path_is_rejected() {
    let fixture = RbacFixture::start().await;
    let verbs = &["get", "create", "update", "patch", "delete"][..];
    let rules = json!([
        rule(
            &[""],
            &["configmaps", "pods", "pods/status", "pods/eviction", "serviceaccounts/token"],
            &["x"],
            verbs
        ),
        rule(&[""], &["configmaps"], &[], &["create"]),
        rule(&["apps"], &["deployments", "deployments/scale"], &["x"], verbs),
    ]);
    fixture.grant("a", "jane", rules).await;
    let jane = fixture.client("jane");
    let before = fixture.admin.get(&format!("{MAPS}/y")).await.expect(200);
    let named = |name: &str, namespace: &str| json!({"metadata": {"name": name, "namespace": namespace}, "data": {"k": "v"}});
    let json = "application/json";
    let intent =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "y"}, "data": {"k": "v"}});
    let rename = json!([{"op": "replace", "path": "/metadata/name", "value": "y"}]);
    let moved = json!([{"op": "add", "path": "/metadata/namespace", "value": "b"}]);
    let uid = json!({"metadata": {"uid": before["metadata"]["uid"]}, "data": {"k": "v"}});
    let pods = "/api/v1/namespaces/a/pods";
    let scale = json!({"metadata": {"name": "y", "namespace": "a"}, "spec": {"replicas": 7}});
    let scales = "/apis/apps/v1/namespaces/a/deployments/x/scale";
    let eviction =
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "y", "namespace": "b"}});
    let token = json!({"metadata": {"name": "y", "namespace": "b"}, "spec": {}});
    for (method, path, kind, body) in [
        ("PUT", format!("{MAPS}/x"), json, named("y", "a")),
        ("PUT", format!("{MAPS}/x"), json, named("x", "b")),
        ("PUT", format!("{MAPS}/x"), json, named("y", "b")),
        ("PUT", format!("{MAPS}/x"), json, uid),
        ("POST", MAPS.to_owned(), json, named("y", "b")),
        ("POST", MAPS.to_owned(), json, named("z", "b")),
        ("PATCH", format!("{MAPS}/x"), MERGE, named("y", "a")),
        ("PATCH", format!("{MAPS}/x"), MERGE, named("x", "b")),
        ("PATCH", format!("{MAPS}/x"), "application/strategic-merge-patch+json", named("y", "a")),
        ("PATCH", format!("{MAPS}/x"), "application/json-patch+json", rename),
        ("PATCH", format!("{MAPS}/x"), "application/json-patch+json", moved),
        ("PATCH", format!("{MAPS}/x?fieldManager=m"), "application/apply-patch+yaml", intent),
        ("PUT", format!("{pods}/x/status"), json, named("y", "a")),
        ("POST", format!("{pods}/x/eviction"), json, eviction),
        ("PUT", scales.to_owned(), json, scale.clone()),
        ("PATCH", scales.to_owned(), MERGE, scale),
        ("POST", "/api/v1/namespaces/a/serviceaccounts/x/token".to_owned(), json, token),
    ] {
        let answer =
            jane.request(method, &path, &[("content-type", kind)], body.to_string().as_bytes()).await;
        assert!(
            (400..500).contains(&answer.status),
            "{method} {path} {body}: {} {}",
            answer.status,
            answer.text()
        );
        assert_ne!(answer.status, 403, "{method} {path}: must fail after authorization: {}", answer.text());
    }
    assert_eq!(fixture.admin.get(&format!("{MAPS}/y")).await.expect(200), before);
    fixture.admin.get("/api/v1/namespaces/b/configmaps/z").await.expect(404);
    fixture.admin.get("/api/v1/namespaces/b/pods/x").await.expect(200);
    let x = fixture.admin.get(&format!("{MAPS}/x")).await.expect(200);
    assert_eq!((&x["metadata"]["namespace"], &x["data"]), (&json!("a"), &Value::Null));
}

/// Authorization and routing use the same parsed path.
///
/// Encodings and dot segments reach no object outside the rules of the user.
#[tokio::test(flavor = "multi_thread")]
async fn path_encodings_do_not_bypass_authorization() {
    let fixture = RbacFixture::start().await;
    let get = &["get", "list", "watch"][..];
    fixture.grant("a", "jane", json!([rule(&[""], &["configmaps"], &["x"], get)])).await;
    let paths = json!([{"nonResourceURLs": ["/version", "/api", "/api/*"], "verbs": ["get"]}]);
    fixture.grant_cluster("joe", paths).await;
    let (jane, joe) = (fixture.client("jane"), fixture.client("joe"));
    jane.get(&format!("{MAPS}/x")).await.expect(200);
    for path in [
        "/api/v1/namespaces/a/configmaps/x/../y",
        "/api/v1/namespaces/a/configmaps/x/../../secrets/x",
        "/api/v1/namespaces/a/configmaps/x/%2e%2e/y",
        "/api/v1/namespaces/a/configmaps/x%2f..%2fy",
        "/api/v1/namespaces/a/configmaps/x%2F%2e%2E%2Fy",
        "/api/v1/namespaces/a/configmaps/x%252f..%252fy",
        "/api/v1/namespaces/a/configmaps/./y",
        "/api/v1/namespaces/a/configmaps//y",
        "/api/v1/namespaces/a//configmaps/y",
        "/api/v1//namespaces/a/configmaps/y",
        "//api/v1/namespaces/a/configmaps/y",
        "/./api/v1/namespaces/a/configmaps/y",
        "/version/../api/v1/namespaces/a/configmaps/y",
        "/version/%2e%2e/api/v1/namespaces/a/configmaps/y",
        "/api/v1/namespaces/a/configmaps/x;/y",
        "/api/v1/namespaces/a/configmaps/x%00y",
        "/api/v1/namespaces/a/configmaps/x%5c..%5cy",
        "/api/v1/namespaces/a/configmaps/x%c0%af..%c0%afy",
        "/api/v1/namespaces/a/configmaps/y%20",
        "/api/v1/namespaces/a/configmaps/y/",
        "/api/v1/namespaces/a/configmaps/Y",
        "/api/v1/namespaces/a/ConfigMaps/y",
        "/api/v1/namespaces/A/configmaps/y",
        "/api/V1/namespaces/a/configmaps/y",
        "/api/v1/Namespaces/a/configmaps/y",
        "/apis//v1/namespaces/a/configmaps/y",
        "/apis/core/v1/namespaces/a/configmaps/y",
        "/api/v1/namespaces/a%2fconfigmaps%2fx/../b/configmaps/x",
        "/api/v1/namespaces/a%2f..%2fb/configmaps/x",
        "/api/v1/namespaces/..%2fb/configmaps/x",
        "/api/v1/namespaces/a/../b/configmaps/x",
        "/api/v1/namespaces//configmaps/x",
        "/api/v1/namespaces/*/configmaps/x",
        "/api/v1/namespaces/%61/configmaps/%79",
        "/api/v1/watch/namespaces/a/configmaps/y",
        "/api/v1/proxy/namespaces/a/configmaps/y",
        "/api/v1/namespaces/a/configmaps?fieldSelector=metadata.name%3Dy",
        "/api/v1/namespaces/a/configmaps?fieldSelector=metadata.name!%3Dx",
        "/api/v1/configmaps?fieldSelector=metadata.namespace%3Da,metadata.name%3Dx",
    ] {
        for (who, client) in [("jane", &jane), ("joe", &joe)] {
            let answer = client.get(path).await;
            assert!(
                (300..500).contains(&answer.status),
                "{who}: {path}: {} {}",
                answer.status,
                answer.text()
            );
            let text = answer.text();
            assert!(!text.contains(r#""uid""#) && !text.contains(r#""items""#), "{who}: {path}: {text}");
        }
    }
    // Equivalent encodings of a permitted path are served.
    jane.get("/api/v1/namespaces/%61/configmaps/%78").await.expect(200);
    jane.get("/api/v1/namespaces/a/configmaps?fieldSelector=metadata.name%3Dx").await.expect(200);
    // Of two field selectors, authorization and the list both use the first.
    let twice =
        "/api/v1/namespaces/a/configmaps?fieldSelector=metadata.name%3Dx&fieldSelector=metadata.name%3Dy";
    let items = jane.get(twice).await.expect(200)["items"].as_array().cloned().unwrap_or_default();
    let names: Vec<_> =
        items.iter().map(|item| item["metadata"]["name"].as_str().unwrap_or_default()).collect();
    assert_eq!(names, ["x"]);
    jane.get(&twice.replace("%3Dx&", "%3Dy&")).await.expect(403);
    let none = "/api/v1/namespaces/a/configmaps?fieldSelector=metadata.name%3Dx,metadata.name%3Dy";
    assert_eq!(jane.get(none).await.expect(200)["items"], json!([]), "contradictory selectors match nothing");
    // Rules of nonResourceURLs grant no resources, and rules of resources grant no paths.
    joe.get("/api/v1").await.expect(200);
    for path in [
        "/api/v1/namespaces",
        "/api/v1/nodes",
        "/metrics",
        "/version/../metrics",
        "/api/../metrics",
        "/api%2f..%2fmetrics",
    ] {
        let answer = joe.get(path).await;
        assert!((300..500).contains(&answer.status), "{path}: {} {}", answer.status, answer.text());
    }
}

/// All permissions in a namespace grant nothing at cluster scope or in other namespaces.
#[tokio::test(flavor = "multi_thread")]
async fn namespace_admin_has_no_cluster_scope_access() {
    let fixture = RbacFixture::start().await;
    let all = json!([rule(&["*"], &["*"], &[], &["*"])]);
    fixture.grant("a", "jane", all.clone()).await;
    // A ClusterRole bound by a RoleBinding in the namespace.
    fixture
        .create(&fixture.cluster("clusterroles"), json!({"metadata": {"name": "all"}, "rules": all}))
        .await;
    let bound = fixture.binding("all", "ClusterRole", "all", json!([fixture.user("joe")]));
    fixture.create(&fixture.bindings("a"), bound).await;
    let node = json!({"metadata": {"name": "n", "namespace": "a"}});
    fixture.create("/api/v1/nodes", json!({"metadata": {"name": "n"}})).await;
    for user in ["jane", "joe"] {
        let client = fixture.client(user);
        client.get("/api/v1/namespaces/a/secrets/x").await.expect(200);
        for path in [
            "/api/v1/nodes",
            "/api/v1/nodes/n",
            "/api/v1/persistentvolumes",
            "/api/v1/namespaces",
            "/api/v1/namespaces/b",
            "/api/v1/secrets",
            "/api/v1/secrets?fieldSelector=metadata.namespace%3Da",
            "/api/v1/namespaces/b/secrets",
            "/apis/rbac.authorization.k8s.io/v1/clusterroles",
            "/apis/rbac.authorization.k8s.io/v1/roles",
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            "/apis/apps/v1/deployments",
            "/metrics",
        ] {
            let answer = client.get(path).await;
            assert_eq!(answer.status, 403, "{user}: {path}: {}", answer.text());
        }
        // Inside the namespace these users are authorized, but cluster-scoped resources do not exist there:
        // 404.
        for path in [
            "/api/v1/namespaces/a/nodes",
            "/api/v1/namespaces/a/nodes/n",
            "/api/v1/namespaces/a/persistentvolumes",
            "/api/v1/namespaces/a/namespaces/b",
            "/apis/rbac.authorization.k8s.io/v1/namespaces/a/clusterroles",
            "/apis/rbac.authorization.k8s.io/v1/namespaces/a/clusterroles/cluster-admin",
        ] {
            let answer = client.get(path).await;
            assert_eq!(answer.status, 404, "{user}: {path}: {}", answer.text());
        }
        let answer = client.post("/api/v1/namespaces/a/nodes", &node).await;
        assert_eq!(answer.status, 404, "{user}: {}", answer.text());
        client.post("/api/v1/nodes", &node).await.expect(403);
        client
            .post("/api/v1/namespaces", &json!({"metadata": {"name": "c", "namespace": "a"}}))
            .await
            .expect(403);
        client.delete("/api/v1/nodes").await.expect(403);
        client.delete("/api/v1/namespaces/b").await.expect(403);
    }
    fixture.admin.get("/api/v1/secrets/x").await.expect(404);
    // A Role that names cluster-scoped resources grants nothing.
    let nodes = json!([rule(&[""], &["nodes", "persistentvolumes"], &[], &["get", "list"])]);
    fixture.grant("b", "jill", nodes).await;
    fixture.client("jill").get("/api/v1/nodes/n").await.expect(403);
}

/// Privilege escalation by each way to write roles and bindings.
#[tokio::test(flavor = "multi_thread")]
async fn role_and_binding_writes_do_not_escalate() {
    let fixture = RbacFixture::start().await;
    let rbac = "rbac.authorization.k8s.io";
    let all = &["get", "list", "create", "update", "patch", "delete", "deletecollection", "watch"][..];
    let writer = rule(&[rbac], &["*"], &[], all);
    let own = rule(&[""], &["configmaps"], &[], &["get"]);
    fixture.grant_cluster("mallory", json!([writer, own])).await;
    let mallory = fixture.client("mallory");
    let star = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]);
    let roles = fixture.cluster("clusterroles");
    let bindings = fixture.cluster("clusterrolebindings");
    let mine = format!("{roles}/mallory");
    let named = |name: &str| json!({"apiVersion": format!("{rbac}/v1"), "kind": "ClusterRole", "metadata": {"name": name}, "rules": star});
    let more = json!([{"op": "add", "path": "/rules/-", "value": star[0]}]);
    let aggregates = json!({"aggregationRule": {"clusterRoleSelectors": [{}]}});
    let labelled = json!({"metadata": {"labels": {"rbac.authorization.k8s.io/aggregate-to-admin": "true"}}});
    let binding_to = |role: &str, subjects: Value| {
        let mut binding = fixture.binding("more", "ClusterRole", role, subjects);
        binding["apiVersion"] = format!("{rbac}/v1").into();
        binding["kind"] = "ClusterRoleBinding".into();
        binding
    };
    let me = json!([fixture.user("mallory")]);
    let add_me = json!([{"op": "add", "path": "/subjects/-", "value": fixture.user("mallory")}]);
    let apply = "application/apply-patch+yaml";
    let ops = "application/json-patch+json";
    let json = "application/json";
    for (method, path, kind, body) in [
        // The role that is bound to mallory, with each method and patch type.
        ("PUT", mine.clone(), json, named("mallory")),
        ("PATCH", mine.clone(), MERGE, json!({"rules": star})),
        ("PATCH", mine.clone(), ops, more.clone()),
        ("PATCH", mine.clone(), "application/strategic-merge-patch+json", json!({"rules": star})),
        ("PATCH", format!("{mine}?fieldManager=m&force=true"), apply, named("mallory")),
        ("PATCH", mine.clone(), MERGE, aggregates.clone()),
        // New roles, and roles that are bound to others.
        ("POST", roles.clone(), json, named("new")),
        ("PUT", format!("{roles}/new"), json, named("new")),
        ("PATCH", format!("{roles}/new?fieldManager=m"), apply, named("new")),
        (
            "POST",
            roles.clone(),
            json,
            json!({"metadata": {"name": "new"}, "aggregationRule": aggregates["aggregationRule"]}),
        ),
        ("PATCH", format!("{roles}/view"), MERGE, aggregates.clone()),
        ("PATCH", format!("{roles}/system:discovery"), ops, more),
        ("PATCH", format!("{roles}/system:controller:job-controller"), MERGE, labelled),
        // Bindings to roles whose permissions mallory does not hold.
        ("POST", bindings.clone(), json, binding_to("cluster-admin", me.clone())),
        ("POST", bindings.clone(), json, binding_to("admin", me.clone())),
        ("PUT", format!("{bindings}/more"), json, binding_to("cluster-admin", me.clone())),
        ("PATCH", format!("{bindings}/more?fieldManager=m"), apply, binding_to("cluster-admin", me.clone())),
        ("PATCH", format!("{bindings}/cluster-admin"), ops, add_me.clone()),
        ("PATCH", format!("{bindings}/cluster-admin"), MERGE, json!({"subjects": me})),
        (
            "POST",
            fixture.bindings("kube-system"),
            json,
            fixture.binding("more", "ClusterRole", "cluster-admin", me.clone()),
        ),
        ("POST", fixture.bindings("a"), json, fixture.binding("more", "ClusterRole", "edit", me.clone())),
        // A binding to a group that contains mallory.
        (
            "POST",
            bindings.clone(),
            json,
            binding_to("cluster-admin", json!([{"kind": "Group", "name": "system:authenticated"}])),
        ),
    ] {
        let answer =
            mallory.request(method, &path, &[("content-type", kind)], body.to_string().as_bytes()).await;
        assert_eq!(answer.status, 403, "{method} {path} {body}: {}", answer.text());
        let messages = ["RBAC permissions not currently held", "must have cluster-admin privileges"];
        assert!(
            messages.iter().any(|message| answer.text().contains(message)),
            "{method} {path}: {}",
            answer.text()
        );
        mallory.get("/api/v1/namespaces/a/secrets/x").await.expect(403);
    }
    // Permissions in `b` do not permit a Role in `a`.
    fixture.grant("b", "mallory", json!([rule(&[""], &["secrets"], &[], &["get"])])).await;
    let secret_reader =
        json!({"metadata": {"name": "s"}, "rules": [rule(&[""], &["secrets"], &[], &["get"])]});
    mallory.post(&fixture.roles("b"), &secret_reader).await.expect(201);
    mallory.post(&fixture.roles("a"), &secret_reader).await.expect(403);
    mallory.post(&roles, &secret_reader).await.expect(403);
}
