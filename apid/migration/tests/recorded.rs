//! Recorded conversions of `kubectl convert`, compared with those of this crate.
//!
//! `CONVERSIONS_SHOW=1 cargo test -p migration --test integration recorded -- --nocapture` prints all differences.

use std::fs;

use apimachinery::clock::{ManualClock, SeededRng};
use apimachinery::gvk::GroupVersion;
use apimachinery::names::{Names, Preset};
use apimachinery::object::{Object, Value};
use apimachinery::time;
use kinds::lifecycle::{self, CURRENT};
use migration::Converter;

/// Explained differences: JSON pointer, value of `kubectl convert`, value of this crate, reason.
const EXPLAINED: &[(&str, &str, &str, &str)] = &[];

/// Paths at which two trees differ, with both values.
fn differences(
    pointer: &str,
    expected: Option<&Value>,
    actual: Option<&Value>,
    found: &mut Vec<(String, String, String)>,
) {
    match (expected, actual) {
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            let mut keys: Vec<&String> = a.keys().chain(b.keys()).collect();
            keys.sort();
            keys.dedup();
            for key in keys {
                differences(&format!("{pointer}/{key}"), a.get(key), b.get(key), found);
            }
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) => {
            for index in 0..a.len().max(b.len()) {
                differences(&format!("{pointer}/{index}"), a.get(index), b.get(index), found);
            }
        }
        (a, b) if a == b => {}
        (a, b) => {
            let text = |value: Option<&Value>| value.map_or_else(|| "absent".to_owned(), Value::to_string);
            found.push((pointer.to_owned(), text(a), text(b)));
        }
    }
}

#[test]
fn conversions_equal_those_of_the_reference() {
    let Some(file) = prerequisites::conversions() else { return };
    let names = Names::new(Preset::Kubernetes, "").unwrap();
    let clock = ManualClock::at(time::parse("2026-01-02T03:04:05Z").unwrap());
    let rng = SeededRng::new(1);
    let converter = Converter::new(&names, &clock, &rng);
    let (mut count, mut unexplained) = (0, Vec::new());
    for line in fs::read_to_string(file).unwrap().lines() {
        count += 1;
        let fact: Value = serde_json::from_str(line).unwrap();
        let (input, target_text) = (&fact["input"], fact["to"].as_str().unwrap());
        let title = format!("{count}: {} {} to {target_text}", input["apiVersion"], input["kind"]);
        let target = GroupVersion::parse(target_text).unwrap();
        let object = Object::from_value(input.clone()).unwrap();
        let converted = match converter.convert(object, Some(&target)) {
            Ok(conversion) => conversion,
            Err(error) => {
                unexplained.push(format!("{title}: {error}"));
                continue;
            }
        };
        if std::env::var_os("CONVERSIONS_SHOW").is_some() {
            println!("{title}\n    {}", converted.warnings.join("\n    "));
        }
        let mut found = Vec::new();
        differences("", Some(&fact["output"]), Some(&converted.object.into_value()), &mut found);
        for (pointer, expected, actual) in found {
            if !EXPLAINED.iter().any(|(path, a, b, _)| pointer == *path && expected == *a && actual == *b) {
                unexplained.push(format!("{title}: {pointer}: expected {expected}, actual {actual}"));
            }
        }
    }
    assert!(count > 0 && unexplained.is_empty(), "{count} conversions:\n{}", unexplained.join("\n"));
}

/// Whether each field of a tree is in another tree. Values can differ.
fn has_fields(tree: &Value, part: &Value) -> bool {
    match (tree, part) {
        (Value::Object(tree), Value::Object(part)) => {
            part.iter().all(|(key, value)| tree.get(key).is_some_and(|found| has_fields(found, value)))
        }
        (Value::Array(tree), Value::Array(part)) => {
            tree.len() == part.len() && tree.iter().zip(part).all(|(found, value)| has_fields(found, value))
        }
        _ => true,
    }
}

#[test]
fn removed_version_with_changed_fields_has_migration_note() {
    let Some(file) = prerequisites::conversions() else { return };
    let names = Names::new(Preset::Kubernetes, "").unwrap();
    let mut count = 0;
    for line in fs::read_to_string(file).unwrap().lines() {
        let fact: Value = serde_json::from_str(line).unwrap();
        let input = &fact["input"];
        let source = GroupVersion::parse(input["apiVersion"].as_str().unwrap()).unwrap();
        let stem = names.stem(&source.group).unwrap();
        let row = lifecycle::of_kind(stem, &source.version, input["kind"].as_str().unwrap()).unwrap();
        if row.is_removed(CURRENT) && !has_fields(&fact["output"], input) && stem != "events" {
            assert!(!row.changes.is_empty(), "{row:?}");
            count += 1;
        }
    }
    assert!(count > 10, "{count} conversions change fields");
}
