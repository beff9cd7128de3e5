//! Recorded rules of custom kinds: time of the first validation, which compiles the rule, and of later ones.
//!
//! The rules are the 1,000 longest of the folder `cel` beside the recorded exchanges.

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use apimachinery::field::{FieldErrors, FieldPath};
use apimachinery::object::{Map, Object};
use extensions::structural::Schema;
use serde_json::{Value, json};

/// Number of measured rules.
const RULES: usize = 1_000;
/// Number of repetitions. The shortest one counts.
const ROUNDS: usize = 7;

/// A rule with its schema and the validated object.
struct RecordedRule {
    text: String,
    schema: Value,
    object: Object,
}

fn no_metadata_rules(_: &Map<String, Value>, _: &FieldPath) -> FieldErrors {
    FieldErrors::new()
}

fn read_rows(folder: &Path, file: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(folder.join(file)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The longest rules that compile.
fn read_rules(folder: &Path) -> Vec<RecordedRule> {
    let root = std::fs::read_to_string(folder.join("rules.json")).unwrap();
    let root: Value = serde_json::from_str(&root).unwrap();
    let at_root = read_rows(folder, "rules.jsonl").into_iter().map(|row| {
        let mut schema = root["schema"].clone();
        schema["x-kubernetes-validations"] = json!([{"rule": row["rule"], "message": "m"}]);
        (row.clone(), schema, root["object"].clone())
    });
    let nested = read_rows(folder, "nested.jsonl").into_iter();
    let nested = nested.map(|row| (row.clone(), row["schema"].clone(), row["object"].clone()));
    let mut rules: Vec<RecordedRule> = at_root
        .chain(nested)
        .filter(|(row, ..)| row.get("compile").is_none())
        .map(|(row, schema, object)| RecordedRule {
            text: row.get("rule").unwrap_or(&row["schema"]).to_string(),
            schema,
            object: Object::from_value(object).unwrap(),
        })
        .collect();
    rules.sort_by_key(|rule| std::cmp::Reverse(rule.text.len()));
    rules.truncate(RULES);
    rules
}

fn validate(schema: &Schema, object: &Object) {
    black_box(schema.validate(black_box(object), None, FieldErrors::new(), &no_metadata_rules));
}

/// Measures the recorded rules of a folder.
pub(crate) fn run(folder: &Path) {
    let rules = read_rules(folder);
    let (mut first, mut later) = (Duration::MAX, Duration::MAX);
    for _ in 0..ROUNDS {
        let schemas: Vec<Schema> = rules.iter().map(|rule| Schema::compile(&rule.schema).unwrap()).collect();
        for time in [&mut first, &mut later] {
            let start = Instant::now();
            schemas.iter().zip(&rules).for_each(|(schema, rule)| validate(schema, &rule.object));
            *time = start.elapsed().min(*time);
        }
    }
    let count = u32::try_from(rules.len()).unwrap();
    println!(
        "{count} rules: compilation {:?}, validation with evaluation {:?} for each rule",
        first.saturating_sub(later) / count,
        later / count
    );
}
