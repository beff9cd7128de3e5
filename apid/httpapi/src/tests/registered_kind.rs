//! Adding a kind needs its definition in one file and one line of registration.
//!
//! apid serves, lists, describes, prints, watches and stores a kind of this test.

use std::sync::Arc;

use apimachinery::clock::SeededRng;
use kinds::{BuiltInKind, Column, Subresource};
use serde_json::{Value, json};

use super::Server;

/// The definition of the kind.
const KINDS: &[BuiltInKind] = &[BuiltInKind {
    kind: "Gadget",
    short_names: &["ga"],
    categories: &["all"],
    subresources: &[Subresource::status("Gadget")],
    selectable_fields: &["data.color"],
    columns: &[kinds::table::NAME, Column::text("Color", "Color of the gadget.").text_at("data.color")],
    ..BuiltInKind::namespaced("apps/v1.ControllerRevision", "gadgets")
}];

const GADGETS: &str = "/apis/apps/v1/namespaces/a/gadgets";

fn gadget(name: &str, color: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"color": color}, "revision": 1})
}

#[tokio::test]
async fn registered_kind_is_served_by_every_endpoint() {
    // The registration of the kind.
    let server = Server::start_with_kinds(Arc::new(SeededRng::new(7)), &[KINDS]).await;
    for (name, color) in [("x", "red"), ("y", "blue")] {
        assert_eq!(server.post(GADGETS, gadget(name, color)).await.code, 201);
    }

    // The kind has no Protobuf message of its own, like custom kinds.
    let protobuf = "application/vnd.svc.protobuf";
    let fallback = format!("{protobuf}, application/json");
    for url in [GADGETS.to_owned(), format!("{GADGETS}/x"), format!("{GADGETS}?watch=1&timeoutSeconds=1")] {
        let code = server.send("GET", &url, &[("accept", protobuf)], "").await.code;
        let reply = server.send("GET", &url, &[("accept", &fallback)], "").await;
        assert_eq!((code, reply.code, reply.header("content-type")), (406, 200, "application/json"), "{url}");
    }
    assert_eq!(server.send("POST", GADGETS, &[("content-type", protobuf)], "k8s").await.code, 415);
    let missing = server.send("GET", &format!("{GADGETS}/none"), &[("accept", &fallback)], "").await;
    assert_eq!((missing.code, missing.header("content-type")), (404, protobuf), "a Protobuf Status");

    let listed = server.get("/apis/apps/v1").await.json();
    let entries =
        |name: &str| listed["resources"].as_array().unwrap().iter().find(|r| r["name"] == name).cloned();
    let entry = entries("gadgets").expect("the resource is listed");
    assert_eq!((&entry["kind"], &entry["shortNames"]), (&json!("Gadget"), &json!(["ga"])));
    assert!(entries("gadgets/status").is_some());
    let accept = "application/json;g=apidiscovery.example.test;v=v2;as=APIGroupDiscoveryList";
    let aggregated = server.send("GET", "/apis", &[("accept", accept)], "").await;
    assert!(String::from_utf8_lossy(&aggregated.body).contains("\"resource\":\"gadgets\""));
    let described = server.get("/openapi/v3/apis/apps/v1").await.json();
    for path in ["", "/{name}", "/{name}/status"] {
        let path = format!("/apis/apps/v1/namespaces/{{namespace}}/gadgets{path}");
        assert!(described["paths"].get(&path).is_some(), "{path}");
    }
    let gvk = json!({"group": "apps", "version": "v1", "kind": "Gadget"});
    let schemas = described["components"]["schemas"].as_object().unwrap();
    let has_kind = |schema: &&Value| {
        let kinds = schema["x-svc-group-version-kind"].as_array();
        kinds.is_some_and(|kinds| kinds.contains(&gvk))
    };
    assert_eq!(schemas.values().filter(has_kind).count(), 1);
    assert!(
        String::from_utf8_lossy(&server.get("/openapi/v2").await.body)
            .contains("/namespaces/{namespace}/gadgets")
    );

    let row = server.api_state.store.get("apps/gadgets/a/x", None).await.unwrap();
    assert!(row.is_some(), "the object is stored under its key");
    let list = server.get(&format!("{GADGETS}?fieldSelector=data.color%3Dblue")).await.json();
    assert_eq!((&list["kind"], &list["items"][0]["metadata"]["name"]), (&json!("GadgetList"), &json!("y")));
    assert_eq!(server.get(&format!("{GADGETS}?fieldSelector=data.size%3D1")).await.code, 400);
    let table = ("accept", "application/json;as=Table;v=v1;g=meta.example.test");
    let table = server.send("GET", GADGETS, &[table], "").await.json();
    assert_eq!(table["rows"][0]["cells"], json!(["x", "red"]));

    let since = list["metadata"]["resourceVersion"].as_str().unwrap();
    let patched = server.merge(&format!("{GADGETS}/x"), json!({"data": {"color": "green"}})).await;
    assert_eq!(patched.json()["data"]["color"], "green");
    let strict = server
        .post(&format!("{GADGETS}?fieldValidation=Strict"), json!({"metadata": {"name": "z"}, "wheels": 4}))
        .await;
    assert_eq!(strict.code, 400, "unknown fields are rejected");
    assert_eq!(server.delete(&format!("{GADGETS}/x"), Value::Null).await.code, 200);
    let events = server.get(&format!("{GADGETS}?watch=1&resourceVersion={since}&timeoutSeconds=1")).await;
    let types: Vec<Value> = std::str::from_utf8(&events.body)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["type"].clone())
        .collect();
    assert_eq!(types, ["MODIFIED", "DELETED"]);

    let plain = Server::start().await;
    assert_eq!(plain.get(GADGETS).await.code, 404, "an unregistered kind is not found");
}
