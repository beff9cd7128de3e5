//! Hostile input: all patch types, managed fields and apply handle arbitrary bytes and trees without a panic.
//!
//! `CASES` sets the number of inputs of each test (default 2,000), `SEED` the first seed; a failure prints
//! its seed.

use apimachinery::codec::{Limits, json};
use apimachinery::object::{Map, Object, Value};
use apply::managers::{ManagedFields, is_reset};
use apply::server_side::Apply;
use apply::set::Set;
use apply::update::{ManagedWrite, OneVersion};
use apply::{json_patch, merge_patch, strategic};
use jiff::Timestamp;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use schema::Schema;
use serde_json::json;

fn cases(run: impl Fn(&mut SmallRng)) {
    let number = |name: &str, default: u64| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let first = number("SEED", 1);
    for seed in first..first + number("CASES", 2_000) {
        let one = std::panic::AssertUnwindSafe(|| run(&mut SmallRng::seed_from_u64(seed)));
        if let Err(failure) = std::panic::catch_unwind(one) {
            eprintln!("failed with SEED={seed}");
            std::panic::resume_unwind(failure);
        }
    }
}

/// Words with a meaning in patches or objects, and words without one.
const WORDS: [&str; 44] = [
    "apiVersion",
    "kind",
    "metadata",
    "name",
    "labels",
    "annotations",
    "finalizers",
    "managedFields",
    "manager",
    "operation",
    "Apply",
    "Update",
    "fieldsType",
    "FieldsV1",
    "fieldsV1",
    "time",
    "subresource",
    "spec",
    "status",
    "replicas",
    "template",
    "containers",
    "image",
    "ports",
    "containerPort",
    "protocol",
    "env",
    "value",
    "f:spec",
    "f:",
    "k:{\"name\":\"a\"}",
    "k:{",
    "v:1",
    "i:-1",
    ".",
    "$patch",
    "replace",
    "delete",
    "$retainKeys",
    "$setElementOrder/containers",
    "$deleteFromPrimitiveList/finalizers",
    "",
    "a\u{0}b",
    "é",
];

fn any_value(rng: &mut SmallRng, depth: u32) -> Value {
    match rng.random_range(0..if depth == 0 { 6 } else { 10 }) {
        0 => Value::Null,
        1 => json!(rng.random::<bool>()),
        2 => json!(rng.random_range(-2..70_000)),
        3 => json!(rng.random::<f64>()),
        4 | 5 => json!(WORDS.choose(rng).unwrap()),
        6 | 7 => (0..rng.random_range(0..4)).map(|_| any_value(rng, depth - 1)).collect(),
        _ => Value::Object(any_map(rng, depth - 1)),
    }
}

fn any_map(rng: &mut SmallRng, depth: u32) -> Map<String, Value> {
    (0..rng.random_range(0..5))
        .map(|_| ((*WORDS.choose(rng).unwrap()).to_owned(), any_value(rng, depth)))
        .collect()
}

/// A stored Deployment; in half of the cases one part is broken.
fn object(rng: &mut SmallRng) -> Object {
    let mut value = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "d", "labels": {"a": "1"}, "finalizers": ["x/a"], "managedFields": [
            {"manager": "m", "operation": "Apply", "apiVersion": "apps/v1", "fieldsType": "FieldsV1",
             "fieldsV1": {"f:spec": {"f:replicas": {}, "f:template": {"f:spec": {"f:containers": {"k:{\"name\":\"a\"}": {".": {}}}}}}}}]},
        "spec": {"replicas": 1, "template": {"spec": {"containers": [{"name": "a", "image": "a:1",
            "ports": [{"containerPort": 80, "protocol": "TCP"}], "env": [{"name": "E", "value": "1"}]}]}}},
    });
    if rng.random_ratio(1, 2) {
        break_somewhere(&mut value, rng);
    }
    Object::from_value(value).unwrap_or_default()
}

/// Replaces a random descendant by a random value.
fn break_somewhere(value: &mut Value, rng: &mut SmallRng) {
    let children: Vec<&mut Value> = match value {
        Value::Object(map) => map.values_mut().collect(),
        Value::Array(items) => items.iter_mut().collect(),
        _ => Vec::new(),
    };
    let count = children.len();
    match children.into_iter().nth(rng.random_range(0..=count)) {
        Some(child) if rng.random_ratio(4, 5) => break_somewhere(child, rng),
        Some(child) => *child = any_value(rng, 3),
        None => {}
    }
}

#[test]
fn random_json_patches_do_not_panic() {
    let pointers = [
        "",
        "/",
        "/spec",
        "/spec/replicas",
        "/spec/template/spec/containers/0",
        "/metadata/finalizers/-",
        "/metadata/finalizers/-1",
        "/metadata/finalizers/18446744073709551616",
        "/~2",
        "no",
        "/a~1b/~0",
    ];
    cases(|rng| {
        let mut operations = Vec::new();
        for _ in 0..rng.random_range(0..6) {
            let op = ["add", "remove", "replace", "move", "copy", "test", "no"].choose(rng).unwrap();
            let mut operation = json!({"op": op, "path": pointers.choose(rng).unwrap(), "from": pointers.choose(rng).unwrap(),
                "value": any_value(rng, 3)});
            if rng.random_ratio(1, 8) {
                break_somewhere(&mut operation, rng);
            }
            operations.push(operation);
        }
        if let Ok(operations) = json_patch::parse(json!(operations)) {
            let document = object(rng).into_value();
            let _ = json_patch::apply(&operations, document, rng.random(), Limits::BODY);
        }
    });
}

#[test]
fn random_merge_patches_do_not_panic() {
    let schema = Schema::of("apps/v1.Deployment").unwrap();
    cases(|rng| {
        let live = object(rng);
        let patch = if rng.random() { any_map(rng, 4) } else { object(rng).0 };
        let merged = merge_patch::apply(live.clone().into_value(), &Value::Object(patch.clone()));
        assert!(merged.is_object());
        if let Ok(merged) = strategic::apply(&schema.merge(), live.0, &patch) {
            assert!(!merged.contains_key("$patch"), "the result contains no directive: {merged:?}");
        }
    });
}

#[test]
fn random_managed_fields_and_applies_do_not_panic() {
    let schema = Schema::of("apps/v1.Deployment").unwrap();
    let merge = schema.merge();
    let versions = OneVersion { api_version: "apps/v1".to_owned(), merge: merge.clone() };
    let (ignored, empty) = (Set::default(), schema.empty());
    cases(|rng| {
        let mut live = object(rng);
        let mut patch = if rng.random() { Object(any_map(rng, 4)) } else { object(rng) };
        let write = ManagedWrite {
            manager: "m",
            api_version: "apps/v1",
            subresource: ["", "status"].choose(rng).unwrap(),
            now: Some(Timestamp::UNIX_EPOCH),
            merge: &merge,
            versions: &versions,
            ignored: &ignored,
            empty: &empty,
            reset_then_track: rng.random(),
        };
        // The server calls `conform` for stored objects and update bodies, but not for apply bodies.
        if rng.random_ratio(3, 4) {
            patch.remove_meta("managedFields");
        }
        if schema.conform(&mut live).is_ok() {
            // A stored object has normalized managed fields.
            ManagedFields::of(&live).write(&mut live);
            let apply = Apply { write, force: rng.random(), last_applied: None };
            if let Ok(applied) = apply.run(&live, &patch) {
                assert!(ManagedFields::decode(applied.object.at(&["metadata", "managedFields"])).is_some());
            }
            if schema.conform(&mut patch).is_ok() {
                let mut new = patch.clone();
                if apply.write.update(Some(&live), &mut new).is_ok() {
                    let mut again = new.clone();
                    apply.write.update(Some(&new), &mut again).unwrap();
                    assert_eq!(again, new, "a no-op write changes no owner");
                }
            }
        }
    });
}

#[test]
fn random_fieldsv1_sets_do_not_panic() {
    cases(|rng| {
        let value = any_value(rng, 4);
        let _ = is_reset(Some(&value));
        if let Ok(set) = Set::from_value(&value) {
            assert_eq!(Set::from_value(&set.to_value()), Ok(set));
        }
        let list = json!([any_value(rng, 3), any_value(rng, 3)]);
        if let Some(managed) = ManagedFields::decode(Some(&list)) {
            let mut object = Object::default();
            managed.clone().write(&mut object);
            assert!(ManagedFields::decode(object.at(&["metadata", "managedFields"])).is_some());
        }
    });
}

/// Large bodies of up to three megabytes: set names whose text order differs from their value order, and long
/// merged lists.
///
/// Every operation takes time in proportion to its size; otherwise the test would not finish.
#[test]
fn large_bodies_merge_in_linear_time() {
    let names: Vec<String> = (0..100_000).map(|i| format!("v:{}", i * 7919 % 100_003)).collect();
    let fields: Map<String, Value> = names.iter().map(|name| (name.clone(), json!({}))).collect();
    let set = Set::from_value(&json!({"f:metadata": {"f:finalizers": fields}})).unwrap();
    assert_eq!(set.len(), 100_000);

    let item = |i: u32, image: &str| json!({"name": format!("c{i}"), "image": image});
    let pod = |items: Vec<Value>| json!({"spec": {"template": {"spec": {"containers": items}}}});
    let live = pod((0..50_000).map(|i| item(i, "a")).collect());
    let patch = pod((25_000..75_000).rev().map(|i| item(i, "b")).collect());
    let schema = Schema::of("apps/v1.Deployment").unwrap();
    let (Value::Object(live), Value::Object(patch)) = (live, patch) else { panic!() };
    let merged = Value::Object(strategic::apply(&schema.merge(), live.clone(), &patch).unwrap());
    assert_eq!(merged["spec"]["template"]["spec"]["containers"].as_array().unwrap().len(), 75_000);
    let merged = Value::Object(apply::typed::merge(&schema.merge(), &live, &patch));
    assert_eq!(merged["spec"]["template"]["spec"]["containers"].as_array().unwrap().len(), 75_000);
    let compared = apply::typed::compare(&schema.merge(), &live, &patch);
    assert!(compared.added.len() >= 25_000 && compared.removed.len() >= 25_000);

    let deep = format!("{}{}", "{\"metadata\":".repeat(90), "1".to_owned() + &"}".repeat(90));
    let deep = json::decode(deep.as_bytes(), Limits::BODY).unwrap().value;
    assert!(Set::from_value(&deep).is_err());
}
