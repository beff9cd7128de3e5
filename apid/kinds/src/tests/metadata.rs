//! Tests of the metadata rules and their error messages.

use apimachinery::clock::{ManualClock, SeededRng};
use apimachinery::names::Preset;
use serde_json::json;

use super::*;

const RULES: Rules<'static> = Rules {
    name: NameRule::Subdomain,
    namespaced: true,
    standard_finalizers: Some(["kubernetes", ORPHAN, FOREGROUND]),
};

fn object(metadata: Value) -> Object {
    Object::from_value(json!({ "metadata": metadata })).unwrap()
}

/// An object with valid metadata, except for the given fields.
fn object_with(mut metadata: Value) -> Object {
    for (field, value) in [("name", "x"), ("namespace", "team")] {
        let map = metadata.as_object_mut().unwrap();
        map.entry(field).or_insert_with(|| value.into());
    }
    object(metadata)
}

fn texts(errors: &[FieldError]) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

#[test]
fn invalid_metadata_returns_field_errors() {
    let annotations = |bytes: usize| json!({"annotations": {"a": "x".repeat(bytes - 1)}});
    for (metadata, errors) in [
        (json!({}), vec![]),
        (json!({"name": ""}), vec!["metadata.name: Required value: name or generateName is required"]),
        (json!({"namespace": ""}), vec!["metadata.namespace: Required value"]),
        (
            json!({"generation": -1}),
            vec!["metadata.generation: Invalid value: -1: must be greater than or equal to 0"],
        ),
        (annotations(256 * 1024), vec![]),
        (
            annotations(256 * 1024 + 1),
            vec!["metadata.annotations: Too long: may not be more than 262144 bytes"],
        ),
        (json!({"annotations": {"UPPER.example.com/x": "anything\n"}}), vec![]),
        (json!({"finalizers": ["example.com/a", "kubernetes", "orphan"]}), vec![]),
        (
            json!({"finalizers": ["a.b/c", "unqualified"]}),
            vec![
                "metadata.finalizers[1]: Invalid value: \"unqualified\": name is neither a standard finalizer name nor is it fully qualified",
            ],
        ),
        (
            json!({"finalizers": ["orphan", "foregroundDeletion"]}),
            vec![
                "metadata.finalizers: Invalid value: [\"orphan\",\"foregroundDeletion\"]: finalizer orphan and foregroundDeletion cannot be both set",
            ],
        ),
        (
            json!({"ownerReferences": [
                {"apiVersion": "v1", "kind": "Pod", "name": "", "uid": ""}, {"apiVersion": "a/b/c", "kind": "", "name": "x", "uid": "u"},
            ]}),
            vec![
                "metadata.ownerReferences.name: Invalid value: \"\": must not be empty",
                "metadata.ownerReferences.uid: Invalid value: \"\": must not be empty",
                "metadata.ownerReferences.apiVersion: Invalid value: \"a/b/c\": version must not be empty",
                "metadata.ownerReferences.kind: Invalid value: \"\": must not be empty",
            ],
        ),
        (
            json!({"ownerReferences": [{"apiVersion": "v1", "kind": "Event", "name": "e", "uid": "1"}]}),
            vec![
                "metadata.ownerReferences: Invalid value: {\"apiVersion\":\"v1\",\"kind\":\"Event\",\"name\":\"e\",\"uid\":\"1\"}: /v1, Kind=Event is disallowed from being an owner",
            ],
        ),
        (
            json!({"ownerReferences": [
                {"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "1", "controller": true},
                {"apiVersion": "v1", "kind": "Pod", "name": "b", "uid": "2", "blockOwnerDeletion": false, "controller": true},
            ]}),
            vec![
                "metadata.ownerReferences: Invalid value: [{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"name\":\"a\",\"uid\":\"1\",\"controller\":true},{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"name\":\"b\",\"uid\":\"2\",\"controller\":true,\"blockOwnerDeletion\":false}]: Only one reference can have Controller set to true. Found \"true\" in references for Pod/a and Pod/b",
            ],
        ),
    ] {
        assert_eq!(texts(&validate(&object_with(metadata.clone()), RULES)), errors, "{metadata}");
    }
    let name_errors = validate(&object_with(json!({"generateName": "Oops_", "name": "Oops_abcde"})), RULES);
    assert_eq!(
        name_errors.iter().map(|e| e.path.as_str()).collect::<Vec<_>>(),
        ["metadata.generateName", "metadata.name"]
    );
    let cluster = Rules { namespaced: false, ..RULES };
    assert_eq!(
        texts(&validate(&object_with(json!({})), cluster)),
        ["metadata.namespace: Forbidden: not allowed on this type"]
    );
    let general = Rules { standard_finalizers: None, ..RULES };
    assert_eq!(texts(&validate(&object_with(json!({"finalizers": ["unqualified"]})), general)), [""; 0]);
}

#[test]
fn update_of_immutable_metadata_is_rejected() {
    const TIME: &str = "2024-01-02T03:04:05Z";
    for (old, new, errors) in [
        (json!({}), json!({"labels": {"a": "b"}, "finalizers": ["a.b/c"]}), vec![]),
        (
            json!({"uid": "u"}),
            json!({"uid": "v"}),
            vec!["metadata.uid: Invalid value: \"v\": field is immutable"],
        ),
        (
            json!({}),
            json!({"deletionTimestamp": TIME}),
            vec!["metadata.deletionTimestamp: Invalid value: \"2024-01-02T03:04:05Z\": field is immutable"],
        ),
        (
            json!({"creationTimestamp": TIME}),
            json!({}),
            vec!["metadata.creationTimestamp: Invalid value: \"null\": field is immutable"],
        ),
        (
            json!({"generation": 2}),
            json!({"generation": 1}),
            vec!["metadata.generation: Invalid value: 1: must not be decremented"],
        ),
        (
            json!({"deletionTimestamp": TIME, "finalizers": ["a.b/a", "a.b/b"]}),
            json!({"deletionTimestamp": TIME, "finalizers": ["a.b/z", "a.b/b", "a.b/c"]}),
            vec![
                "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{\"a.b/c\", \"a.b/z\"}",
            ],
        ),
        (
            json!({"deletionTimestamp": TIME, "finalizers": ["a.b/a", "a.b/b"]}),
            json!({"deletionTimestamp": TIME, "finalizers": ["a.b/b", "a.b/a"]}),
            vec![],
        ),
    ] {
        assert_eq!(
            texts(&validate_update(&object_with(new.clone()), &object_with(old.clone()))),
            errors,
            "{old} to {new}"
        );
    }
}

#[test]
fn server_sets_metadata_fields() {
    let names = Names::new(Preset::Svc, "example.test").unwrap();
    let clock = ManualClock::at(time::parse("2024-01-02T03:04:05Z").unwrap());
    let rng = SeededRng::new(3);
    let ctx = Context { names: &names, clock: &clock, rng: &rng, subresource: "" };
    let mut new = object(json!({
        "generateName": "web-", "uid": "mine", "creationTimestamp": "2001-01-01T00:00:00Z", "selfLink": "/x", "resourceVersion": "0",
        "deletionTimestamp": "2001-01-01T00:00:00Z", "deletionGracePeriodSeconds": 5, "generation": 7,
    }));
    let uid = "0a5a0a5a-0000-4000-8000-000000000001";
    prepare_create(&mut new, "team", uid, &ctx);
    assert_eq!(
        new,
        object(json!({
            "generateName": "web-", "uid": uid, "creationTimestamp": "2024-01-02T03:04:05Z", "namespace": "team", "generation": 7,
        }))
    );
    assert!(generate_name(&mut new, &rng));
    assert!(new.name().starts_with("web-") && new.name().len() == 9, "{}", new.name());
    assert!(!generate_name(&mut object(json!({})), &rng));

    let mut old = object(
        json!({"name": "x", "uid": "u", "creationTimestamp": "2024-01-02T03:04:05Z", "generation": 3}),
    );
    let mut update =
        object(json!({"name": "x", "generation": 9, "creationTimestamp": "2001-01-01T00:00:00Z"}));
    prepare_update(&mut update, &old);
    assert_eq!(update, old);
    old.set_meta("deletionTimestamp", "2024-01-02T03:04:06Z");
    old.set_meta("deletionGracePeriodSeconds", 0);
    prepare_update(&mut update, &old);
    assert_eq!(update, old, "an update keeps the fields that the deletion set");
}

#[test]
fn long_generate_name_is_truncated_at_character_boundary() {
    let rng = SeededRng::new(4);
    for prefix in ["g".repeat(200), format!("{}é", "g".repeat(57)), "ü".repeat(40)] {
        let mut long = object(json!({ "generateName": prefix }));
        generate_name(&mut long, &rng);
        assert!(long.name().len() <= 63 && long.name().len() >= 62, "{}", long.name());
        assert_eq!(long.meta_str("generateName"), prefix);
    }
}

#[test]
fn duplicate_owner_reference_is_removed() {
    let owner = |uid: &str, controller: bool| json!({"uid": uid, "name": "o", "controller": controller});
    let owners = json!([owner("a", false), owner("b", false), owner("a", false), owner("a", true)]);
    let mut object = object(json!({"name": "x", "ownerReferences": owners}));
    assert_eq!(remove_duplicate_owners(&mut object), ["a"]);
    let remaining = object.meta().unwrap().get("ownerReferences").unwrap();
    assert_eq!(*remaining, json!([owner("a", false), owner("b", false), owner("a", true)]));
}
