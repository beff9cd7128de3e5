//! Writes into object trees with missing or null fields.

use apimachinery::object::Object;
use serde_json::{Map, Value, json};

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
