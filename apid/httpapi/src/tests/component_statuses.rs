//! ComponentStatuses: computed at each read, read-only and deprecated.

use apimachinery::names::Preset;
use serde_json::{Value, json};

use super::Server;

const STATUSES: &str = "/api/v1/componentstatuses";

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn components_of_control_plane_are_listed_with_their_health() {
    for (preset, store, group) in
        [(Preset::Kubernetes, "etcd-0", "meta.k8s.io"), (Preset::Svc, "storage-0", "meta.example.test")]
    {
        let server = Server::start_with_preset(preset).await;
        let reply = server.get(STATUSES).await;
        assert_eq!(reply.code, 200);
        assert_eq!(reply.header("warning"), "299 - \"v1 ComponentStatus is deprecated in v1.19+\"");
        let list = reply.json();
        assert_eq!((&list["kind"], names(&list)), (&json!("ComponentStatusList"), vec!["authd", store]));
        let healthy = json!([{"type": "Healthy", "status": "True", "message": "ok"}]);
        assert_eq!(list["items"][1]["conditions"], healthy);

        let component = server.get(&format!("{STATUSES}/{store}")).await;
        assert_eq!((component.code, &component.json()["kind"]), (200, &json!("ComponentStatus")));
        assert_eq!(
            (&component.json()["metadata"]["name"], &component.json()["conditions"]),
            (&json!(store), &healthy)
        );
        assert_eq!(server.get(&format!("{STATUSES}/scheduler")).await.code, 404);

        let table = format!("application/json;as=Table;v=v1;g={group}");
        let table = server.send("GET", STATUSES, &[("accept", &table)], "").await.json();
        assert_eq!(table["rows"][1]["cells"], json!([store, "Healthy", "ok", ""]));
        let partial = format!("application/json;as=PartialObjectMetadataList;v=v1;g={group}");
        let partial = server.send("GET", STATUSES, &[("accept", &partial)], "").await.json();
        assert_eq!(
            (&partial["kind"], names(&partial)),
            (&json!("PartialObjectMetadataList"), vec!["authd", store])
        );
        assert!(partial["items"][0]["conditions"].is_null(), "{partial}");
    }
}

#[tokio::test]
async fn selectors_of_component_statuses_apply_to_names_and_labels() {
    let server = Server::start().await;
    for (query, expected) in [
        ("fieldSelector=metadata.name%3Dstorage-0", vec!["storage-0"]),
        ("fieldSelector=metadata.name!%3Dstorage-0", vec!["authd"]),
        ("labelSelector=a%3Db", vec![]),
        ("labelSelector=!a", vec!["authd", "storage-0"]),
        ("limit=1", vec!["authd", "storage-0"]),
    ] {
        let list = server.get(&format!("{STATUSES}?{query}")).await.json();
        assert_eq!(names(&list), expected, "{query}");
        assert!(list["metadata"]["continue"].is_null(), "{query}");
    }
    assert_eq!(server.get(&format!("{STATUSES}?fieldSelector=type%3Da")).await.code, 400);
}

#[tokio::test]
async fn component_statuses_cannot_be_written_or_watched() {
    let server = Server::start().await;
    let object_url = format!("{STATUSES}/storage-0");
    for (method, url) in [
        ("POST", STATUSES),
        ("DELETE", STATUSES),
        ("PUT", &object_url),
        ("PATCH", &object_url),
        ("DELETE", &object_url),
    ] {
        let reply = server.send(method, url, &[("content-type", "application/json")], "{}").await;
        assert_eq!(
            (reply.code, &reply.json()["reason"]),
            (405, &json!("MethodNotAllowed")),
            "{method} {url}"
        );
    }
    assert_eq!(server.get(&format!("{STATUSES}?watch=true")).await.code, 405);
    let discovery = server.get("/api/v1").await.json();
    let resources = discovery["resources"].as_array().unwrap();
    let entry = resources.iter().find(|resource| resource["name"] == "componentstatuses").unwrap();
    let expected = json!({"name": "componentstatuses", "singularName": "componentstatus", "namespaced": false,
        "kind": "ComponentStatus", "verbs": ["get", "list"], "shortNames": ["cs"]});
    assert_eq!(*entry, expected);
}
