//! Uniqueness of lists: set lists have unique items, map lists have items with unique keys.

use std::borrow::Cow;
use std::collections::HashMap;

use apimachinery::codec::json;
use apimachinery::field::{FieldError, FieldErrorKind, FieldErrors, FieldPath};
use apimachinery::object::Value;

use super::node::{Flag, ListType, Node};
use super::place::Data;
use super::walk::{visit_fields, visit_value};

/// The errors of all set and map lists of a value at a path.
pub(super) fn duplicates(node: &Node, data: Data<'_>, path: &FieldPath) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let flags = [Flag::HasUniqueLists];
    let mut visit = |node: &Node, value: &Value, path: &FieldPath| {
        match (&node.list, value) {
            (ListType::Set, Value::Array(items)) => check_set(items, path, &mut errors),
            (ListType::Map(keys), Value::Array(items)) => check_map(items, keys, path, &mut errors),
            _ => {}
        }
        !(value.is_object() && errors.is_full())
    };
    match data {
        Data::Object(fields) => visit_fields(node, fields, path, &flags, &mut visit),
        Data::Other(value) => visit_value(node, value, path, &flags, &mut visit),
    }
    errors
}

fn check_set(items: &[Value], path: &FieldPath, errors: &mut FieldErrors) {
    let mut counts = OccurrenceCounts::default();
    for (index, item) in items.iter().enumerate() {
        if counts.is_second(identity_text(item)) {
            errors.push(FieldError::untyped(FieldErrorKind::Duplicate, &path.index(index), item, ""));
        }
    }
}

fn check_map(items: &[Value], keys: &[Box<str>], path: &FieldPath, errors: &mut FieldErrors) {
    for (index, item) in items.iter().enumerate() {
        if !item.is_object() && !item.is_null() {
            let detail = "must be an object for an array of list-type map";
            return errors.push(FieldError::untyped(
                FieldErrorKind::Invalid,
                &path.index(index),
                item,
                detail,
            ));
        }
    }
    let mut counts = OccurrenceCounts::default();
    for (index, item) in items.iter().enumerate() {
        let is_second = match keys {
            [key] => counts.is_second(item.get(&**key).map_or(Cow::Borrowed(""), identity_text)),
            _ => counts.is_second(Cow::Owned(json::to_text(&key_values(item, keys)))),
        };
        if is_second {
            let keys = key_values(item, keys);
            errors.push(FieldError::untyped(FieldErrorKind::Duplicate, &path.index(index), &keys, ""));
        }
    }
}

/// The key fields of an item, without absent fields.
fn key_values(item: &Value, keys: &[Box<str>]) -> Value {
    let present_fields = keys.iter().filter_map(|key| Some((key.to_string(), item.get(&**key)?.clone())));
    Value::Object(present_fields.collect())
}

/// A text that is equal for two values exactly if the values are equal; never empty. `1` equals `1.0`.
fn identity_text(value: &Value) -> Cow<'_, str> {
    match value {
        // A plain string is no JSON text of any value, so the string itself identifies the value.
        Value::String(text) if !text.is_empty() && is_plain(text) => Cow::Borrowed(text),
        other => Cow::Owned(json::to_text(other)),
    }
}

/// Whether a string differs from the JSON text of every value.
fn is_plain(text: &str) -> bool {
    let first = text.chars().next().unwrap_or('"');
    first.is_ascii_alphabetic() && !matches!(text, "true" | "false" | "null")
}

/// The number of occurrences of each text.
#[derive(Default)]
struct OccurrenceCounts<'a>(HashMap<Cow<'a, str>, u32>);

impl<'a> OccurrenceCounts<'a> {
    /// Counts a text, and returns whether this is its second occurrence. The reference does not report later
    /// occurrences.
    fn is_second(&mut self, text: Cow<'a, str>) -> bool {
        let count = self.0.entry(text).or_default();
        *count = count.saturating_add(1);
        *count == 2
    }
}
