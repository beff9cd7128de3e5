//! Tests of server-side apply: merging, conflicts, force, shared and released ownership.

use jiff::Timestamp;
use schema::Schema;
use schema::merge::Merge;
use serde_json::{Value, json};

use super::*;
use crate::update::{ConversionError, OneVersion};

/// A stored object with minimal server logic: every write succeeds or conflicts.
struct Stored {
    merge: Merge,
    versions: OneVersion,
    empty: Object,
    ignored: Set,
    second: i64,
    object: Object,
}

const TOOL: LastApplied<'static> =
    LastApplied { annotation: "last-applied", manager: "kubectl", to_stored: &|_| {}, to_served: &|_| {} };

impl Stored {
    fn new(ty: &str) -> Self {
        let schema = Schema::of(ty).unwrap();
        let merge = schema.merge();
        let versions = OneVersion { api_version: "v1".to_owned(), merge: merge.clone() };
        let empty = schema.empty();
        Stored { merge, versions, object: empty.clone(), empty, ignored: Set::default(), second: 0 }
    }

    fn write<'a>(&'a self, manager: &'a str) -> ManagedWrite<'a> {
        ManagedWrite {
            manager,
            api_version: "v1",
            subresource: "",
            now: Some(Timestamp::from_second(self.second).unwrap()),
            merge: &self.merge,
            versions: &self.versions,
            ignored: &self.ignored,
            empty: &self.empty,
            reset_then_track: false,
        }
    }

    fn apply(&mut self, manager: &str, force: bool, patch: Value) -> Result<(), String> {
        self.second += 1;
        let patch = Object::from_value(patch).unwrap();
        let apply = Apply { write: self.write(manager), force, last_applied: Some(TOOL) };
        self.object = apply.run(&self.object, &patch).map_err(|error| error.to_string())?.object;
        Ok(())
    }

    fn replace(&mut self, manager: &str, new: Value) {
        self.second += 1;
        let mut new = Object::from_value(new).unwrap();
        self.write(manager).update(Some(&self.object), &mut new).unwrap();
        self.object = new;
    }

    fn owners(&self) -> Vec<(String, Value)> {
        let managed = ManagedFields::of(&self.object);
        let mut owners: Vec<(String, Value)> =
            managed.entries.iter().map(|entry| (entry.owner_text(), entry.fields.to_value())).collect();
        owners.sort_by(|(a, _), (b, _)| a.cmp(b));
        owners
    }

    fn data(&self) -> Value {
        self.object.get("data").cloned().unwrap_or_default()
    }
}

fn own(owner: &str, fields: Value) -> (String, Value) {
    (owner.to_owned(), fields)
}

#[test]
fn apply_conflict_message_lists_every_field_and_owner() {
    let mut stored = Stored::new("core/v1.ConfigMap");
    stored.apply("one", false, json!({"data": {"k": "v"}})).unwrap();
    stored.apply("two", false, json!({"data": {"k": "v"}})).unwrap();
    let mut with_more = stored.object.clone();
    with_more.set("data", json!({"k": "v", "l": "v"}));
    stored.replace("three", with_more.into_value());
    let before = stored.object.clone();
    assert_eq!(
        stored.apply("four", false, json!({"data": {"k": "w", "l": "w"}})),
        Err("Apply failed with 3 conflicts: conflicts with \"one\":\n- .data.k\nconflicts with \"three\" using v1:\n\
             - .data.l\nconflicts with \"two\":\n- .data.k"
            .to_owned())
    );
    assert_eq!(stored.object, before);
    assert_eq!(
        stored.apply("two", false, json!({"data": {"k": "w"}})),
        Err("Apply failed with 1 conflict: conflict with \"one\": .data.k".to_owned())
    );
    stored.apply("four", true, json!({"data": {"k": "w", "l": "w"}})).unwrap();
    assert_eq!(stored.owners(), [own("\"four\"", json!({"f:data": {"f:k": {}, "f:l": {}}}))]);
}

#[test]
fn shared_field_is_removed_when_last_applier_drops_it() {
    let mut stored = Stored::new("core/v1.ConfigMap");
    stored.apply("one", false, json!({"metadata": {"labels": {"l": "1"}}, "data": {"k": "v"}})).unwrap();
    stored.apply("two", false, json!({"data": {"k": "v"}})).unwrap();
    // A first apply without changes has no time.
    assert_eq!(ManagedFields::of(&stored.object).entries.iter().filter(|e| e.time.is_none()).count(), 1);
    stored.apply("one", false, json!({})).unwrap();
    assert_eq!((stored.data(), stored.object.label("l")), (json!({"k": "v"}), None));
    assert_eq!(stored.owners(), [own("\"two\"", json!({"f:data": {"f:k": {}}}))]);
    stored.apply("two", false, json!({})).unwrap();
    assert_eq!((stored.data(), stored.owners()), (Value::Null, vec![]));
}

#[test]
fn apply_keeps_fields_of_updaters_and_unowned_fields() {
    let mut stored = Stored::new("core/v1.ConfigMap");
    stored.apply("one", false, json!({"data": {"k": "v", "l": "w"}})).unwrap();
    let mut with_more = stored.object.clone();
    with_more.set("data", json!({"k": "v", "l": "w", "other": "x"}));
    stored.replace("two", with_more.into_value());
    stored.apply("one", false, json!({"data": {"k": "v"}})).unwrap();
    assert_eq!(stored.data(), json!({"k": "v", "other": "x"}));
    stored.apply("one", false, json!({})).unwrap();
    assert_eq!(stored.data(), json!({"other": "x"}));
    assert_eq!(stored.owners(), [own("\"two\" using v1", json!({"f:data": {"f:other": {}}}))]);
}

#[test]
fn apply_merges_lists_by_schema_list_type() {
    let mut stored = Stored::new("core/v1.Pod");
    let pod = |spec: Value| json!({"spec": spec});
    stored
        .apply("one", false, pod(json!({"containers": [{"name": "app", "image": "a", "args": ["x"],
            "ports": [{"containerPort": 53, "name": "tcp"}, {"containerPort": 53, "protocol": "UDP", "name": "udp"}]}]})))
        .unwrap();
    stored.apply("two", false, pod(json!({"containers": [{"name": "side", "image": "s"}]}))).unwrap();
    let spec = |stored: &Stored| stored.object.get("spec").unwrap()["containers"].clone();
    assert_eq!((&spec(&stored)[0]["name"], &spec(&stored)[1]["name"]), (&json!("app"), &json!("side")));
    for (patch, path) in [
        (json!({"name": "app", "args": ["y"]}), "args"),
        (
            json!({"name": "app", "ports": [{"containerPort": 53, "protocol": "TCP", "name": "z"}]}),
            "ports[containerPort=53,protocol=\"TCP\"].name",
        ),
    ] {
        assert_eq!(
            stored.apply("three", false, pod(json!({"containers": [patch]}))),
            Err(format!(
                "Apply failed with 1 conflict: conflict with \"one\": .spec.containers[name=\"app\"].{path}"
            ))
        );
    }
    stored
        .apply(
            "one",
            false,
            pod(json!({"containers": [{"name": "app", "image": "a",
            "ports": [{"containerPort": 53, "protocol": "UDP", "name": "udp"}]}]})),
        )
        .unwrap();
    assert_eq!(
        spec(&stored),
        json!([{"name": "app", "image": "a", "ports": [{"containerPort": 53, "protocol": "UDP", "name": "udp"}]},
               {"name": "side", "image": "s"}])
    );
}

/// A Deployment without the fields that each Deployment has.
fn deployment() -> Stored {
    Stored { object: Object::default(), empty: Object::default(), ..Stored::new("apps/v1.Deployment") }
}

/// A Deployment whose strategy has an unowned field, as a default.
fn with_unowned_field(stored: &mut Stored) {
    stored.object.part_mut("spec").insert("minReadySeconds".to_owned(), json!(5));
}

#[test]
fn applied_empty_map_stays_and_fields_around_it_too() {
    let strategy = |rolling: Value| json!({"spec": {"strategy": {"rollingUpdate": rolling}}});
    for (first, second, expected) in [
        (
            strategy(json!({"maxSurge": 1})),
            strategy(json!({})),
            json!({"minReadySeconds": 5, "strategy": {"rollingUpdate": {}}}),
        ),
        (
            strategy(json!({"maxSurge": 1})),
            strategy(Value::Null),
            json!({"minReadySeconds": 5, "strategy": {"rollingUpdate": null}}),
        ),
        (
            strategy(json!({"maxSurge": 1})),
            json!({"spec": {"strategy": {}}}),
            json!({"minReadySeconds": 5, "strategy": {}}),
        ),
        (strategy(json!({"maxSurge": 1})), json!({"spec": {}}), json!({"minReadySeconds": 5})),
        // Without an owner of the part, the part is gone with its unowned fields.
        (strategy(json!({"maxSurge": 1})), json!({}), Value::Null),
        (
            json!({"spec": {"replicas": 1}, "metadata": {"labels": {"a": "b"}}}),
            json!({"spec": {}, "metadata": {"labels": {"a": "b"}}}),
            json!({"minReadySeconds": 5}),
        ),
    ] {
        let mut stored = deployment();
        stored.apply("one", false, first.clone()).unwrap();
        with_unowned_field(&mut stored);
        stored.apply("one", false, second.clone()).unwrap();
        assert_eq!(stored.object.get("spec").unwrap_or(&Value::Null), &expected, "{first} {second}");
        let before = stored.object.clone();
        stored.apply("one", false, second).unwrap();
        assert_eq!(stored.object, before, "a repeated apply changes nothing");
    }
}

#[test]
fn empty_map_of_one_manager_stays_when_the_other_leaves() {
    let strategy = |rolling: Value| json!({"spec": {"strategy": {"rollingUpdate": rolling}}});
    for (second, third) in [
        (strategy(json!({})), json!({})),
        (strategy(json!({})), json!({"spec": {}})),
        (strategy(json!({})), strategy(json!({}))),
    ] {
        let mut stored = deployment();
        stored.apply("one", false, strategy(json!({"maxSurge": 1}))).unwrap();
        with_unowned_field(&mut stored);
        stored.apply("two", false, second).unwrap();
        stored.apply("one", false, third.clone()).unwrap();
        let expected = json!({"minReadySeconds": 5, "strategy": {"rollingUpdate": {}}});
        assert_eq!(stored.object.get("spec"), Some(&expected), "{third}");
    }
    // Beside a field of another manager, an applied empty map stays too.
    let mut stored = deployment();
    stored.apply("one", false, strategy(json!({"maxSurge": 1}))).unwrap();
    stored.apply("two", false, json!({"spec": {"replicas": 3}})).unwrap();
    stored.apply("one", false, strategy(json!({}))).unwrap();
    let expected = json!({"replicas": 3, "strategy": {"rollingUpdate": {}}});
    assert_eq!(stored.object.get("spec"), Some(&expected));
    // The last manager that leaves takes the map with it.
    stored.apply("one", false, json!({})).unwrap();
    assert_eq!(stored.object.get("spec"), Some(&json!({"replicas": 3})));
}

#[test]
fn ignored_fields_have_no_owner_after_apply() {
    let mut stored = Stored::new("apps/v1.Deployment");
    stored.ignored = Set::of(&[Element::field("status")]);
    stored.apply("one", false, json!({"spec": {"replicas": 1}, "status": {"replicas": 3}})).unwrap();
    assert_eq!(stored.owners(), [own("\"one\"", json!({"f:spec": {"f:replicas": {}}}))]);
}

#[test]
fn untracked_object_fields_belong_to_before_first_apply() {
    let mut stored = Stored::new("core/v1.ConfigMap");
    stored.object.set("data", json!({"k": "v", "old": "1"}));
    assert!(stored.apply("one", false, json!({"data": {"k": "w"}})).is_err());
    stored.apply("one", true, json!({"data": {"k": "w"}})).unwrap();
    assert_eq!(
        stored.owners(),
        [
            own("\"before-first-apply\" using v1", json!({"f:data": {".": {}, "f:old": {}}})),
            own("\"one\"", json!({"f:data": {"f:k": {}}})),
        ]
    );
}

#[test]
fn kubectl_server_side_apply_takes_over_client_side_applied_fields() {
    let last = r#"{"apiVersion":"v1","data":{"k":"v","old":"1"},"kind":"ConfigMap","metadata":{"name":"a"}}"#;
    let mut stored = Stored::new("core/v1.ConfigMap");
    let client_side = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "a", "annotations": {"last-applied": last}}, "data": {"k": "v", "old": "1"}});
    let mut created = Object::from_value(client_side).unwrap();
    stored.write("kubectl-client-side-apply").update(None, &mut created).unwrap();
    stored.object = created;
    let patch = |value: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": value}});
    assert!(stored.apply("other", false, patch("w")).is_err());
    stored.apply("kubectl", false, patch("<w>")).unwrap();
    assert_eq!(stored.data(), json!({"k": "<w>", "old": "1"}));
    assert_eq!(
        stored.object.annotation("last-applied"),
        Some(
            "{\"apiVersion\":\"v1\",\"data\":{\"k\":\"\\u003cw\\u003e\"},\"kind\":\"ConfigMap\",\
             \"metadata\":{\"name\":\"a\"}}\n"
        )
    );
    assert!(stored.apply("other", false, patch("y")).is_err());
}

#[test]
fn invalid_apply_body_is_rejected() {
    let mut stored = Stored::new("core/v1.ConfigMap");
    for (patch, expected) in [
        (json!({"metadata": {"managedFields": []}}), "metadata.managedFields must be nil"),
        (json!({"dta": {}}), ".dta: field not declared in schema"),
    ] {
        assert_eq!(stored.apply("one", false, patch), Err(expected.to_owned()));
    }
}

#[test]
fn apply_conflict_status_has_one_cause_per_field() {
    let path = vec![Element::field("data"), Element::field("k")];
    let first = vec![Conflict { owner: "\"one\"".to_owned(), path }];
    let status = conflict_status(&Conflicts { first, count: 1 });
    let value = status.to_value();
    assert_eq!((status.code, &value["reason"]), (409, &json!("Conflict")));
    assert_eq!(
        value["details"],
        json!({"causes": [{"reason": "FieldManagerConflict", "message": "conflict with \"one\"", "field": ".data.k"}]})
    );
}

#[test]
fn apply_handles_stored_lists_with_duplicate_keys() {
    let mut stored = Stored::new("core/v1.Pod");
    let pod = |env: Value| json!({"spec": {"containers": [{"name": "main", "env": env}]}});
    let twice = json!([{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]);
    let mut created = Object::from_value(pod(twice)).unwrap();
    stored.write("tool").update(None, &mut created).unwrap();
    stored.object = created;
    stored.apply("one", false, pod(json!([{"name": "B", "value": "3"}]))).unwrap();
    let env = |stored: &Stored| stored.object.get("spec").unwrap()["containers"][0]["env"].clone();
    assert_eq!(
        env(&stored),
        json!([{"name": "A", "value": "1"}, {"name": "A", "value": "2"}, {"name": "B", "value": "3"}])
    );
    assert!(stored.apply("one", false, pod(json!([{"name": "A", "value": "3"}]))).is_err());
    stored.apply("one", true, pod(json!([{"name": "A", "value": "3"}]))).unwrap();
    assert_eq!(env(&stored), json!([{"name": "A", "value": "3"}]));
}

/// A kind whose field `replicas` of `v1` is `size` in `v2`; other versions are not served.
struct RenamedFieldKind([Merge; 2]);

impl RenamedFieldKind {
    fn new() -> Self {
        RenamedFieldKind(["replicas", "size"].map(|name| {
            let field = |name: &str, ty: Merge| schema::merge::MergeField {
                name: name.to_owned(),
                ty,
                patch: schema::merge::Patch::default(),
            };
            let number = Merge::Scalar(schema::merge::Scalar::Number);
            let fields = vec![
                field("metadata", Merge::Untyped { atomic: true }),
                field("apiVersion", Merge::Scalar(schema::merge::Scalar::String)),
                field(name, number.clone()),
                field("other", number),
            ];
            let ty = schema::merge::StructType::new(fields, false, None);
            Merge::Struct(schema::merge::StructRef::own(std::sync::Arc::new(ty)))
        }))
    }
}

impl crate::update::Versions for RenamedFieldKind {
    fn merge(&self, api_version: &str) -> Option<&Merge> {
        match api_version {
            "v1" => Some(&self.0[0]),
            "v2" => Some(&self.0[1]),
            _ => None,
        }
    }

    fn convert(&self, object: &Object, to: &str) -> Result<Object, ConversionError> {
        let mut object = object.clone();
        let value = object.remove("replicas").or_else(|| object.remove("size"));
        if let Some(value) = value {
            object.set(if to == "v1" { "replicas" } else { "size" }, value);
        }
        object.set("apiVersion", to);
        Ok(object)
    }
}

#[test]
fn apply_converts_ownership_between_api_versions() {
    let versions = RenamedFieldKind::new();
    let run = |live: &Object, manager: &str, version: &str, patch: Value| {
        let write = ManagedWrite {
            manager,
            api_version: version,
            subresource: "",
            now: Some(Timestamp::from_second(1).unwrap()),
            merge: crate::update::Versions::merge(&versions, version).unwrap(),
            versions: &versions,
            ignored: &Set::default(),
            empty: &Object::default(),
            reset_then_track: false,
        };
        let live = crate::update::Versions::convert(&versions, live, version).unwrap();
        let patch = Object::from_value(patch).unwrap();
        (Apply { write, force: false, last_applied: None }).run(&live, &patch).map(|applied| applied.object)
    };
    let first = run(&Object::default(), "one", "v1", json!({"replicas": 1, "other": 1})).unwrap();
    assert_eq!(
        run(&first, "two", "v2", json!({"size": 2})).unwrap_err().to_string(),
        "Apply failed with 1 conflict: conflict with \"one\": .replicas"
    );
    // An applier has one entry, in the version of its last apply; released fields are removed in that
    // version.
    let second = run(&first, "one", "v2", json!({"size": 1})).unwrap();
    assert_eq!((second.get("size"), second.get("other")), (Some(&json!(1)), None));
    let managed = ManagedFields::of(&second);
    assert_eq!((managed.entries.len(), managed.entries[0].api_version.as_str()), (1, "v2"));
    assert_eq!(managed.entries[0].fields.to_value(), json!({"f:size": {}}));

    // Fields owned in a removed version have no owner.
    let mut gone = second;
    gone.meta_mut()["managedFields"][0]["apiVersion"] = json!("v0");
    let third = run(&gone, "two", "v2", json!({"size": 2})).unwrap();
    assert_eq!(
        ManagedFields::of(&third).entries.iter().map(|e| e.manager.as_str()).collect::<Vec<_>>(),
        ["two"]
    );
}
