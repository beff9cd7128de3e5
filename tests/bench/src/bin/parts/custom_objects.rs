//! Validation and memory of structural schemas: a 4 kB object against a schema of 200 fields with 10 rules, and
//! the memory of an idle kind of 60 fields.
//!
//! The targets are at most 60 µs for one validation and at most 40 kB for one idle kind.

use std::time::Instant;

use apimachinery::field::{FieldErrors, FieldPath};
use apimachinery::object::{Map, Object};
use extensions::structural::Schema;
use serde_json::{Value, json};
use serving::metrics::resident_bytes;

/// A schema with `count` fields in groups of ten, and `rules` rules.
fn schema(count: usize, rules: usize) -> Value {
    let mut groups = Map::new();
    for group in 0..count / 10 {
        let mut fields = Map::new();
        for field in 0..10 {
            let schema = match field % 5 {
                0 => {
                    json!({"type": "string", "maxLength": 64, "description": "A name of at most 64 characters."})
                }
                1 => json!({"type": "integer", "minimum": 0, "maximum": 1000, "description": "A count."}),
                2 => json!({"type": "string", "enum": ["Always", "Never", "IfNeeded"], "default": "Never"}),
                3 => {
                    json!({"type": "array", "maxItems": 8, "items": {"type": "string", "maxLength": 32, "pattern": "^[a-z0-9-]+$"}})
                }
                _ => json!({"type": "boolean"}),
            };
            fields.insert(format!("field{field}"), schema);
        }
        let mut part = json!({"type": "object", "properties": fields, "required": ["field0"]});
        if group < rules {
            let rule = if group % 2 == 0 {
                "self.field1 <= 1000 && self.field0.size() > 0"
            } else {
                "self.field3.all(x, x.size() < 32)"
            };
            part["x-kubernetes-validations"] =
                json!([{"rule": rule, "message": "the group must be consistent"}]);
        }
        groups.insert(format!("group{group}"), part);
    }
    json!({"type": "object", "properties": {"spec": {"type": "object", "properties": groups}}})
}

/// An object of about 4 kB.
fn object(count: usize) -> Object {
    let mut groups = Map::new();
    for group in 0..count / 10 {
        groups.insert(
            format!("group{group}"),
            json!({
                "field0": format!("name-of-group-{group}"), "field1": group, "field2": "Always",
                "field3": ["first-item", "second-item", "third-item"], "field4": true,
                "field5": "another-name-in-here", "field6": 7,
            }),
        );
    }
    let value =
        json!({"apiVersion": "g.example/v1", "kind": "Widget", "metadata": {"name": "a"}, "spec": groups});
    Object::from_value(value).unwrap()
}

fn no_metadata_rules(_: &Map<String, Value>, _: &FieldPath) -> FieldErrors {
    FieldErrors::new()
}

pub(crate) fn run() {
    let compiled = Schema::compile(&schema(200, 10)).unwrap();
    let object = object(200);
    let old = object.clone();
    println!("object: {} bytes", object.clone().into_value().to_string().len());
    for (label, old) in [("create", None), ("update", Some(&old))] {
        let errors = compiled.validate(&object, old, FieldErrors::new(), &no_metadata_rules).errors;
        assert!(errors.is_empty(), "{errors:?}");
        let rounds = 2_000;
        let start = Instant::now();
        for _ in 0..rounds {
            let object = std::hint::black_box(&object);
            std::hint::black_box(compiled.validate(object, old, FieldErrors::new(), &no_metadata_rules));
        }
        println!("validation on {label}: {:?} for each object", start.elapsed() / rounds);
    }
    let start = Instant::now();
    for _ in 0..200 {
        let mut copy = object.clone();
        compiled.conform(&mut copy).unwrap();
        compiled.default(&mut copy).unwrap();
    }
    println!("conforming and defaults: {:?} for each object", start.elapsed() / 200);
    let source = schema(60, 3);
    let start = Instant::now();
    let before = resident_bytes().unwrap();
    let kinds: Vec<Schema> = (0..2_000).map(|_| Schema::compile(&source).unwrap()).collect();
    let after = resident_bytes().unwrap();
    println!("idle kind of 60 fields: {} bytes", after.saturating_sub(before) / kinds.len() as u64);
    println!("compilation: {:?} for each kind", start.elapsed() / 2_000);
}
