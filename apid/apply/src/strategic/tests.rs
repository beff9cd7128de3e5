//! Tests of strategic merge patches: keys, directives and orders.

use schema::Schema;
use serde_json::json;

use super::*;

fn run(ty: &str, object: Value, patch: Value) -> Result<Value> {
    let (Value::Object(object), Value::Object(patch)) = (object, patch) else { panic!("objects") };
    apply(&Schema::of(ty).unwrap().merge(), object, &patch).map(Value::Object)
}

/// Applies a patch to a pod spec with these containers, and returns the merged containers.
fn containers(stored: Value, patch: Value) -> Value {
    let object = json!({"spec": {"containers": stored}});
    run("core/v1.Pod", object, json!({"spec": patch})).unwrap()["spec"]["containers"].clone()
}

#[test]
fn strategic_merge_merges_lists_by_key() {
    let stored = json!([{"name": "app", "image": "a", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]},
                        {"name": "side", "image": "s"}]);
    for (patch, expected) in [
        (
            json!({"containers": [{"name": "side", "image": "t"}]}),
            json!([stored[0], {"name": "side", "image": "t"}]),
        ),
        (
            json!({"containers": [{"name": "app", "env": [{"name": "B", "value": "two"}, {"name": "C", "value": "3"}]}]}),
            json!([{"name": "app", "image": "a", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "two"},
                                                         {"name": "C", "value": "3"}]}, stored[1]]),
        ),
        // A new item comes before items that the patch does not name.
        (
            json!({"containers": [{"name": "new", "image": "n", "args": null}]}),
            json!([{"name": "new", "image": "n", "args": null}, stored[0], stored[1]]),
        ),
        (json!({"containers": [{"name": "side", "image": null}]}), json!([stored[0], {"name": "side"}])),
        (
            json!({"containers": [{"name": "app", "env": [{"name": "A", "$patch": "delete"}]},
                                  {"name": "side", "$patch": "delete"}, {"name": "none", "$patch": "delete"}]}),
            json!([{"name": "app", "image": "a", "env": [{"name": "B", "value": "2"}]}]),
        ),
        (
            json!({"containers": [{"$patch": "replace"}, {"name": "fresh", "image": "f"}]}),
            json!([{"name": "fresh", "image": "f"}]),
        ),
        (
            json!({"$setElementOrder/containers": [{"name": "side"}, {"name": "app"}],
                   "containers": [{"name": "app", "image": "b"}]}),
            json!([stored[1], {"name": "app", "image": "b", "env": stored[0]["env"]}]),
        ),
        (
            json!({"$setElementOrder/containers": [{"name": "first"}, {"name": "app"}, {"name": "side"}],
                   "containers": [{"name": "first", "image": "f"}]}),
            json!([{"name": "first", "image": "f"}, stored[0], stored[1]]),
        ),
        (json!({"$setElementOrder/containers": [{"name": "app"}]}), stored.clone()),
        (json!({"containers": "none"}), json!("none")),
    ] {
        assert_eq!(containers(stored.clone(), patch.clone()), expected, "{patch}");
    }
    // The merge key is one field, even if two fields identify an item: the first item with that port matches.
    let ports = run(
        "core/v1.Service",
        json!({"spec": {"ports": [{"name": "http", "port": 80}, {"name": "https", "port": 443}]}}),
        json!({"spec": {"ports": [{"port": 53, "name": "dns"}, {"port": 443, "$patch": "delete"}]}}),
    );
    assert_eq!(
        ports.unwrap(),
        json!({"spec": {"ports": [{"port": 53, "name": "dns"}, {"name": "http", "port": 80}]}})
    );
}

#[test]
fn value_without_stored_value_is_taken_as_sent() {
    let both = json!([{"containerPort": 53, "protocol": "UDP"}, {"containerPort": 53, "protocol": "TCP"}]);
    let order = json!([{"containerPort": 53}, {"containerPort": 53}]);
    for (stored, patch, expected) in [
        // An absent list, with and without an order.
        (
            json!([{"name": "app"}]),
            json!({"containers": [{"name": "app", "ports": both}]}),
            json!([{"name": "app", "ports": both}]),
        ),
        (
            json!([{"name": "app"}]),
            json!({"containers": [{"name": "app", "$setElementOrder/ports": order, "ports": both}]}),
            json!([{"name": "app", "ports": both}]),
        ),
        // A stored null, and a stored value of another type.
        (
            json!([{"name": "app", "ports": null}]),
            json!({"containers": [{"name": "app", "ports": both}]}),
            json!([{"name": "app", "ports": both}]),
        ),
        (
            json!([{"name": "app", "ports": "x"}]),
            json!({"containers": [{"name": "app", "ports": both}]}),
            json!([{"name": "app", "ports": both}]),
        ),
        // A new item of a stored list keeps even directives.
        (
            json!([{"name": "app"}]),
            json!({"containers": [{"name": "new", "ports": both, "env": [{"name": "A", "$patch": "delete"}]}]}),
            json!([{"name": "new", "ports": both, "env": [{"name": "A", "$patch": "delete"}]}, {"name": "app"}]),
        ),
        // A replaced list and a replaced map.
        (
            json!([{"name": "app", "ports": [{"containerPort": 80}]}]),
            json!({"containers": [{"name": "app", "ports": [{"$patch": "replace"}, both[0], both[1]]}]}),
            json!([{"name": "app", "ports": both}]),
        ),
        (
            json!([{"name": "app", "image": "a"}]),
            json!({"$patch": "replace", "containers": [{"name": "app", "ports": both, "image": null}]}),
            json!([{"name": "app", "ports": both, "image": null}]),
        ),
        (
            json!([{"name": "app", "image": "a"}]),
            json!({"containers": [{"name": "app", "$patch": "replace"}, {"name": "app"}, {"name": "app"}]}),
            json!([{"name": "app"}, {"name": "app"}]),
        ),
        // Directives in an absent list: items with `$patch` and null fields are dropped.
        (
            json!([{"name": "app"}]),
            json!({"containers": [{"name": "app", "env": [
                {"name": "A", "$patch": "delete"}, {"$patch": "replace"}, {"name": "B", "value": null}]}]}),
            json!([{"name": "app", "env": [{"name": "B"}]}]),
        ),
        // A map with a directive in place of an absent one.
        (
            json!([{"name": "app"}]),
            json!({"containers": [{"name": "app", "securityContext": {"$patch": "replace", "runAsUser": 1}}]}),
            json!([{"name": "app"}]),
        ),
        // Items of a stored list still merge by the key.
        (
            json!([{"name": "app", "ports": [{"containerPort": 53}]}]),
            json!({"containers": [{"name": "app", "ports": both}]}),
            json!([{"name": "app", "ports": [{"containerPort": 53, "protocol": "TCP"}]}]),
        ),
    ] {
        assert_eq!(containers(stored.clone(), patch.clone()), expected, "{stored} {patch}");
    }
}

#[test]
fn strategic_merge_treats_scalar_lists_as_sets() {
    let stored = json!({"metadata": {"finalizers": ["one", "two"]}});
    for (patch, expected) in [
        (json!({"finalizers": ["two", "three"]}), json!(["one", "two", "three"])),
        (json!({"$deleteFromPrimitiveList/finalizers": ["two", "none"]}), json!(["one"])),
        (json!({"$setElementOrder/finalizers": ["two", "one"]}), json!(["two", "one"])),
        (
            json!({"$deleteFromPrimitiveList/finalizers": ["one"],
                   "$setElementOrder/finalizers": ["four", "two"], "finalizers": ["four"]}),
            json!(["four", "two"]),
        ),
        (json!({"finalizers": null}), Value::Null),
        (json!({"$deleteFromPrimitiveList/finalizers": null}), Value::Null),
        (json!({"$deleteFromPrimitiveList/finalizers": "one"}), json!(["one", "two"])),
    ] {
        let merged = run("core/v1.Pod", stored.clone(), json!({"metadata": patch})).unwrap();
        assert_eq!(merged["metadata"]["finalizers"], expected, "{patch}");
    }
    let replaced = containers(
        json!([{"name": "a", "args": ["x"]}]),
        json!({"containers": [{"name": "a", "args": ["y"]}]}),
    );
    assert_eq!(replaced, json!([{"name": "a", "args": ["y"]}]));
}

#[test]
fn strategic_merge_applies_map_directives() {
    for (ty, object, patch, expected) in [
        (
            "core/v1.Pod",
            json!({"metadata": {"labels": {"a": "1", "b": "2"}}}),
            json!({"metadata": {"labels": {"$patch": "replace", "c": "3"}}}),
            json!({"metadata": {"labels": {"c": "3"}}}),
        ),
        (
            "core/v1.Pod",
            json!({"metadata": {"labels": {"a": "1"}}}),
            json!({"metadata": {"labels": {"$patch": "delete"}}}),
            json!({"metadata": {"labels": {}}}),
        ),
        (
            "core/v1.Service",
            json!({"spec": {"selector": {"app": "x"}}}),
            json!({"spec": {"selector": {"tier": "web"}}}),
            json!({"spec": {"selector": {"app": "x", "tier": "web"}}}),
        ),
        (
            "apps/v1.Deployment",
            json!({"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}}),
            json!({"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}),
            json!({"spec": {"strategy": {"type": "Recreate"}}}),
        ),
    ] {
        assert_eq!(run(ty, object, patch.clone()).unwrap(), expected, "{patch}");
    }
}

#[test]
fn invalid_strategic_merge_patch_is_rejected() {
    let object = json!({"metadata": {"finalizers": ["a"]}, "spec": {"containers": [{"name": "a"}]}});
    let retain_keys = "invalid patch format of retainKeys";
    let without_name = "map: map[image:x] does not contain declared merge key: name";
    for (spec, code, text) in [
        (json!({"$retainKeys": ["nodeName"], "hostname": "h"}), 400, retain_keys),
        (json!({"$retainKeys": "x"}), 400, retain_keys),
        (json!({"$setElementOrder": []}), 400, "invalid patch format of setElementOrder list"),
        (json!({"$deleteFromPrimitiveListX/a": []}), 400, "invalid patch format of primitive list"),
        (
            json!({"$setElementOrder/containers": [{"name": "b"}], "containers": [{"name": "a", "tty": true}]}),
            500,
            "The order in patch list:\n[map[name:a tty:true]]\n doesn't match $setElementOrder list:\n[map[name:b]]\n",
        ),
        (
            json!({"$setElementOrder/containers": [{"image": "x"}], "containers": [{"name": "a"}]}),
            500,
            without_name,
        ),
        (
            json!({"$setElementOrder/containers": ["a"], "containers": [{"name": "a"}]}),
            500,
            "expected a map[string]interface {}, but received a string",
        ),
        (
            json!({"$setElementOrder/containers": {"a": 1}}),
            500,
            "expected a []interface {}, but received a map[string]interface {}",
        ),
        (
            json!({"$setElementOrder/containers": [], "containers": null}),
            500,
            "expected a []interface {}, but received a %!s(<nil>)",
        ),
        (json!({"containers": [{"$patch": "replace"}, {"image": "x"}]}), 500, without_name),
        (json!({"containers": [{"image": "x"}]}), 500, without_name),
        (
            json!({"containers": [{"$patch": "delete", "ports": [{"hostPort": 80}], "image": null}]}),
            500,
            "map: map[$patch:delete image:<nil> ports:[map[hostPort:80]]] does not contain declared merge key: name",
        ),
        (
            json!({"containers": [{"$patch": "merge", "name": "a"}]}),
            500,
            "merging lists cannot yet be specified in the patch",
        ),
        (
            json!({"containers": [{"$patch": "later", "name": "a"}]}),
            500,
            "unknown patch type: later in map: map[$patch:later name:a]",
        ),
        (json!({"containers": ["x"]}), 500, "list element types are not identical: [[map[name:a]] [x]]"),
        (json!({"$patch": "later"}), 500, "unknown patch type: later in map: map[$patch:later]"),
        (json!({"$patch": 1}), 500, "unknown patch type: %!s(int64=1) in map: map[$patch:1]"),
        (json!({"$patch": null}), 500, "unknown patch type: %!s(<nil>) in map: map[$patch:<nil>]"),
    ] {
        let error = run("core/v1.Pod", object.clone(), json!({"spec": spec})).unwrap_err();
        let found = match error {
            Error::Malformed(_) => 400,
            Error::Rejected(_) => 422,
            Error::TooLarge(_) => 413,
            Error::Unmergeable(_) => 500,
        };
        assert_eq!((found, error.to_string().as_str()), (code, text), "{spec}");
    }
}

#[test]
fn retain_keys_with_100000_fields_takes_linear_time() {
    // A quadratic comparison of 100,000 fields with 100,000 keys would take minutes.
    let names = || (0..100_000).map(|i| format!("k{i}"));
    let object: Value = json!({"data": names().map(|name| (name, json!("v"))).collect::<Fields>()});
    let mut patch: Fields = names().skip(50_000).map(|name| (name, json!("w"))).collect();
    patch.insert(RETAIN_KEYS.to_owned(), names().skip(50_000).map(Value::from).collect());
    let changed = run("core/v1.ConfigMap", object, json!({"data": patch})).unwrap();
    assert_eq!(changed["data"].as_object().unwrap().len(), 50_000);
}

#[test]
fn patch_that_merges_one_item_many_times_is_rejected() {
    let variables: Vec<Value> = (0..20_000).map(|i| json!({"name": i.to_string(), "value": "v"})).collect();
    let object = || json!({"spec": {"containers": [{"name": "c", "env": variables}]}});
    let repeated = |count: usize| {
        let items = vec![json!({"name": "c", "env": [{"name": "0", "value": "w"}]}); count];
        run("core/v1.Pod", object(), json!({"spec": {"containers": items}}))
    };
    assert!(matches!(repeated(60_000), Err(Error::TooLarge(_))));
    let merged = repeated(3).unwrap();
    assert_eq!(merged["spec"]["containers"][0]["env"][0]["value"], "w");
}

#[test]
fn replacement_with_nested_directives_is_taken_as_sent() {
    let mut patch = json!({"$patch": "replace", "values": vec![0; 300_000]});
    for _ in 0..90 {
        patch = json!({"$patch": "replace", "x": patch});
    }
    let nested = patch["x"].clone();
    let merged = run("core/v1.ConfigMap", json!({"x": {"x": {"old": 1}}, "y": 1}), patch).unwrap();
    assert_eq!(merged, json!({"x": nested}));
}
