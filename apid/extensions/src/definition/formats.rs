//! Warnings about formats that validation does not know.

use std::collections::BTreeSet;

use apimachinery::field::quote;
use apimachinery::object::Object;

use super::checks::SchemaChecks;
use super::props::Props;
use super::spec::Spec;

/// Formats of numbers, which have no effect on validation.
const NUMBER_FORMATS: [&str; 4] = ["int32", "int64", "float", "double"];

/// Maximum number of warnings of one write; further warnings are omitted.
const WARNINGS_MAX: usize = 100;

/// Warnings about the formats of a definition that the old definition does not have.
pub fn warnings(definition: &Object, old: Option<&Object>, checks: &dyn SchemaChecks) -> Vec<String> {
    let known = old.map(|old| unknown_formats(old, checks)).unwrap_or_default();
    let new = unknown_formats(definition, checks);
    let new = new.difference(&known).take(WARNINGS_MAX);
    new.map(|format| format!("unrecognized format {}", quote(format))).collect()
}

fn unknown_formats<'a>(definition: &'a Object, checks: &dyn SchemaChecks) -> BTreeSet<&'a str> {
    let mut formats = BTreeSet::new();
    for schema in Spec::new(definition).schemas() {
        schema.any(&mut |part: Props<'a>| {
            let format = part.text("format");
            if !format.is_empty() && !NUMBER_FORMATS.contains(&format) && !checks.is_known_format(format) {
                formats.insert(format);
            }
            false
        });
    }
    formats
}
