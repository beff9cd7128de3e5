//! Controllers of apid: default service accounts, and the audit events of controllers.

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
