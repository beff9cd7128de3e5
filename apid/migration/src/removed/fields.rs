//! Reads and writes of fields of a manifest that no schema has checked yet.
//!
//! # Contract
//!
//! A value of an unexpected type stays unchanged: the schema of the target version reports it.

use apimachinery::object::{Map, Object, Value};

/// A JSON object.
pub(super) type Fields = Map<String, Value>;

/// The object in a field of an object, if the field has one.
pub(super) fn part<'a>(object: &'a mut Object, field: &str) -> Option<&'a mut Fields> {
    object.get_mut(field)?.as_object_mut()
}

/// The object in a field of a JSON object, if the field has one.
pub(super) fn child<'a>(fields: &'a mut Fields, field: &str) -> Option<&'a mut Fields> {
    fields.get_mut(field)?.as_object_mut()
}

/// The objects in a list field.
pub(super) fn items<'a>(fields: &'a mut Fields, field: &str) -> impl Iterator<Item = &'a mut Fields> {
    fields.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
}

/// Whether a field has a value other than null.
pub(super) fn is_set(fields: &Fields, field: &str) -> bool {
    fields.get(field).is_some_and(|value| !value.is_null())
}

/// Whether a field has no value, or the zero of a text, a list or a number.
pub(super) fn is_zero(fields: &Fields, field: &str) -> bool {
    match fields.get(field) {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        Some(Value::Number(number)) => number.as_i64() == Some(0),
        Some(Value::Bool(_) | Value::Object(_)) => false,
    }
}

/// Sets a field that has no value. Returns whether the field was set.
pub(super) fn default(fields: &mut Fields, field: &str, value: impl Into<Value>) -> bool {
    if is_set(fields, field) {
        return false;
    }
    fields.insert(field.to_owned(), value.into());
    true
}

/// Renames a field. Removes a field that already has the new name, because the source version has no such
/// field.
pub(super) fn rename(fields: &mut Fields, from: &str, to: &str) {
    fields.remove(to);
    if let Some(value) = fields.remove(from) {
        fields.insert(to.to_owned(), value);
    }
}

/// The object in a field, created if the field has no value. None for a value of another type.
pub(super) fn child_or_new<'a>(fields: &'a mut Fields, field: &str) -> Option<&'a mut Fields> {
    default(fields, field, Fields::new());
    child(fields, field)
}

/// Sets an annotation.
pub(super) fn annotate(object: &mut Object, key: &str, value: &str) {
    if let Some(annotations) = child_or_new(object.meta_mut(), "annotations") {
        annotations.insert(key.to_owned(), value.into());
    }
}

/// Removes an annotation and returns its value. An empty map of annotations is removed too.
pub(super) fn remove_annotation(object: &mut Object, key: &str) -> Option<String> {
    let metadata = object.meta_mut();
    let annotations = child(metadata, "annotations")?;
    let value = annotations.remove(key);
    if annotations.is_empty() {
        metadata.remove("annotations");
    }
    value?.as_str().map(str::to_owned)
}
