//! Warnings about formats that validation does not know.

use std::collections::BTreeSet;

use apimachinery::field::quote;
use apimachinery::object::Object;

use super::props::Props;
use super::spec::Spec;
use crate::structural::is_supported_format;

/// Maximum number of warnings of one write; further warnings are omitted.
const WARNINGS_MAX: usize = 100;

/// Warnings about the formats of a definition that the old definition does not have.
pub fn warnings(definition: &Object, old: Option<&Object>) -> Vec<String> {
    let known = old.map(unknown_formats).unwrap_or_default();
    let new = unknown_formats(definition);
    let new = new.difference(&known).take(WARNINGS_MAX);
    new.map(|format| format!("unrecognized format {}", quote(format))).collect()
}

fn unknown_formats(definition: &Object) -> BTreeSet<&str> {
    let mut formats = BTreeSet::new();
    for schema in Spec::new(definition).schemas() {
        schema.any(&mut |part: Props<'_>| {
            let format = part.text("format");
            if !format.is_empty() && !is_supported_format(format, part.text("type")) {
                formats.insert(format);
            }
            false
        });
    }
    formats
}
