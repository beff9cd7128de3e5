//! Values of custom objects: numbers and nulls under server-side apply, answers of dry runs.

use serde_json::{Value, json};

use super::custom_kinds::{define, definition_of_thing, start};
use super::{Reply, Server};

const GROUP: &str = "values.example.com";

fn collection(version: &str) -> String {
    format!("/apis/{GROUP}/{version}/namespaces/a/things")
}

fn thing(version: &str, spec: &Value) -> Value {
    json!({"apiVersion": format!("{GROUP}/{version}"), "kind": "Thing", "metadata": {"name": "x"}, "spec": spec})
}

/// Sends an apply whose body has this text as `spec`.
async fn apply(server: &Server, manager: &str, spec: &str) -> Reply {
    let url = format!("{}/x?fieldManager={manager}", collection("v1"));
    let body = thing("v1", &json!("SPEC")).to_string().replace("\"SPEC\"", spec);
    server.send("PATCH", &url, &[("content-type", "application/apply-patch+yaml")], body).await
}

async fn patch(server: &Server, kind: &str, body: &str) -> Reply {
    let url = format!("{}/x", collection("v1"));
    let media_type = format!("application/{kind}+json");
    server.send("PATCH", &url, &[("content-type", &media_type)], body.to_owned()).await
}

fn text(reply: &Reply) -> String {
    String::from_utf8(reply.body.to_vec()).unwrap()
}

#[tokio::test]
async fn numbers_of_equal_value_are_no_change_and_no_conflict() {
    let server = start().await;
    let spec = json!({"type": "object", "properties": {
        "n": {"type": "number"}, "i": {"type": "integer"},
        "set": {"type": "array", "items": {"type": "number"}, "x-svc-list-type": "set"},
        "list": {"type": "array", "x-svc-list-type": "map", "x-svc-list-map-keys": ["k"],
            "items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "integer"}}}},
        "any": {"x-svc-preserve-unknown-fields": true}}});
    define(&server, definition_of_thing(GROUP, spec)).await;
    let url = format!("{}/x", collection("v1"));
    let spec = r#"{"any":[1.50,1e2,1e20,1e21,0.000001],"i":2.0,"list":[{"k":1.0}],"n":1.0,"set":[3.0,0.5]}"#;
    let expected = r#""spec":{"any":[1.5,100,100000000000000000000,1e+21,0.000001],"i":2,"list":[{"k":1}],"n":1,"set":[3,0.5]}"#;
    let body = thing("v1", &json!("SPEC")).to_string().replace("\"SPEC\"", spec);
    for dry_run in ["?dryRun=All", ""] {
        let created = server
            .send(
                "POST",
                &format!("{}{dry_run}", collection("v1")),
                &[("content-type", "application/json")],
                body.clone(),
            )
            .await;
        assert!(created.code == 201 && text(&created).contains(expected), "{}", text(&created));
    }
    let before = server.get(&url).await;
    assert!(text(&before).contains(expected), "{before:?}");
    let before = before.json();
    for (kind, change) in [
        ("merge-patch", r#"{"spec":{"n":1,"i":2,"any":[1.5,100,1e20,1e21,1e-6]}}"#),
        ("merge-patch", r#"{"spec":{"n":1.0,"i":2.0,"set":[3.0,5e-1],"list":[{"k":1e0}]}}"#),
        (
            "json-patch",
            r#"[{"op":"test","path":"/spec/n","value":1.0},{"op":"replace","path":"/spec/i","value":2.0}]"#,
        ),
        ("json-patch", r#"[{"op":"test","path":"/spec/any","value":[1.5,1e2,1e20,1e21,1e-6]}]"#),
    ] {
        let changed = patch(&server, kind, change).await;
        assert_eq!((changed.code, changed.json()), (200, before.clone()), "{change}");
    }
    let version = format!(r#""resourceVersion":{},"name":"x""#, before["metadata"]["resourceVersion"]);
    let body = body.replace(r#""name":"x""#, &version);
    let replaced = server.send("PUT", &url, &[("content-type", "application/json")], body).await;
    assert_eq!((replaced.code, replaced.json()), (200, before), "a replace with the same numbers");

    server.delete(&url, Value::Null).await;
    let applied = apply(&server, "first", spec).await;
    assert!(applied.code == 201 && text(&applied).contains(expected), "{}", text(&applied));
    let owned = &applied.json()["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"];
    assert_eq!(owned["f:set"], json!({"v:3": {}, "v:0.5": {}}));
    assert_eq!(owned["f:list"], json!({"k:{\"k\":1}": {".": {}, "f:k": {}}}));
    let same = r#"{"n":1,"i":2,"set":[3],"list":[{"k":1}],"any":[1.5,100,1e20,1e21,1e-6]}"#;
    let second = apply(&server, "second", same).await;
    assert_eq!(second.code, 200, "{}", text(&second));
    let repeated = apply(&server, "first", spec).await;
    assert_eq!(repeated.json()["metadata"]["resourceVersion"], second.json()["metadata"]["resourceVersion"]);
    assert_eq!(apply(&server, "third", r#"{"n":1.5}"#).await.code, 409);
}

#[tokio::test]
async fn applied_null_of_non_nullable_field_returns_422() {
    let server = start().await;
    let spec = json!({"type": "object", "properties": {
        "o": {"type": "object", "properties": {"a": {"type": "string"}}}, "s": {"type": "string"},
        "l": {"type": "array", "items": {"type": "string"}},
        "m": {"type": "object", "additionalProperties": {"type": "string"}},
        "d": {"type": "string", "default": "x"}, "n": {"type": "string", "nullable": true}}});
    define(&server, definition_of_thing(GROUP, spec)).await;
    let created =
        server.post(&collection("v1"), thing("v1", &json!({"o": null, "s": null, "m": {"k": null}}))).await;
    assert_eq!((created.code, &created.json()["spec"]), (201, &json!({"d": "x", "m": {}})));
    for (change, field, ty) in [
        (r#"{"o":null}"#, "spec.o", "object"),
        (r#"{"o":{"a":null}}"#, "spec.o.a", "string"),
        (r#"{"s":null}"#, "spec.s", "string"),
        (r#"{"l":null}"#, "spec.l", "array"),
        (r#"{"m":{"k":null}}"#, "spec.m.k", "string"),
        ("null", "spec", "object"),
    ] {
        for name in ["an existing object", "a new object"] {
            let refused = apply(&server, "one", change).await;
            let message = format!("Invalid value: \"null\": {field} in body must be of type {ty}: \"null\"");
            let causes = json!([{"reason": "FieldValueTypeInvalid", "message": message, "field": field}]);
            // A null in place of the stored spec merges to the stored spec, as in kube-apiserver.
            if change == "null" && name == "an existing object" {
                assert_eq!(refused.code, 200, "{}", text(&refused));
                server.delete(&format!("{}/x", collection("v1")), Value::Null).await;
                continue;
            }
            assert_eq!(
                (refused.code, &refused.json()["details"]["causes"]),
                (422, &causes),
                "{change} {name}"
            );
            server.delete(&format!("{}/x", collection("v1")), Value::Null).await;
        }
        server.post(&collection("v1"), thing("v1", &json!({}))).await;
    }
    server.delete(&format!("{}/x", collection("v1")), Value::Null).await;
    let applied = apply(&server, "one", r#"{"d":null,"n":null}"#).await;
    assert_eq!((applied.code, &applied.json()["spec"]), (201, &json!({"d": "x", "n": null})));
}

#[tokio::test]
async fn undeclared_fields_of_free_and_preserving_parts_are_applied() {
    let server = start().await;
    let part = json!({"type": "object", "properties": {"b": {"type": "string"}}});
    let spec = json!({"type": "object", "properties": {
        "free": {"type": "object"}, "closed": part,
        "keep": {"type": "object", "x-svc-preserve-unknown-fields": true, "properties": {"a": part}}}});
    define(&server, definition_of_thing(GROUP, spec)).await;
    let sent = r#"{"closed":{"b":"1"},"free":{"x":{"y":1}},"keep":{"a":{"b":"1","c":2},"d":{"e":1}}}"#;
    for code in [201, 200] {
        let applied = apply(&server, "one", sent).await;
        assert_eq!(applied.code, code, "{}", text(&applied));
        let object = applied.json();
        let kept = json!({"closed": {"b": "1"}, "free": {}, "keep": {"a": {"b": "1"}, "d": {"e": 1}}});
        assert_eq!(object["spec"], kept);
        let owned = json!({"f:closed": {"f:b": {}}, "f:free": {"f:x": {".": {}, "f:y": {}}},
            "f:keep": {"f:a": {"f:b": {}, "f:c": {}}, "f:d": {".": {}, "f:e": {}}}});
        assert_eq!(object["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"], owned);
    }
    let warned = apply(&server, "one", r#"{"closed":{"b":"1","c":1}}"#).await;
    assert_eq!(warned.code, 200, "{}", text(&warned));
    assert!(warned.header("warning").contains(r#"unknown field \"spec.closed.c\""#), "{warned:?}");
}

/// A version of Thing whose spec has the field `a` and these other fields.
fn version(name: &str, is_storage: bool, fields: &[&str]) -> Value {
    let mut properties = json!({"a": {"type": "string"}});
    for field in fields {
        properties[field] = json!({"type": "string"});
    }
    json!({"name": name, "served": true, "storage": is_storage, "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {
            "spec": {"type": "object", "properties": properties},
            "status": {"type": "object", "default": {"phase": "New"},
                "properties": {"phase": {"type": "string"}, "by": {"type": "string", "default": name}}}}}}})
}

#[tokio::test]
async fn dry_run_of_custom_object_answers_as_a_later_read() {
    let server = start().await;
    let mut definition = definition_of_thing(GROUP, json!({}));
    definition["spec"]["versions"] = json!([version("v1", true, &["one"]), version("v2", false, &["two"])]);
    define(&server, definition).await;
    let all = json!({"a": "1", "one": "1", "two": "2"});
    let changed = json!({"a": "2", "one": "3", "two": "3"});
    let apply = |version: &str, query: &str, spec: &Value| {
        let url = format!("{}/x?fieldManager=one{query}", collection(version));
        let mut spec = spec.clone();
        spec.as_object_mut().unwrap().remove(if version == "v1" { "two" } else { "one" });
        (url, thing(version, &spec).to_string())
    };
    let content_type = |kind: &'static str| [("content-type", kind)];
    for (version, held) in [("v1", json!({"a": "1", "one": "1"})), ("v2", json!({"a": "1"}))] {
        let mut held_later = held.clone();
        for (name, value) in held_later.as_object_mut().unwrap() {
            *value = changed[name].clone();
        }
        let (list, url) = (collection(version), format!("{}/x", collection(version)));
        let status = json!({"phase": "New", "by": "v1"});
        let read = |reply: &Reply| (reply.json()["spec"].clone(), reply.json()["status"].clone());
        let created = server.post(&format!("{list}?dryRun=All"), thing(version, &all)).await;
        assert_eq!((created.code, read(&created)), (201, (held.clone(), status.clone())), "{version}");
        let (apply_url, body) = apply(version, "&dryRun=All", &all);
        let applied =
            server.send("PATCH", &apply_url, &content_type("application/apply-patch+yaml"), body).await;
        assert_eq!((applied.code, read(&applied)), (201, (held.clone(), status.clone())), "{version}");

        let created = server.post(&list, thing(version, &all)).await;
        assert_eq!((created.code, read(&created)), (201, (held.clone(), status.clone())), "{version}");
        for dry_run in ["?dryRun=All", ""] {
            let url = format!("{url}{dry_run}");
            let mut replacement = thing(version, &changed);
            let current = server.get(&url).await.json();
            replacement["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"].clone();
            let replaced = server.put(&url, replacement).await;
            assert_eq!(
                (replaced.code, read(&replaced)),
                (200, (held_later.clone(), status.clone())),
                "{version}"
            );
            let merged = server.merge(&url, json!({"spec": changed})).await;
            assert_eq!(
                (merged.code, read(&merged)),
                (200, (held_later.clone(), status.clone())),
                "{version}"
            );
        }
        let (apply_url, body) = apply(version, "&dryRun=All&force=true", &changed);
        let applied =
            server.send("PATCH", &apply_url, &content_type("application/apply-patch+yaml"), body).await;
        assert_eq!((applied.code, read(&applied)), (200, (held_later, status.clone())), "{version}");
        server.delete(&url, Value::Null).await;
    }
}
