//! Table tests of structural schemas: the files of `testdata/structural`.
//!
//! A file has groups with a schema for `spec` (or `root` for the whole object) and rows. A row has the new
//! `spec` (or `object`), optionally the old one, and expectations: `unknown` fields, `stored` content after
//! conforming and defaults, `causes` and `warnings` of validation. A missing `causes` means none. A group of
//! definitions has `rules` instead: the causes of its rules.

use std::collections::BTreeSet;
use std::path::Path;

use apimachinery::codec::{DecodeError, Limits};
use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::names::{DEFAULT_API_DOMAIN, Names, Preset};
use apimachinery::object::{Map, Object};
use serde_json::{Value, json};

use super::{Schema, StoredRules};

fn names() -> Names {
    Names::new(Preset::Kubernetes, DEFAULT_API_DOMAIN).unwrap()
}

/// Replaces the rules of metadata, which are in another crate: a name must not contain an underscore.
fn metadata_rules(metadata: &Map<String, Value>, path: &FieldPath) -> FieldErrors {
    let name = metadata.get("name").and_then(Value::as_str).unwrap_or_default();
    let error =
        name.contains('_').then(|| FieldError::invalid(&path.child("name"), name, "has an underscore"));
    error.into_iter().collect()
}

fn texts(errors: &FieldErrors) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

fn expected(row: &Value, name: &str) -> Vec<String> {
    let list = row[name].as_array().into_iter().flatten();
    list.map(|text| text.as_str().unwrap().to_owned()).collect()
}

/// The object of a row: under `object_key` as a whole, or under `spec_key` its `spec` only.
fn object_from_row(row: &Value, object_key: &str, spec_key: &str) -> Option<Object> {
    let value = match (row.get(object_key), row.get(spec_key)) {
        (Some(object), _) => object.clone(),
        (None, Some(spec)) => {
            json!({"apiVersion": "g.example/v1", "kind": "Widget", "metadata": {"name": "a"}, "spec": spec})
        }
        (None, None) => return None,
    };
    Object::from_value(value).ok()
}

/// Runs one row; returns the differences.
fn run(schema: &Schema, row: &Value) -> Vec<String> {
    let mut differences = Vec::new();
    let mut new = object_from_row(row, "object", "spec").unwrap();
    let unknown = match schema.conform(&mut new) {
        Ok(report) => report.unknown,
        Err(error) => {
            if row["error"].as_str() != Some(&error.message) {
                differences.push(format!("error {error}"));
            }
            return differences;
        }
    };
    schema.default(&mut new).unwrap();
    if row.get("unknown").is_some() && unknown != expected(row, "unknown") {
        differences.push(format!("unknown {unknown:?}"));
    }
    let stored = if row.get("object").is_some() { json!(new.0) } else { json!(new.get("spec")) };
    if row.get("stored").is_some_and(|content| *content != stored) {
        differences.push(format!("stored {stored}"));
    }
    let old = object_from_row(row, "old_object", "old");
    let validation = match (&old, row["subresource"].as_str()) {
        (Some(old), Some("status")) => schema.validate_status(&new, old, FieldErrors::new()),
        (old, _) => schema.validate(&new, old.as_ref(), FieldErrors::new(), &metadata_rules),
    };
    if texts(&validation.errors) != expected(row, "causes") {
        differences.push(format!("causes {:#?}", texts(&validation.errors)));
    }
    if validation.warnings != expected(row, "warnings") {
        differences.push(format!("warnings {:?}", validation.warnings));
    }
    differences
}

fn check(file: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/structural").join(format!("{file}.json"));
    let table: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut differences = Vec::new();
    for group in table["groups"].as_array().unwrap() {
        let root = group
            .get("root")
            .cloned()
            .unwrap_or_else(|| json!({"type": "object", "properties": {"spec": group["schema"]}}));
        let schema = Schema::compile(&root).unwrap();
        for row in group["rows"].as_array().into_iter().flatten() {
            let row_differences = run(&schema, row);
            if !row_differences.is_empty() {
                differences.push(format!("{row}\n   {}", row_differences.join("\n   ")));
            }
        }
        if group.get("rules").is_some() {
            let path = FieldPath::new("schema");
            let causes = texts(&schema.check_rules(&path, &StoredRules::default(), &names(), &|_| false));
            if causes != expected(group, "rules") {
                differences.push(format!("{root}\n   rules {causes:#?}"));
            }
        }
    }
    assert!(differences.is_empty(), "{file}:\n{}", differences.join("\n"));
}

#[test]
fn unknown_fields_are_pruned() {
    check("pruning");
}

#[test]
fn defaults_and_nulls_match_table() {
    check("defaults");
}

#[test]
fn invalid_values_have_causes() {
    check("values");
}

#[test]
fn string_formats_match_table() {
    check("formats");
}

#[test]
fn schema_combinations_match_table() {
    check("combinations");
}

#[test]
fn duplicate_list_items_have_causes() {
    check("lists");
}

#[test]
fn embedded_objects_are_validated() {
    check("embedded");
}

#[test]
fn unchanged_invalid_values_are_tolerated() {
    check("ratcheting");
}

#[test]
fn rules_on_objects_have_causes() {
    check("rules");
}

#[test]
fn invalid_rules_of_definitions_return_causes() {
    check("definitions");
}

#[test]
fn every_table_has_a_test() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/structural");
    let files: BTreeSet<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    let source = include_str!("tests.rs");
    for file in files {
        assert!(source.contains(&format!("check(\"{file}\")")), "{file}");
    }
}

#[test]
fn stored_object_with_malformed_metadata_loses_the_field() {
    let root = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"n": {"type": "integer", "default": 1}}}}});
    let schema = Schema::compile(&root).unwrap();
    let stored = json!({"kind": "K", "metadata": {"name": "a", "labels": 7, "other": 1}, "spec": {"x": 1}});
    let mut object = Object::from_value(stored.clone()).unwrap();
    schema.read(&mut object);
    assert_eq!(json!(object.0), json!({"kind": "K", "metadata": {"name": "a"}, "spec": {"n": 1}}));
    assert!(schema.conform(&mut Object::from_value(stored).unwrap()).is_err());
}

#[test]
fn defaults_are_charged_to_the_decode_budget() {
    let default = "x".repeat(100_000);
    let root = json!({"type": "object", "properties": {"list": {"type": "array", "items": {
        "type": "object", "properties": {"a": {"type": "string", "default": default}}}}}});
    let schema = Schema::compile(&root).unwrap();
    let object = |items: usize| Object::from_value(json!({"list": vec![json!({}); items]})).unwrap();
    let size = |object: &Object| object.get("list").unwrap().to_string().len();
    let mut small = object(400);
    assert_eq!(schema.default(&mut small), Ok(()));
    assert!(size(&small) > 400 * 100_000);
    let mut large = object(20_000);
    assert_eq!(schema.default(&mut large), Err(DecodeError::TreeTooLarge(Limits::BODY.tree_bytes)));
    assert!(size(&large) < Limits::BODY.tree_bytes + 100_000, "defaulting stops at the limit");
    // A stored object has no part in the limits of a request, and stays in the cache.
    let mut stored = object(20_000);
    schema.read(&mut stored);
    assert!((1_000_000..1_200_000).contains(&size(&stored)), "{}", size(&stored));
}

#[test]
fn default_bytes_bound_the_defaults_of_each_object_and_null() {
    let text = "x".repeat(10_000);
    let leaf = json!({"type": "object", "properties": {
        "a": {"type": "string", "default": text}, "b": {"type": "integer", "default": 1}}});
    let with_default = |schema: &Value, default: Value| {
        let mut schema = schema.clone();
        schema["default"] = default;
        schema
    };
    let properties = |name: &str, schema: Value| json!({"type": "object", "properties": {name: schema}});
    let list = |schema: &Value| json!({"type": "array", "items": schema});
    let nested = with_default(&properties("d", with_default(&leaf, json!({}))), json!({}));
    for (field, objects, value) in [
        (leaf.clone(), 1, json!({})),
        (list(&leaf), 50, json!(vec![json!({}); 50])),
        (list(&with_default(&leaf, json!({}))), 50, json!(vec![Value::Null; 50])),
        (with_default(&list(&leaf), json!(vec![json!({}); 50])), 1, Value::Null),
        (with_default(&list(&with_default(&leaf, json!({}))), json!([null, {}])), 1, Value::Null),
        (list(&nested), 3, json!([null, {}, {"d": {}}])),
        (json!({"type": "object", "additionalProperties": leaf}), 2, json!({"x": {}, "y": {}})),
    ] {
        let schema = Schema::compile(&properties("f", field.clone())).unwrap();
        let mut object = Object::from_value(json!({"f": value})).unwrap();
        schema.default(&mut object).unwrap();
        let added = object.get("f").unwrap().to_string().len();
        assert!(added > 10_000);
        // The object itself is one of the values.
        assert!(
            schema.default_bytes() * (objects + 1) >= added,
            "{field}: {added}, {}",
            schema.default_bytes()
        );
        assert!(schema.default_bytes() <= 3 * added, "{added}, {}", schema.default_bytes());
    }
    let none = Schema::compile(&properties("f", json!({"type": "string"}))).unwrap();
    assert_eq!(none.default_bytes(), 0);
}

#[test]
fn default_bytes_of_defaults_within_defaults_are_found_in_one_pass() {
    // Each level multiplies the defaults by 1,000.
    let mut node = json!({"type": "string", "default": "x"});
    for _ in 0..20 {
        let items = json!({"type": "object", "properties": {"a": node}});
        node = json!({"type": "array", "items": items, "default": vec![json!({}); 1_000]});
    }
    let schema = Schema::compile(&json!({"type": "object", "properties": {"a": node}})).unwrap();
    assert_eq!(schema.default_bytes(), u32::MAX as usize);
}

#[test]
fn value_errors_of_a_default_have_its_path() {
    let schema = Schema::part(&json!({"type": "object", "properties": {"a": {"type": "integer"}}})).unwrap();
    let path = FieldPath::new("s.default");
    let errors = |value: Value| texts(&schema.validate_value(&value, &path, &metadata_rules).errors);
    assert_eq!(
        errors(json!("x")),
        ["s.default: Invalid value: \"string\":  in body must be of type object: \"string\""]
    );
    assert_eq!(
        errors(json!({"a": "x"})),
        ["s.default.a: Invalid value: \"string\": a in body must be of type integer: \"string\""]
    );
    let mut value = json!({"a": 1, "b": 2});
    assert_eq!(schema.prune_value(&mut value), ["b"]);
    assert_eq!(value, json!({"a": 1}));
}

#[test]
fn stored_rules_may_use_newer_functions() {
    let root = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"v": {"type": "string", "maxLength": 20}},
        "x-kubernetes-validations": [{"rule": "isSemver(self.v)"}]}}});
    let schema = Schema::compile(&root).unwrap();
    let path = FieldPath::new("schema");
    assert_eq!(schema.check_rules(&path, &StoredRules::default(), &names(), &|_| false).len(), 1);
    assert!(schema.check_rules(&path, &schema.stored_rules(), &names(), &|_| false).is_empty());
    let object = |version: &str| Object::from_value(json!({"spec": {"v": version}})).unwrap();
    assert!(schema.validate(&object("1.2.3"), None, FieldErrors::new(), &metadata_rules).errors.is_empty());
    assert_eq!(
        texts(&schema.validate(&object("1.2"), None, FieldErrors::new(), &metadata_rules).errors),
        ["spec: Invalid value: \"object\": failed rule: isSemver(self.v)"]
    );
}

#[test]
fn patterns_that_take_too_many_steps_fail_validation() {
    let text = |pattern: &str| json!({"type": "string", "pattern": pattern});
    let not = json!({"not": {"pattern": "(a|b)*a(a|b){900}c"}, "type": "string"});
    let root = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "large": text(r"^[\p{L}\p{N}]{0,1000}$"), "slow": text("(a|b)*a(a|b){900}c"), "not": not}}}});
    let schema = Schema::compile(&root).unwrap();
    let errors = |field: &str, value: &str| {
        let object = Object::from_value(json!({"spec": {field: value}})).unwrap();
        texts(&schema.validate(&object, None, FieldErrors::new(), &metadata_rules).errors)
    };
    assert_eq!(errors("large", &"é".repeat(1_000)), [""; 0]);
    assert_eq!(
        errors("large", "-"),
        [r#"spec.large: Invalid value: "-": spec.large in body should match '^[\p{L}\p{N}]{0,1000}$'"#]
    );
    for field in ["slow", "not"] {
        assert!(
            errors(field, &"ab".repeat(100_000))
                .concat()
                .ends_with("the patterns of the schema take too many steps to evaluate"),
            "{field}"
        );
    }
}

#[test]
fn field_paths_resolve_against_schema() {
    let root = json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {"a": {"type": "string"}, "b.c": {"type": "integer"}}},
        "m": {"type": "object", "additionalProperties": {"type": "boolean"}}}});
    let schema = Schema::compile(&root).unwrap();
    for (path, expected) in [
        (".spec.a", Some("spec.a")),
        (".spec['b.c']", Some("spec.b.c")),
        (".m.k", Some("m[k]")),
        (".spec.none", None),
        (".spec['a'", None),
        (".spec[a]", None),
        ("spec", None),
    ] {
        let resolved = super::rules::resolve(schema.root(), path).map(|resolved| resolved.to_string());
        assert_eq!(resolved.as_deref(), expected, "{path}");
    }
}

#[test]
fn merge_type_follows_list_and_map_types() {
    use schema::merge::{List, Merge};
    let root = json!({"type": "object", "properties": {"spec": {"type": "object", "x-kubernetes-map-type": "atomic", "properties": {
        "l": {"type": "array", "items": {"type": "string"}},
        "s": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "m": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
              "items": {"type": "object", "properties": {"k": {"type": "string", "default": "d"}}}},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}});
    let Merge::Struct(root) = Schema::compile(&root).unwrap().merge() else { panic!("not a struct") };
    let root = root.resolve().unwrap();
    assert!(root.rest().is_none() && root.field("metadata").is_some() && root.field("kind").is_some());
    let Merge::Struct(spec) = &root.field("spec").unwrap().ty else { panic!("not a struct") };
    assert!(spec.is_atomic());
    let field = |name: &str| spec.resolve().unwrap().field(name).unwrap().ty.clone();
    assert!(matches!(field("l"), Merge::List { list: List::Atomic, .. }));
    assert!(matches!(field("s"), Merge::List { list: List::Set, .. }));
    assert!(matches!(field("free"), Merge::Untyped { atomic: false }));
    let Merge::List { list: List::Map(keys), .. } = field("m") else { panic!("not a map list") };
    assert_eq!((keys[0].name.as_str(), &keys[0].default), ("k", &Some(json!("d"))));
}

#[test]
fn too_deep_schema_is_rejected() {
    let mut schema = json!({"type": "string"});
    for _ in 0..super::DEPTH_MAX {
        schema = json!({"type": "array", "items": schema});
    }
    assert_eq!(Schema::compile(&schema).unwrap_err(), super::SchemaError::TooDeep);
}
