//! Reads and writes in object trees with missing or null fields.

use apimachinery::object::Object;
use serde_json::{Map, Value, json};

/// A text field of an object; `""` if absent.
pub(crate) fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// Items of a list field of an object; none if absent.
pub(crate) fn items<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value.get(field).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Items of the list at a path; none if absent.
pub(crate) fn items_at<'a>(object: &'a Object, path: &[&str]) -> &'a [Value] {
    object.at(path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Sets an annotation.
pub(crate) fn annotate(object: &mut Object, key: &str, value: String) {
    let annotations = object.meta_mut().entry("annotations").or_insert(Value::Null);
    if !annotations.is_object() {
        *annotations = json!({});
    }
    if let Some(annotations) = annotations.as_object_mut() {
        annotations.insert(key.to_owned(), Value::from(value));
    }
}

/// The object in a field; inserts an empty object if the field is absent or null. None for other values.
pub(crate) fn object_at<'a>(
    map: &'a mut Map<String, Value>,
    field: &str,
) -> Option<&'a mut Map<String, Value>> {
    let value = map.entry(field).or_insert(Value::Null);
    if value.is_null() {
        *value = json!({});
    }
    value.as_object_mut()
}

/// The list in a field; inserts an empty list if the field is absent or null. None for other values.
pub(crate) fn list_at<'a>(map: &'a mut Map<String, Value>, field: &str) -> Option<&'a mut Vec<Value>> {
    let value = map.entry(field).or_insert(Value::Null);
    if value.is_null() {
        *value = json!([]);
    }
    value.as_array_mut()
}
