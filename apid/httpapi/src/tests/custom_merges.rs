//! Server-side apply of custom objects by the list and map types of their schema (requirements D-MRG, D-SSA).

use serde_json::{Value, json};

use super::custom_kinds::{DEFINITIONS, define, definition_of_thing, eventually, start};
use super::{Reply, Server};

/// Applies a spec as a field manager.
async fn apply(server: &Server, group: &str, manager: &str, spec: Value) -> Reply {
    let url = format!("/apis/{group}/v1/namespaces/a/things/x?fieldManager={manager}");
    let body = json!({"apiVersion": format!("{group}/v1"), "kind": "Thing", "metadata": {"name": "x"}, "spec": spec});
    server.send("PATCH", &url, &[("content-type", "application/apply-patch+yaml")], body.to_string()).await
}

fn list_schema(fields: Value) -> Value {
    let mut list_schema = json!({"type": "array", "items": {"type": "object", "required": ["k"],
        "properties": {"k": {"type": "string"}, "v": {"type": "integer"}}}});
    list_schema.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    json!({"type": "object", "properties": {"list": list_schema}})
}

fn list_with_key() -> Value {
    list_schema(json!({"x-svc-list-type": "map", "x-svc-list-map-keys": ["k"]}))
}

/// Replaces the schema of a definition and waits until OpenAPI publishes its list type.
async fn change_schema(server: &Server, group: &str, spec: Value) {
    let list_type = spec["properties"]["list"]["x-svc-list-type"].clone();
    let patch = json!([{"op": "replace", "value": spec,
        "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec"}]);
    let url = format!("{DEFINITIONS}/things.{group}");
    let changed = server
        .send("PATCH", &url, &[("content-type", "application/json-patch+json")], patch.to_string())
        .await;
    assert_eq!(changed.code, 200, "{}", changed.json());
    eventually("the changed schema", || async {
        let document = server.get(&format!("/openapi/v3/apis/{group}/v1")).await.json();
        let schemas = document["components"]["schemas"].as_object()?.clone();
        let (_, schema) = schemas.into_iter().find(|(name, _)| name.ends_with(".v1.Thing"))?;
        (schema["properties"]["spec"]["properties"]["list"]["x-svc-list-type"] == list_type).then_some(())
    })
    .await;
}

#[tokio::test]
async fn applied_fields_merge_by_the_types_of_the_schema() {
    let server = start().await;
    let group = "merge.example.com";
    let mut schema = list_schema(json!({}));
    let properties = &mut schema["properties"];
    properties["keyed"] = list_with_key()["properties"]["list"].clone();
    properties["free"] = json!({"type": "object", "x-svc-preserve-unknown-fields": true});
    let part = json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}});
    properties["part"] = part.clone();
    properties["atomic"] = part;
    properties["atomic"]["x-svc-map-type"] = json!("atomic");
    define(&server, definition_of_thing(group, schema)).await;
    let item = |k: &str, v: i64| json!({"k": k, "v": v});
    let items = json!([item("x", 1)]);
    let first =
        json!({"list": items, "keyed": items, "free": {"a": 1}, "part": {"a": 1}, "atomic": {"a": 1}});
    assert_eq!(apply(&server, group, "first", first).await.code, 201);
    for (row, field, value, result) in [
        ("D-MRG-20", "free", json!({"b": 2}), Ok(json!({"a": 1, "b": 2}))),
        ("D-MRG-21", "list", json!([item("y", 1)]), Err(".spec.list")),
        ("D-MRG-22", "keyed", json!([item("x", 2)]), Err(".spec.keyed[k=\"x\"].v")),
        ("D-MRG-22", "keyed", json!([item("y", 1)]), Ok(json!([item("x", 1), item("y", 1)]))),
        ("D-MRG-23", "part", json!({"b": 2}), Ok(json!({"a": 1, "b": 2}))),
        ("D-MRG-23", "atomic", json!({"b": 2}), Err(".spec.atomic")),
    ] {
        let applied = apply(&server, group, field, json!({(field): value})).await;
        match result {
            Ok(merged) => {
                assert_eq!((applied.code, &applied.json()["spec"][field]), (200, &merged), "{row}");
            }
            Err(path) => {
                let causes = applied.json()["details"]["causes"].clone();
                assert_eq!((applied.code, &causes[0]["field"]), (409, &json!(path)), "{row}: {causes}");
            }
        }
    }
}

#[tokio::test]
async fn granular_schema_keeps_owners_of_atomic_list_without_conflict() {
    let server = start().await;
    let group = "granular.example.com";
    define(&server, definition_of_thing(group, list_schema(json!({"x-svc-list-type": "atomic"})))).await;
    let first = json!({"list": [{"k": "x", "v": 1}, {"k": "y", "v": 1}]});
    assert_eq!(apply(&server, group, "first", first).await.code, 201);
    change_schema(&server, group, list_with_key()).await;
    let applied = apply(&server, group, "second", json!({"list": [{"k": "x", "v": 1}]})).await;
    assert_eq!(applied.code, 200, "D-SSA-33: {}", applied.json());
    let changed = apply(&server, group, "second", json!({"list": [{"k": "z", "v": 3}]})).await;
    assert_eq!(changed.code, 200, "D-SSA-33: {}", changed.json());
}

#[tokio::test]
async fn atomic_schema_makes_changes_conflict_with_owners_of_items() {
    let server = start().await;
    let group = "atomic.example.com";
    define(&server, definition_of_thing(group, list_with_key())).await;
    assert_eq!(apply(&server, group, "first", json!({"list": [{"k": "x", "v": 1}]})).await.code, 201);
    assert_eq!(apply(&server, group, "second", json!({"list": [{"k": "y", "v": 1}]})).await.code, 200);
    change_schema(&server, group, list_schema(json!({"x-svc-list-type": "atomic"}))).await;
    let conflict = apply(&server, group, "first", json!({"list": [{"k": "x", "v": 2}]})).await;
    assert_eq!(conflict.code, 409, "D-SSA-34: {}", conflict.json());
    assert!(conflict.json()["message"].as_str().unwrap().contains("second"), "{}", conflict.json());
}
