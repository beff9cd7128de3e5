//! Tests of typed operations: field sets, comparison, merge, removal.

use schema::Schema;
use serde_json::json;

use super::*;

fn fields(value: Value) -> Fields {
    match value {
        Value::Object(fields) => fields,
        other => panic!("{other}"),
    }
}

fn ty(name: &str) -> Merge {
    Schema::of(name).unwrap().merge()
}

#[test]
fn field_set_contains_all_owned_paths() {
    for (name, object, expected) in [
        ("core/v1.ConfigMap", json!({"data": {"k": "v"}}), json!({"f:data": {"f:k": {}}})),
        ("core/v1.ConfigMap", json!({"data": {}}), json!({"f:data": {}})),
        ("core/v1.ConfigMap", json!({"metadata": {"finalizers": []}}), json!({})),
        (
            "core/v1.ConfigMap",
            json!({"metadata": {"finalizers": ["b/c", "a/b"]}}),
            json!({"f:metadata": {"f:finalizers": {"v:\"a/b\"": {}, "v:\"b/c\"": {}}}}),
        ),
        ("core/v1.Service", json!({"spec": {"selector": {"a": "b"}}}), json!({"f:spec": {"f:selector": {}}})),
        (
            "core/v1.Service",
            json!({"spec": {"ports": [{"port": 80, "name": "http"}]}}),
            json!({"f:spec": {"f:ports": {"k:{\"port\":80,\"protocol\":\"TCP\"}":
                {".": {}, "f:name": {}, "f:port": {}}}}}),
        ),
        (
            "core/v1.Pod",
            json!({"spec": {"containers": [{"name": "a", "args": ["x"],
                "env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}]}}),
            json!({"f:spec": {"f:containers": {"k:{\"name\":\"a\"}": {".": {}, "f:args": {}, "f:name": {},
                "f:env": {"k:{\"name\":\"A\"}": {}}}}}}),
        ),
        (
            "apps/v1.ControllerRevision",
            json!({"data": {"deep": {"k": 1}, "l": [1]}}),
            json!({"f:data": {"f:deep": {".": {}, "f:k": {}}, "f:l": {}}}),
        ),
    ] {
        assert_eq!(field_set(&ty(name), &fields(object.clone())).to_value(), expected, "{object}");
    }
}

#[test]
fn compare_reports_added_modified_and_removed_paths() {
    for (name, old, new, added, modified, removed) in [
        (
            "core/v1.ConfigMap",
            json!({}),
            json!({"data": {"k": "v"}}),
            json!({"f:data": {".": {}, "f:k": {}}}),
            json!({}),
            json!({}),
        ),
        (
            "core/v1.ConfigMap",
            json!({"data": {"k": "v", "l": "w"}}),
            json!({"data": {"k": "x"}}),
            json!({}),
            json!({"f:data": {"f:k": {}}}),
            json!({"f:data": {"f:l": {}}}),
        ),
        (
            "core/v1.Service",
            json!({"spec": {"selector": {"a": "1"}, "ports": [{"port": 80}]}}),
            json!({"spec": {"selector": {"b": "1"}, "ports": [{"port": 80, "protocol": "UDP"}]}}),
            json!({"f:spec": {"f:ports": {"k:{\"port\":80,\"protocol\":\"UDP\"}":
                {".": {}, "f:port": {}, "f:protocol": {}}}}}),
            json!({"f:spec": {"f:selector": {}}}),
            json!({"f:spec": {"f:ports": {"k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}}}}}),
        ),
        // Reordered items compare as equal.
        (
            "core/v1.Pod",
            json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}),
            json!({"spec": {"containers": [{"name": "b"}, {"name": "a"}]}}),
            json!({}),
            json!({}),
            json!({}),
        ),
        // Several items with one key are one value.
        (
            "core/v1.Container",
            json!({}),
            json!({"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}),
            json!({"f:env": {".": {}, "k:{\"name\":\"A\"}": {}}}),
            json!({}),
            json!({}),
        ),
    ] {
        let compared = compare(&ty(name), &fields(old), &fields(new.clone()));
        assert_eq!(compared.added.to_value(), added, "added {new}");
        assert_eq!(compared.modified.to_value(), modified, "modified {new}");
        assert_eq!(compared.removed.to_value(), removed, "removed {new}");
    }
}

#[test]
fn merged_list_items_keep_applied_order() {
    for (under, over, expected) in [
        ("a b", "b c", "a b c"),
        ("a b c", "c a", "b c a"),
        ("a b c d", "d x a", "b c d x a"),
        ("a b", "x", "a b x"),
        ("", "x y", "x y"),
        ("a", "a", "a"),
    ] {
        let list = |text: &str| {
            fields(json!({"metadata": {"finalizers": text.split_whitespace().collect::<Vec<_>>()}}))
        };
        let merged = merge(&ty("core/v1.ConfigMap"), &list(under), &list(over));
        assert_eq!(Value::Object(merged), Value::Object(list(expected)), "{under} | {over}");
    }
}

#[test]
fn reconcile_turns_granular_fields_into_atomic() {
    let set = Set::from_value(&json!({"f:spec": {"f:selector": {"f:a": {}}, "f:type": {}}})).unwrap();
    let now = reconcile(&ty("core/v1.Service"), &set).unwrap();
    assert_eq!(now.to_value(), json!({"f:spec": {"f:selector": {}, "f:type": {}}}));
    assert_eq!(reconcile(&ty("core/v1.Service"), &now), None);
}

#[test]
fn type_check_reports_mismatches_and_undeclared_fields() {
    for (object, expected) in [
        (json!({"dta": {}}), ".dta: field not declared in schema"),
        (json!({"spec": {"hostname": 1}}), ".spec.hostname: expected string, got number"),
        (json!({"spec": {"containers": {}}}), ".spec.containers: expected list, got map"),
        (
            json!({"spec": {"containers": [{"name": "a"}, {"name": "a"}]}}),
            ".spec.containers: duplicate entries for key [name=\"a\"]",
        ),
        (
            json!({"spec": {"containers": [{"name": "a", "env": [{"name": "A"}, {"name": "A"}]}]}}),
            ".spec.containers[name=\"a\"].env: duplicate entries for key [name=\"A\"]",
        ),
    ] {
        let errors = check(&ty("core/v1.Pod"), &fields(object)).unwrap_err();
        assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), [expected]);
    }
    let mut object = fields(json!({"spec": {"containers": [{"name": "a", "bar": 1}]}, "foo": 1}));
    assert_eq!(drop_undeclared(&ty("core/v1.Pod"), &mut object), ["foo", "spec.containers[0].bar"]);
    assert_eq!(Value::Object(object), json!({"spec": {"containers": [{"name": "a"}]}}));
}

#[test]
fn undeclared_fields_below_long_key_have_bounded_messages() {
    let long = "k".repeat(200_000);
    let undeclared: Fields = (0..20_000).map(|i| (format!("undeclared{i}"), json!(1))).collect();
    let mut object = fields(json!({"properties": {long: undeclared}}));
    let ty = ty("apiextensions/v1.JSONSchemaProps");
    let errors = check(&ty, &object).unwrap_err();
    assert_eq!(errors.len(), 101, "one more than messages list");
    assert!(errors.iter().map(|error| error.path.len()).sum::<usize>() < 100_000);
    // 20,000 paths with the full key would take 4 GB.
    let dropped = drop_undeclared(&ty, &mut object);
    assert_eq!(dropped.len(), 100);
    assert!(dropped.iter().map(String::len).sum::<usize>() < 100_000);
    assert_eq!(object["properties"].as_object().unwrap().values().next(), Some(&json!({})));
}
