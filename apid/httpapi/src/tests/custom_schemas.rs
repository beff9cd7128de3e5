//! Custom kinds by requirement: rejected definitions, rejected objects, expressions, and representations.

use apimachinery::codec::{Limits, cbor};
use apimachinery::object::Object;
use serde_json::{Value, json};

use super::Server;
use super::custom_kinds::{DEFINITIONS, define, definition_of_thing, eventually, start};

const STRICT: &str = "?fieldValidation=Strict";

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
async fn definitions_with_invalid_schemas_are_rejected() {
    let server = Server::start().await;
    let list = |fields: Value| {
        let mut list = json!({"type": "array", "items": {"type": "string"}});
        list.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        object(json!({"list": list}))
    };
    let list_with_keys = |keys: Value, item: Value| {
        list(json!({"items": item, "x-svc-list-type": "map", "x-svc-list-map-keys": keys}))
    };
    let key = |ty: &str| json!({"type": "object", "required": ["k"], "properties": {"k": {"type": ty}}});
    let nested = json!({"type": "object", "required": ["k"], "properties": {"k": {"type": "object"}}});
    let any_object = json!({"type": "object"});
    let set_of_objects = json!({"items": any_object, "x-svc-list-type": "set"});
    let rule = |rule: &str| with_rules(object(json!({"a": {"type": "integer"}})), json!([{"rule": rule}]));
    let nested_loops = |depth: usize| {
        let unbounded = json!({"type": "array", "items": {"type": "string"}});
        let rule = "self.list.all(a, ".repeat(depth) + "true" + &")".repeat(depth);
        with_rules(object(json!({"list": unbounded})), json!([{"rule": rule}]))
    };
    for (row, spec, code, text) in [
        ("D-MRG-1", list(json!({"x-svc-list-type": "foo"})), 422, "Unsupported value: \"foo\""),
        ("D-MRG-2", list(set_of_objects), 422, "items"),
        ("D-MRG-4", list_with_keys(json!(["k"]), json!({"type": "string"})), 422, "items.type"),
        ("D-MRG-11", list_with_keys(json!("k"), key("string")), 400, "list-map-keys of type []string"),
        (
            "D-MRG-12",
            list(json!({"x-svc-list-type": "set", "x-svc-list-map-keys": ["k"]})),
            422,
            "list-map-keys",
        ),
        ("D-MRG-14", list_with_keys(json!(["k"]), nested), 422, "must be a scalar type"),
        ("D-MRG-15", list_with_keys(json!(["k"]), object(json!({"k": {"type": "string"}}))), 422, "required"),
        ("D-MRG-16", json!({"type": "object", "x-svc-map-type": "foo"}), 422, "Unsupported value: \"foo\""),
        ("D-CEL-3", rule("1 + 1"), 422, "must evaluate to a bool"),
        ("D-CEL-8", rule("foo == 1"), 422, "undeclared reference to 'foo'"),
        ("D-CEL-45", rule("semver('1.2.3').major() == 1"), 422, "undeclared reference to 'semver'"),
        ("D-CCOST-9", nested_loops(3), 422, "estimated rule cost"),
    ] {
        let rejected = server.post(DEFINITIONS, definition_of_thing("bad.example.com", spec)).await;
        assert_eq!(rejected.code, code, "{row}: {}", message(&rejected));
        assert!(message(&rejected).contains(text), "{row}: {}", message(&rejected));
    }
    for (row, spec) in [
        ("D-MRG-11", list_with_keys(json!(["k"]), key("string"))),
        ("D-MRG-16", json!({"type": "object", "x-svc-map-type": "atomic"})),
        ("D-MRG-16", json!({"type": "object", "x-svc-map-type": "granular"})),
    ] {
        let created = server
            .post(&format!("{DEFINITIONS}?dryRun=All"), definition_of_thing("good.example.com", spec))
            .await;
        assert_eq!(created.code, 201, "{row}: {}", message(&created));
    }
}

#[tokio::test]
async fn updates_that_add_costly_rules_are_rejected() {
    let server = Server::start().await;
    let group = "cost.example.com";
    let list = json!({"type": "array", "items": {"type": "string"}});
    let mut created =
        server.post(DEFINITIONS, definition_of_thing(group, object(json!({"list": list})))).await.json();
    let schema = "/spec/versions/0/schema/openAPIV3Schema/properties/spec";
    // Requirement D-CCOST-10: the estimated cost of a rule exceeds the limit of one rule.
    let rule = "self.list.all(a, self.list.all(b, self.list.all(c, a == b || b == c)))";
    created.pointer_mut(schema).unwrap()["x-svc-validations"] = json!([{"rule": rule}]);
    let rejected = server.put(&format!("{DEFINITIONS}/things.{group}"), created.clone()).await;
    assert_eq!(rejected.code, 422);
    assert!(message(&rejected).contains("estimated rule cost exceeds budget"), "{}", message(&rejected));

    // Requirements D-CCOST-12 and D-LIM-11: the estimated cost of one rule is within its limit; the sum of 100 rules
    // exceeds the limit of a definition.
    let rules_of = |count: usize| -> Value {
        (0..count)
            .map(|i| json!({"rule": format!("self.list.all(a, self.list.exists(b, a == b || a == '{i}'))")}))
            .collect()
    };
    let bounded_list =
        json!({"type": "array", "maxItems": 500, "items": {"type": "string", "maxLength": 10}});
    let definition_with_rules = |count: usize| {
        definition_of_thing(group, with_rules(object(json!({"list": bounded_list})), rules_of(count)))
    };
    let url = format!("{DEFINITIONS}?dryRun=All");
    let move_to_other_group = |mut definition: Value| {
        definition["metadata"]["name"] = json!("things.sum.example.com");
        definition["spec"]["group"] = json!("sum.example.com");
        definition
    };
    let one = server.post(&url, move_to_other_group(definition_with_rules(1))).await;
    assert_eq!(one.code, 201, "{}", message(&one));
    let sum = server.post(&url, move_to_other_group(definition_with_rules(100))).await;
    assert_eq!(sum.code, 422);
    let text = message(&sum);
    assert!(text.contains("rule cost total for entire OpenAPIv3 schema exceeds budget"), "{text}");
    assert!(!text.contains("estimated rule cost exceeds budget"), "{text}");
}

#[tokio::test]
async fn invalid_custom_object_returns_422() {
    let server = start().await;
    let set = |item: &str| json!({"type": "array", "x-svc-list-type": "set", "items": {"type": item}});
    let ports = json!({"type": "array", "x-svc-list-type": "map", "x-svc-list-map-keys": ["k"],
        "items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}, "v": {"type": "integer"}}}});
    let free = json!({"type": "object", "x-svc-preserve-unknown-fields": true});
    let properties = json!({
        "number": {"type": "integer"}, "set": set("string"), "map": ports, "free": free,
        "a": set("integer"), "b": set("integer"), "limit": {"type": "integer"},
    });
    // Each rule holds for an object without its field, so that each row of the table tests one rule.
    let rules = json!([
        {"rule": "!has(self.a) || self.a + self.b == [1, 2, 3]", "message": "no union"},
        {"rule": "!has(self.limit) || self.limit < 5", "messageExpression": "self.limit > 8 ? 'limit is too large' : 'limit is large'",
            "reason": "FieldValueForbidden", "fieldPath": ".limit"},
    ]);
    let group = "objects.example.com";
    define(&server, definition_of_thing(group, with_rules(object(properties), rules))).await;
    let (plain, strict) = (url(group), url(group) + STRICT);
    for (row, url, spec, code, cause) in [
        (
            "D-MRG-3 D-CEL-21",
            &plain,
            json!({"set": ["x", "x"], "limit": 9}),
            422,
            "spec.set[1]: Duplicate value: \"x\"",
        ),
        (
            "D-MRG-5",
            &plain,
            json!({"map": [{"k": "x"}, {"k": "x", "v": 1}]}),
            422,
            "spec.map[1]: Duplicate value",
        ),
        ("D-ERR-21", &plain, json!({"number": "text"}), 422, "spec.number: Invalid value: \"string\""),
        ("D-FV-16", &strict, json!({"other": 1}), 400, "unknown field \"spec.other\""),
        ("D-CEL-1 D-CEL-46", &plain, json!({"limit": 9}), 422, "spec.limit: Forbidden: limit is too large"),
        ("D-CEL-31", &plain, json!({"a": [1, 2], "b": [3, 4]}), 422, "no union"),
    ] {
        let rejected = server.post(url, thing(group, spec)).await;
        assert_eq!(rejected.code, code, "{row}: {}", message(&rejected));
        assert!(message(&rejected).contains(cause), "{row}: {}", message(&rejected));
        if row.contains("D-CEL-21") {
            let (duplicate, rule) =
                (message(&rejected).find("Duplicate"), message(&rejected).find("too large"));
            assert!(duplicate < rule, "the list type precedes the rules: {}", message(&rejected));
        }
    }
    let causes =
        server.post(&plain, thing(group, json!({"limit": 9}))).await.json()["details"]["causes"].clone();
    assert_eq!(
        (&causes[0]["reason"], &causes[0]["field"]),
        (&json!("FieldValueForbidden"), &json!("spec.limit"))
    );
    let mut unknown = thing(group, json!({}));
    unknown["metadata"]["foo"] = json!(1);
    let rejected = server.post(&strict, unknown).await;
    assert_eq!(rejected.code, 400, "D-FV-18");
    assert!(message(&rejected).contains("unknown field \"metadata.foo\""), "{}", message(&rejected));

    let kept = json!({"free": {"any": [{"b": 1}]}, "a": [1, 2], "b": [2, 3]});
    let created = server.post(&strict, thing(group, kept.clone())).await;
    assert_eq!((created.code, created.json()["spec"].clone()), (201, kept), "D-FV-4 and D-CEL-31");
    assert_eq!(created.header("warning"), "", "D-FV-4");
    let unversioned = server.put(&format!("{plain}/x"), thing(group, json!({}))).await;
    assert_eq!(unversioned.code, 422, "D-EP-16");
    assert!(message(&unversioned).contains("metadata.resourceVersion"), "{}", message(&unversioned));
}

#[tokio::test]
async fn transition_rules_compare_with_the_stored_object() {
    let server = start().await;
    let set = json!({"type": "array", "x-svc-list-type": "set", "items": {"type": "string"}});
    let rules = json!([
        {"rule": "self.x >= oldSelf.x", "message": "x decreased"},
        {"rule": "self.s == oldSelf.s", "message": "s changed"},
    ]);
    let group = "transitions.example.com";
    define(
        &server,
        definition_of_thing(group, with_rules(object(json!({"x": {"type": "integer"}, "s": set})), rules)),
    )
    .await;
    let object_url = format!("{}/x", url(group));
    let created = server.post(&url(group), thing(group, json!({"x": 5, "s": ["a", "b"]}))).await;
    assert_eq!(created.code, 201, "D-CEL-5: no old object");
    for (row, spec, code, text) in [
        ("D-CEL-5", json!({"x": 4}), 422, "x decreased"),
        ("D-CEL-5", json!({"x": 6}), 200, ""),
        ("D-CEL-19", json!({"s": ["b", "a"]}), 200, ""),
        ("D-CEL-19", json!({"s": ["b", "c"]}), 422, "s changed"),
    ] {
        let patched = server.merge(&object_url, json!({"spec": spec})).await;
        assert_eq!(patched.code, code, "{row}: {}", message(&patched));
        assert!(message(&patched).contains(text), "{row}: {}", message(&patched));
    }
}

#[tokio::test]
async fn stored_rule_with_function_of_newer_release_is_evaluated() {
    let server = Server::start().await;
    let group = "newer.example.com";
    // Each rule applies to objects with its number.
    let expressions = [
        ("D-CLIB-74", "isSemver('1.2.3') && !isSemver('1.2') && isSemver('1.2', true)"),
        ("D-CLIB-75", "semver('v1.2', true).minor() == 2 && semver('01.2', true).major() == 1"),
        ("D-CLIB-76", "semver('1.2.3').major() == 1"),
        ("D-CLIB-77", "semver('1.2.3').minor() == 2"),
        ("D-CLIB-78", "semver('1.2.3').patch() == 3"),
        ("D-CLIB-79", "semver('1.2.3').isLessThan(semver('1.3.0'))"),
        ("D-CLIB-80", "semver('2.0.0').isGreaterThan(semver('1.3.0'))"),
        ("D-CLIB-81", "semver('1.2.3').compareTo(semver('1.2.3')) == 0"),
    ];
    let rules: Value = expressions
        .iter()
        .enumerate()
        .map(|(i, (row, expression))| json!({"rule": format!("self.n != {i} || !({expression})"), "message": row}))
        .collect();
    let schema = with_rules(object(json!({"n": {"type": "integer"}})), rules);
    // A newer release stored the definition; this release rejects it in a request (D-CEL-45).
    let kinds = server.api_state.kinds.get();
    let resource =
        kinds.registry.find_kind("apiextensions.example.test", "CustomResourceDefinition").unwrap();
    let mut stored = Object::from_value(definition_of_thing(group, schema.clone())).unwrap();
    // Stored definitions have the names of Kubernetes.
    let spec = stored.0.get_mut("spec").unwrap();
    let fields = spec
        .pointer_mut("/versions/0/schema/openAPIV3Schema/properties/spec")
        .unwrap()
        .as_object_mut()
        .unwrap();
    let rules = fields.remove("x-svc-validations").unwrap();
    fields.insert("x-kubernetes-validations".to_owned(), rules);
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
    for (i, (row, _)) in expressions.iter().enumerate() {
        let rejected = server.post(&url(group), thing(group, json!({"n": i}))).await;
        assert_eq!(rejected.code, 422, "{row}: the negated expression is false");
        assert!(message(&rejected).contains(row), "{row}: {}", message(&rejected));
    }
    assert_eq!(server.post(&url(group), thing(group, json!({"n": 100}))).await.code, 201);
    let new = server.post(DEFINITIONS, definition_of_thing("new.example.com", schema)).await;
    assert_eq!(new.code, 422);
    assert!(message(&new).contains("undeclared reference to 'semver'"), "{}", message(&new));
}

#[tokio::test]
async fn rules_of_one_object_share_a_budget() {
    let server = start().await;
    let group = "budget.example.com";
    let list = json!({"type": "array", "maxItems": 300, "items": {"type": "integer"}});
    // The estimate of a rule is below the limit, and each of 40 rules costs more than 250,000 units of 10,000,000.
    let rules: Value = (0..40)
        .map(|i| json!({"rule": format!("self.list.all(a, self.list.all(b, a + b != {}))", -1 - i)}))
        .collect();
    define(&server, definition_of_thing(group, with_rules(object(json!({"list": list})), rules))).await;
    let thing_with_items = |count: usize| thing(group, json!({"list": vec![1; count]}));
    assert_eq!(server.post(&url(group), thing_with_items(10)).await.code, 201);
    let mut large = thing_with_items(300);
    large["metadata"]["name"] = json!("large");
    let rejected = server.post(&url(group), large).await;
    assert_eq!(rejected.code, 422, "D-CCOST-8");
    let text = "validation failed due to running out of cost budget, no further validation rules will be run";
    assert!(message(&rejected).contains(text), "{}", message(&rejected));
}

const COLORED: &str = "forms.example.com";

/// Starts a server with a kind that has a column and a selectable field, and with an object of it.
async fn start_with_colored_thing() -> Server {
    let server = start().await;
    let mut definition = definition_of_thing(COLORED, object(json!({"color": {"type": "string"}})));
    let version = &mut definition["spec"]["versions"][0];
    version["additionalPrinterColumns"] =
        json!([{"name": "Color", "type": "string", "jsonPath": ".spec.color"}]);
    version["selectableFields"] = json!([{"jsonPath": ".spec.color"}]);
    define(&server, definition).await;
    assert_eq!(server.post(&url(COLORED), thing(COLORED, json!({"color": "red"}))).await.code, 201);
    server
}

#[tokio::test]
async fn protobuf_of_custom_object_returns_406_or_415() {
    let server = start_with_colored_thing().await;
    let object_url = format!("{}/x", url(COLORED));
    let get = async |accept: &str| server.send("GET", &object_url, &[("accept", accept)], "").await;
    let protobuf = "application/vnd.svc.protobuf";
    assert_eq!(get(protobuf).await.code, 406, "D-PB-10");
    let posted = server.send("POST", &url(COLORED), &[("content-type", protobuf)], &b"k8s\0"[..]).await;
    assert_eq!(posted.code, 415, "D-PB-10");
    let fallback = get(&format!("{protobuf}, application/json")).await;
    assert_eq!((fallback.code, fallback.header("content-type")), (200, "application/json"), "D-MT-7");
}

#[tokio::test]
async fn strategic_merge_patch_of_custom_object_returns_415() {
    let server = start_with_colored_thing().await;
    let strategic = ("content-type", "application/strategic-merge-patch+json");
    let patched = server.send("PATCH", &format!("{}/x", url(COLORED)), &[strategic], "{}").await;
    assert_eq!(patched.code, 415);
}

#[tokio::test]
async fn table_of_custom_kind_has_the_columns_of_its_definition() {
    let server = start_with_colored_thing().await;
    let accept = ("accept", "application/json;as=Table;v=v1;g=meta.example.test");
    let table = server.send("GET", &url(COLORED), &[accept], "").await.json();
    let columns = table["columnDefinitions"].as_array().unwrap();
    let names: Vec<&str> = columns.iter().map(|column| column["name"].as_str().unwrap()).collect();
    assert_eq!((names, &table["rows"][0]["cells"]), (vec!["Name", "Color"], &json!(["x", "red"])));
}

#[tokio::test]
async fn list_items_have_kind_for_custom_kinds_only() {
    let server = start_with_colored_thing().await;
    let list = server.get(&url(COLORED)).await.json();
    assert_eq!(list["items"][0]["kind"], "Thing");
    let accounts = server.get("/api/v1/namespaces/a/serviceaccounts").await.json();
    assert_eq!(accounts["items"][0]["kind"], Value::Null);
}

#[tokio::test]
async fn field_selector_of_custom_kind_accepts_name_and_selectable_fields() {
    let server = start_with_colored_thing().await;
    for (selector, code) in [("spec.color=red", 200), ("metadata.name=x", 200), ("spec.size=1", 400)] {
        let found =
            server.get(&format!("{}?fieldSelector={}", url(COLORED), selector.replace('=', "%3D"))).await;
        assert_eq!(found.code, code, "{selector}");
        let count = found.json()["items"].as_array().map_or(0, Vec::len);
        assert_eq!(count, usize::from(code == 200), "{selector}");
    }
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
