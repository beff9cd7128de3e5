//! Property test: pruning, defaults and validation agree with a slow, simple model on random schemas and
//! objects. Ratcheting never tolerates an error in a changed value.
//!
//! The model reads the JSON of the schema on each visit and knows no optimisation. `SEED` selects one run.

use std::collections::BTreeSet;

use apimachinery::field::{FieldErrors, FieldPath};
use apimachinery::object::{Map, Object};
use extensions::structural::Schema;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";
const LIST_TYPE: &str = "x-kubernetes-list-type";

fn no_metadata_rules(_: &Map<String, Value>, _: &FieldPath) -> FieldErrors {
    FieldErrors::new()
}

/// A random schema of at most `depth` levels.
fn schema(rng: &mut SmallRng, depth: u32) -> Value {
    let kind = rng.random_range(0..if depth == 0 { 5 } else { 8 });
    let mut schema = match kind {
        0 => {
            json!({"type": "string", "maxLength": rng.random_range(0..4), "minLength": rng.random_range(0..2)})
        }
        1 => {
            json!({"type": "integer", "minimum": rng.random_range(-1..2), "maximum": rng.random_range(1..4)})
        }
        2 => json!({"type": "boolean"}),
        3 => json!({"x-kubernetes-int-or-string": true}),
        4 => json!({"type": "string", "enum": ["a", "b"]}),
        5 => {
            let list = ["", "atomic", "set"][rng.random_range(0..3)];
            let mut array = json!({"type": "array", "items": schema(rng, depth - 1), "maxItems": 3});
            if !list.is_empty() {
                array[LIST_TYPE] = json!(list);
            }
            array
        }
        6 => json!({"type": "object", "additionalProperties": schema(rng, depth - 1), "minProperties": 1}),
        _ => {
            let mut properties = Map::new();
            for name in ["a", "b", "c"] {
                if rng.random_bool(0.7) {
                    properties.insert(name.to_owned(), schema(rng, depth - 1));
                }
            }
            let mut object = json!({"type": "object", "properties": properties});
            if rng.random_bool(0.3) {
                object["required"] = json!(["a"]);
            }
            if rng.random_bool(0.2) {
                object[PRESERVE] = json!(true);
            }
            object
        }
    };
    if rng.random_bool(0.2) {
        schema["nullable"] = json!(true);
    }
    if rng.random_bool(0.25) {
        schema["default"] = match kind {
            0 | 4 => json!("a"),
            1 | 3 => json!(1),
            2 => json!(true),
            5 => json!([]),
            _ => json!({}),
        };
    }
    schema
}

/// A random value that often conforms to a schema.
fn value(rng: &mut SmallRng, schema: &Value, depth: u32) -> Value {
    if rng.random_bool(0.08) {
        return [json!(null), json!(1), json!("x"), json!({"a": {"z": 1}}), json!([{"a": 1}])]
            [rng.random_range(0..5)]
        .clone();
    }
    match schema["type"].as_str() {
        Some("string") => json!(["", "a", "b", "long"][rng.random_range(0..4)]),
        Some("integer") => json!(rng.random_range(-2..5)),
        Some("boolean") => json!(rng.random_bool(0.5)),
        Some("array") => {
            let length = rng.random_range(0..5);
            (0..length).map(|_| value(rng, &schema["items"], depth)).collect()
        }
        Some("object") => {
            let mut fields = Map::new();
            for name in ["a", "b", "c", "d"] {
                if rng.random_bool(0.5) {
                    let part = schema["properties"].get(name).or_else(|| schema.get("additionalProperties"));
                    let undeclared = || json!({"x": [{"y": 1}]});
                    let part = part.map_or_else(undeclared, |part| value(rng, part, depth.saturating_sub(1)));
                    fields.insert(name.to_owned(), part);
                }
            }
            Value::Object(fields)
        }
        _ => [json!(3), json!("3")][rng.random_range(0..2)].clone(),
    }
}

fn is_set(schema: &Value, keyword: &str) -> bool {
    schema[keyword].as_bool() == Some(true)
}

fn part<'a>(schema: &'a Value, name: &str) -> Option<&'a Value> {
    schema["properties"].get(name).or_else(|| schema.get("additionalProperties"))
}

/// Model of pruning: drops each field without a schema, unless its object preserves unknown fields.
fn prune(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            let names: Vec<String> = fields.keys().cloned().collect();
            for name in names {
                match part(schema, &name) {
                    Some(part) => prune(part, fields.get_mut(&name).unwrap()),
                    None if is_set(schema, PRESERVE) => {}
                    None => drop(fields.remove(&name)),
                }
            }
        }
        Value::Array(items) => {
            let none = json!({});
            let part =
                if is_set(schema, PRESERVE) { None } else { Some(schema.get("items").unwrap_or(&none)) };
            if let Some(part) = part {
                items.iter_mut().for_each(|item| prune_item(part, schema.get("items").is_some(), item));
            }
        }
        _ => {}
    }
}

/// Items of a list without an item schema lose all fields.
fn prune_item(part: &Value, has_schema: bool, item: &mut Value) {
    match item {
        Value::Object(fields) if !has_schema => fields.clear(),
        item => prune(part, item),
    }
}

/// Model of null removal and defaults.
fn default(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            let names: Vec<String> = fields.keys().cloned().collect();
            for name in names {
                let Some(part) = part(schema, &name) else { continue };
                if fields[&name].is_null() && !is_set(part, "nullable") {
                    match part.get("default") {
                        Some(default) => drop(fields.insert(name.clone(), default.clone())),
                        None => drop(fields.remove(&name)),
                    }
                }
            }
            for (name, part) in schema["properties"].as_object().into_iter().flatten() {
                if let (None, Some(default)) = (fields.get(name), part.get("default")) {
                    fields.insert(name.clone(), default.clone());
                }
            }
            for (name, value) in fields.iter_mut() {
                if let Some(part) = part(schema, name) {
                    default(part, value);
                }
            }
        }
        Value::Array(items) => {
            let Some(part) = schema.get("items") else { return };
            for item in items {
                if let (true, false, Some(default)) =
                    (item.is_null(), is_set(part, "nullable"), part.get("default"))
                {
                    *item = default.clone();
                }
                default(part, item);
            }
        }
        _ => {}
    }
}

/// Model of validation: the paths of all errors.
fn errors(schema: &Value, value: &Value, path: &str, found: &mut BTreeSet<String>) {
    let child = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    let has_valid_type = match (schema["type"].as_str(), value) {
        (_, Value::Null) => is_set(schema, "nullable"),
        (Some("string"), Value::String(_))
        | (Some("integer"), Value::Number(_))
        | (Some("boolean"), Value::Bool(_))
        | (Some("array"), Value::Array(_))
        | (Some("object"), Value::Object(_)) => true,
        (None, Value::String(_) | Value::Number(_)) => is_set(schema, "x-kubernetes-int-or-string"),
        _ => false,
    };
    let limit = |keyword: &str| schema[keyword].as_i64();
    let listed = |allowed: &Vec<Value>| allowed.contains(value);
    let within = |size: i64, min: &str, max: &str| {
        limit(min).is_none_or(|min| size >= min) && limit(max).is_none_or(|max| size <= max)
    };
    let is_within = match value {
        Value::Null => true,
        Value::String(text) => within(text.chars().count() as i64, "minLength", "maxLength"),
        Value::Number(number) => within(number.as_i64().unwrap(), "minimum", "maximum"),
        Value::Array(items) => within(items.len() as i64, "minItems", "maxItems"),
        Value::Object(fields) => within(fields.len() as i64, "minProperties", "maxProperties"),
        Value::Bool(_) => true,
    };
    if !has_valid_type || !is_within || !schema["enum"].as_array().is_none_or(listed) {
        found.insert(path.to_owned());
    }
    match value {
        Value::Object(fields) if is_within => {
            for (name, value) in fields {
                if let Some(part) = part(schema, name) {
                    errors(part, value, &child(name), found);
                }
            }
            for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                if !fields.contains_key(name) {
                    found.insert(child(name));
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                if let Some(part) = schema.get("items") {
                    errors(part, item, &format!("{path}[{index}]"), found);
                }
            }
        }
        _ => {}
    }
}

/// Model of set lists: the paths of the second occurrences of items.
fn duplicates(schema: &Value, value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                if let Some(part) = part(schema, name) {
                    let path = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
                    duplicates(part, value, &path, found);
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                let path = format!("{path}[{index}]");
                if let Some(part) = schema.get("items") {
                    duplicates(part, item, &path, found);
                }
                if schema[LIST_TYPE] == "set"
                    && items[..index].iter().filter(|other| *other == item).count() == 1
                {
                    found.insert(path);
                }
            }
        }
        _ => {}
    }
}

/// Paths of errors, with map keys written as fields.
fn paths(errors: &FieldErrors) -> BTreeSet<String> {
    errors
        .iter()
        .map(|error| {
            error
                .path
                .as_str()
                .replace("[a]", ".a")
                .replace("[b]", ".b")
                .replace("[c]", ".c")
                .replace("[d]", ".d")
        })
        .collect()
}

/// Runs one seed. Returns whether the object has errors.
fn run(seed: u64) -> bool {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut spec = schema(&mut rng, 3);
    spec.as_object_mut().unwrap().remove("nullable");
    let root = json!({"type": "object", "properties": {"spec": spec}});
    let compiled = Schema::compile(&root).unwrap();
    let make = |rng: &mut SmallRng| {
        let spec = value(rng, &root["properties"]["spec"], 3);
        let object =
            json!({"apiVersion": "g.example/v1", "kind": "K", "metadata": {"name": "n"}, "spec": spec});
        let mut model = json!({"spec": object["spec"]});
        prune(&root, &mut model);
        let mut pruned = Object::from_value(object.clone()).unwrap();
        compiled.prune(&mut pruned);
        assert_eq!(pruned.get("spec"), model.get("spec"), "seed {seed}: prune {object} by {root}");
        default(&root, &mut model);
        let mut conformed = Object::from_value(object.clone()).unwrap();
        compiled.conform(&mut conformed).unwrap();
        compiled.default(&mut conformed).unwrap();
        assert_eq!(conformed.get("spec"), model.get("spec"), "seed {seed}: defaults of {object} by {root}");
        let again = conformed.clone();
        compiled.conform(&mut conformed).unwrap();
        compiled.default(&mut conformed).unwrap();
        assert_eq!(conformed, again, "seed {seed}: conforming twice");
        (conformed, model)
    };
    let (new, model) = make(&mut rng);
    let mut expected = BTreeSet::new();
    errors(&root, &model, "", &mut expected);
    duplicates(&root, &model, "", &mut expected);
    let found = compiled.validate(&new, None, FieldErrors::new(), &no_metadata_rules);
    if expected.len() < 100 {
        assert_eq!(paths(&found.errors), expected, "seed {seed}: {model} by {root}");
    }
    // Validation of an update: a copy with a few changes.
    let (other, _) = make(&mut rng);
    for old in [&new, &other] {
        let update = compiled.validate(&new, Some(old), FieldErrors::new(), &no_metadata_rules);
        let reported = paths(&update.errors);
        for path in expected.difference(&reported) {
            assert!(is_unchanged(&new, old, path, &root), "seed {seed}: {path} of {model} by {root}");
        }
        if std::ptr::eq(old, &raw const new) {
            assert!(
                is_preserving(&root) || reported.is_empty(),
                "seed {seed}: {reported:?} of {model} by {root}"
            );
        }
    }
    !expected.is_empty()
}

/// Whether some part of the schema preserves unknown fields; then unchanged parts may differ.
fn is_preserving(schema: &Value) -> bool {
    schema.to_string().contains(PRESERVE)
}

/// Whether the value at a path, or a part of the object that contains it, equals its old value.
/// Duplicates are also tolerated if the old object has duplicates.
fn is_unchanged(new: &Object, old: &Object, path: &str, root: &Value) -> bool {
    let pointer = format!("/{}", path.replace(['.', '['], "/").replace(']', ""));
    let (new, old) = (new.clone().into_value(), old.clone().into_value());
    let mut prefix = pointer.as_str();
    loop {
        if prefix != "/"
            && !prefix.is_empty()
            && new.pointer(prefix).is_some()
            && new.pointer(prefix) == old.pointer(prefix)
        {
            return true;
        }
        match prefix.rsplit_once('/') {
            Some((shorter, _)) if !shorter.is_empty() => prefix = shorter,
            _ => break,
        }
    }
    let mut in_old = BTreeSet::new();
    duplicates(root, &old, "", &mut in_old);
    !in_old.is_empty()
}

#[test]
fn structural_schemas_agree_with_model() {
    match std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => {
            run(seed);
        }
        None => {
            let with_errors = (0..10_000).filter(|seed| run(*seed)).count();
            assert!((1_000..9_000).contains(&with_errors), "{with_errors} objects have errors");
        }
    }
}
