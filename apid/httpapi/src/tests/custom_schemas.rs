//! Custom kinds: rules of definitions and objects, and CBOR. `apid/extensions` has the tables of schemas and rules.

use apimachinery::codec::{Limits, cbor};
use apimachinery::object::Object;
use serde_json::{Value, json};

use super::Server;
use super::custom_kinds::{DEFINITIONS, define, definition_of_thing, eventually, start};

/// A schema of an object with these properties.
fn object(properties: Value) -> Value {
    json!({"type": "object", "properties": properties})
}

/// A schema with validation rules, under their name in the default preset.
fn with_rules(mut schema: Value, rules: Value) -> Value {
    schema["x-svc-validations"] = rules;
    schema
}

fn thing(group: &str, spec: Value) -> Value {
    json!({"apiVersion": format!("{group}/v1"), "kind": "Thing", "metadata": {"name": "x"}, "spec": spec})
}

fn url(group: &str) -> String {
    format!("/apis/{group}/v1/namespaces/a/things")
}

fn message(reply: &super::Reply) -> String {
    reply.json()["message"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn update_that_adds_a_costly_rule_is_rejected() {
    let server = Server::start().await;
    let group = "cost.example.com";
    let list = json!({"type": "array", "items": {"type": "string"}});
    let mut created =
        server.post(DEFINITIONS, definition_of_thing(group, object(json!({"list": list})))).await.json();
    let schema = "/spec/versions/0/schema/openAPIV3Schema/properties/spec";
    let rule = "self.list.all(a, self.list.all(b, self.list.all(c, a == b || b == c)))";
    created.pointer_mut(schema).unwrap()["x-svc-validations"] = json!([{"rule": rule}]);
    let rejected = server.put(&format!("{DEFINITIONS}/things.{group}"), created.clone()).await;
    assert_eq!(rejected.code, 422);
    assert!(message(&rejected).contains("estimated rule cost exceeds budget"), "{}", message(&rejected));
}

#[tokio::test]
async fn writes_are_validated_against_schema_rules_and_stored_object() {
    let server = start().await;
    let properties = json!({
        "set": {"type": "array", "x-svc-list-type": "set", "items": {"type": "string"}},
        "free": {"type": "object", "x-svc-preserve-unknown-fields": true},
        "limit": {"type": "integer"},
    });
    let rules = json!([
        {"rule": "!has(self.limit) || self.limit < 5", "messageExpression": "self.limit > 8 ? 'limit is too large' : 'limit is large'",
            "reason": "FieldValueForbidden", "fieldPath": ".limit"},
        {"rule": "!has(oldSelf.limit) || self.limit >= oldSelf.limit", "message": "limit decreased"},
    ]);
    let group = "objects.example.com";
    define(&server, definition_of_thing(group, with_rules(object(properties), rules))).await;
    let rejected = server.post(&url(group), thing(group, json!({"set": ["x", "x"], "limit": 9}))).await;
    let text = message(&rejected);
    let duplicate = text.find("spec.set[1]: Duplicate value: \"x\"");
    let rule = text.find("spec.limit: Forbidden: limit is too large");
    assert!(rejected.code == 422 && duplicate.is_some() && duplicate < rule, "{text}");
    assert_eq!(rejected.json()["details"]["causes"][1]["reason"], "FieldValueForbidden");

    let strict = url(group) + "?fieldValidation=Strict";
    let mut unknown = thing(group, json!({}));
    unknown["metadata"]["foo"] = json!(1);
    let rejected = server.post(&strict, unknown).await;
    assert_eq!(rejected.code, 400, "D-FV-18");
    assert!(message(&rejected).contains("unknown field \"metadata.foo\""), "{}", message(&rejected));
    let kept = json!({"free": {"any": [{"b": 1}]}, "limit": 3});
    let created = server.post(&strict, thing(group, kept.clone())).await;
    assert_eq!((created.code, created.json()["spec"].clone()), (201, kept), "D-FV-4");
    assert_eq!(created.header("warning"), "", "D-FV-4");

    let patch = async |limit: i64| {
        server.merge(&format!("{}/x", url(group)), json!({"spec": {"limit": limit}})).await
    };
    let decreased = patch(2).await;
    assert_eq!(decreased.code, 422, "D-CEL-5");
    assert!(message(&decreased).contains("limit decreased"), "{}", message(&decreased));
    assert_eq!(patch(4).await.code, 200, "D-CEL-5");
}

/// A definition with a rule of a newer release, in the stored form, continues to be served after a rollback.
#[tokio::test]
async fn stored_rule_with_function_of_newer_release_is_evaluated() {
    let server = Server::start().await;
    let group = "newer.example.com";
    let schema = |name: &str| json!({"type": "object", "properties": {"v": {"type": "string"}}, (name): [{"rule": "isSemver(self.v)"}]});
    let kinds = server.api_state.kinds.get();
    let resource =
        kinds.registry.find_kind("apiextensions.example.test", "CustomResourceDefinition").unwrap();
    let definition = definition_of_thing(group, schema("x-kubernetes-validations"));
    let mut stored = Object::from_value(definition).unwrap();
    resource.conform(&mut stored).unwrap();
    stored.set_meta("uid", "u");
    let mut spec = stored.get("spec").unwrap().clone();
    spec["names"] =
        json!({"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"});
    spec["conversion"] = json!({"strategy": "None"});
    stored.set("spec", spec);
    let key = resource.key("", &format!("things.{group}"));
    server.api_state.store.commit(&key, storage::Op::Create(kinds::entry::encode(&stored))).await.unwrap();
    let server = super::custom_kinds::with_controller(server).await;
    eventually("the stored kind", || async { (server.get(&url(group)).await.code == 200).then_some(()) })
        .await;
    assert_eq!(server.post(&url(group), thing(group, json!({"v": "1.2"}))).await.code, 422);
    assert_eq!(server.post(&url(group), thing(group, json!({"v": "1.2.3"}))).await.code, 201);
    let definition = definition_of_thing("new.example.com", schema("x-svc-validations"));
    let new = server.post(DEFINITIONS, definition).await;
    assert_eq!(new.code, 422);
    assert!(message(&new).contains("undeclared reference to 'isSemver'"), "{}", message(&new));
}

#[tokio::test]
async fn custom_object_is_served_as_cbor() {
    let server =
        super::custom_kinds::with_controller(Server::start_with_gates("CBORServingAndStorage=true").await)
            .await;
    let group = "binary.example.com";
    define(&server, definition_of_thing(group, object(json!({"color": {"type": "string"}})))).await;
    assert_eq!(server.post(&url(group), thing(group, json!({"color": "red"}))).await.code, 201);
    let object_url = format!("{}/x", url(group));
    let reply = server.send("GET", &object_url, &[("accept", "application/cbor")], "").await;
    assert_eq!((reply.code, reply.header("content-type")), (200, "application/cbor"), "D-MT-13");
    assert_eq!(reply.body.get(..3), Some(&b"\xd9\xd9\xf7"[..]), "D-MT-32");
    let decoded = cbor::decode(&reply.body, Limits::BODY).unwrap();
    assert_eq!(decoded.value["spec"], json!({"color": "red"}), "D-MT-13");
    // Each kind of response starts with the tag: a list, a created and a patched object, a failure.
    let (accept, json_body) = (("accept", "application/cbor"), ("content-type", "application/json"));
    let merge = ("content-type", "application/merge-patch+json");
    let second =
        json!({"apiVersion": format!("{group}/v1"), "kind": "Thing", "metadata": {"name": "y"}}).to_string();
    for (method, path, headers, body, code) in [
        ("GET", url(group), vec![accept], String::new(), 200),
        ("POST", url(group), vec![accept, json_body], second, 201),
        ("PATCH", object_url, vec![accept, merge], r#"{"spec":{"color":"blue"}}"#.to_owned(), 200),
        ("GET", format!("{}/missing", url(group)), vec![accept], String::new(), 404),
        ("DELETE", format!("{}/y", url(group)), vec![accept], String::new(), 200),
    ] {
        let reply = server.send(method, &path, &headers, body).await;
        assert_eq!((reply.code, reply.header("content-type")), (code, "application/cbor"), "{method} {path}");
        assert_eq!(reply.body.get(..3), Some(&b"\xd9\xd9\xf7"[..]), "D-MT-32: {method} {path}");
    }
}
