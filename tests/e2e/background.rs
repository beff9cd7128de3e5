//! Controllers of apid: built-in namespaces, default service accounts, namespace deletion, audit events.

use serde_json::{Value, json};
use tests::harness::{AuditLog, Client, ControlPlane, Options, eventually};

async fn names_of(client: &Client, path: &str) -> Vec<String> {
    let list = client.get(path).await.expect(200);
    let items = list["items"].as_array().cloned().unwrap_or_default();
    items.iter().map(|item| item["metadata"]["name"].as_str().unwrap_or_default().to_owned()).collect()
}

async fn wait_until_exists(client: &Client, path: &str) -> Value {
    eventually(path, || async {
        let response = client.get(path).await;
        (response.status == 200).then(|| response.json())
    })
    .await
}

#[tokio::test]
async fn built_in_namespaces_exist_in_both_presets() {
    for (options, prefix) in [(Options::default(), "svc"), (Options::kubernetes(), "kube")] {
        let plane = ControlPlane::start(options).await;
        let names = names_of(&plane.admin(), "/api/v1/namespaces").await;
        let expected = ["system", "public", "node-lease"].map(|name| format!("{prefix}-{name}"));
        assert!(
            names.contains(&"default".to_owned()) && expected.iter().all(|name| names.contains(name)),
            "{names:?}"
        );
    }
}

#[tokio::test]
async fn deleted_default_service_account_is_recreated() {
    let plane = ControlPlane::start(Options::default()).await;
    let admin = plane.admin();
    admin.post("/api/v1/namespaces", &json!({"metadata": {"name": "a"}})).await.expect(201);
    for namespace in ["default", "svc-system", "a"] {
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/default");
        let first = wait_until_exists(&admin, &path).await["metadata"]["uid"].clone();
        admin.delete(&path).await.expect(200);
        eventually("the recreated service account", || async {
            let response = admin.get(&path).await;
            (response.status == 200 && response.json()["metadata"]["uid"] != first).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn namespace_deletion_removes_content_and_waits_for_finalizers() {
    let mut plane = ControlPlane::start(Options::default()).await;
    let admin = plane.admin();
    let rbac = plane.api("rbac.authorization", "v1");
    for namespace in ["a", "b"] {
        admin.post("/api/v1/namespaces", &json!({"metadata": {"name": namespace}})).await.expect(201);
        for i in 0..50 {
            let path = format!("/api/v1/namespaces/{namespace}/configmaps");
            admin.post(&path, &json!({"metadata": {"name": format!("c{i}")}})).await.expect(201);
        }
        let role = json!({"metadata": {"name": "r"}, "rules": []});
        admin.post(&format!("{rbac}/namespaces/{namespace}/roles"), &role).await.expect(201);
    }
    admin.delete("/api/v1/namespaces/a").await.expect(200);
    admin.wait_until_deleted("/api/v1/namespaces/a").await;
    assert!(names_of(&admin, "/api/v1/namespaces/a/configmaps").await.is_empty());
    assert!(names_of(&admin, &format!("{rbac}/namespaces/a/roles")).await.is_empty());
    assert_eq!(
        names_of(&admin, "/api/v1/namespaces/b/configmaps").await.len(),
        50,
        "the other namespace keeps its objects"
    );

    // A finalizer blocks the namespace deletion across a restart.
    let map_with_finalizer = json!({"metadata": {"name": "held", "finalizers": ["example.com/hold"]}});
    admin.post("/api/v1/namespaces/b/configmaps", &map_with_finalizer).await.expect(201);
    admin.delete("/api/v1/namespaces/b").await.expect(200);
    eventually("only the object with a finalizer remains", || async {
        (names_of(&admin, "/api/v1/namespaces/b/configmaps").await == ["held"]).then_some(())
    })
    .await;
    let rejected =
        admin.post("/api/v1/namespaces/b/configmaps", &json!({"metadata": {"name": "late"}})).await;
    rejected.expect(403);
    plane.kill();
    plane.launch().await;
    let admin = plane.admin();
    assert_eq!(wait_until_exists(&admin, "/api/v1/namespaces/b").await["status"]["phase"], "Terminating");
    let release = json!({"metadata": {"finalizers": null}});
    let path = "/api/v1/namespaces/b/configmaps/held";
    admin.patch(path, "application/merge-patch+json", &release).await.expect(200);
    admin.wait_until_deleted("/api/v1/namespaces/b").await;
}

/// Controllers write through the API: the audit log has each object that they create, and each deletion.
#[tokio::test]
async fn every_write_of_controllers_is_in_the_audit_log() {
    let audit = AuditLog::new();
    let options = Options { publishes_root_ca: true, ..Options::default() };
    let plane = ControlPlane::start(options.flag(&audit.flag())).await;
    let admin = plane.admin();
    admin.post("/api/v1/namespaces", &json!({"metadata": {"name": "a"}})).await.expect(201);
    let mut written = Vec::new();
    for list in ["serviceaccounts", "configmaps"] {
        let path = format!("/api/v1/namespaces/a/{list}");
        let names = eventually("the objects of controllers", || async {
            Some(names_of(&admin, &path).await).filter(|names| !names.is_empty())
        })
        .await;
        written.extend(names.into_iter().map(|name| (list, name)));
    }
    for (list, name) in &written {
        let is_creation = |event: &Value| {
            let object = &event["objectRef"];
            event["verb"] == "create" && object["resource"] == *list && object["namespace"] == "a"
        };
        let event = audit.event("the creation by a controller", is_creation).await;
        let user = event["user"]["username"].as_str().unwrap_or_default();
        assert!(user.starts_with("system:"), "{list} {name}: {event}");
    }
    admin.delete("/api/v1/namespaces/a").await.expect(200);
    admin.wait_until_deleted("/api/v1/namespaces/a").await;
    for (list, _) in &written {
        let is_deletion = |event: &Value| {
            let object = &event["objectRef"];
            event["verb"].as_str().is_some_and(|verb| verb.starts_with("delete"))
                && object["resource"] == *list
                && object["namespace"] == "a"
        };
        let event = audit.event("the deletion by a controller", is_deletion).await;
        assert!(
            event["user"]["username"].as_str().is_some_and(|user| user.starts_with("system:")),
            "{event}"
        );
    }
}

#[tokio::test]
async fn audit_log_names_controller_users() {
    for (flag, writer) in [
        ("", "system:kube-controller-manager"),
        ("--use-service-account-credentials", "system:serviceaccount:svc-system:namespace-controller"),
    ] {
        let audit = AuditLog::new();
        let mut options = Options::default().flag(&audit.flag());
        if !flag.is_empty() {
            options = options.flag(flag);
        }
        let plane = ControlPlane::start(options).await;
        let admin = plane.admin();
        admin.post("/api/v1/namespaces", &json!({"metadata": {"name": "a"}})).await.expect(201);
        admin.delete("/api/v1/namespaces/a").await.expect(200);
        admin.wait_until_deleted("/api/v1/namespaces/a").await;
        let is_finalization = |event: &Value| {
            event["objectRef"]["subresource"] == "finalize" && event["objectRef"]["name"] == "a"
        };
        audit.event("the finalization of the namespace", is_finalization).await;
        for event in audit.events().iter().filter(|event| is_finalization(event)) {
            assert_eq!(event["user"]["username"], writer);
        }
    }
}
