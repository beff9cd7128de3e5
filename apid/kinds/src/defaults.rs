//! Helpers that set default values and restore old values.

use apimachinery::field::quote;
use apimachinery::object::{Map, Object, Value};

/// Fields of a JSON object.
pub(crate) type Fields = Map<String, Value>;

/// Sets a field that is absent or null.
/// An explicit zero stays: the schema has already removed zeros from fields in which zero means absent.
pub(crate) fn fill(fields: &mut Fields, name: &str, value: impl Into<Value>) {
    if fields.get(name).is_none_or(Value::is_null) {
        fields.insert(name.to_owned(), value.into());
    }
}

/// Sets a text field that is absent or empty.
pub(crate) fn fill_text(fields: &mut Fields, name: &str, value: &str) {
    if fields.get(name).is_none_or(|text| text.as_str() == Some("")) {
        fields.insert(name.to_owned(), value.into());
    }
}

/// The map in a field, if present.
pub(crate) fn map_at<'a>(fields: &'a mut Fields, name: &str) -> Option<&'a mut Fields> {
    fields.get_mut(name)?.as_object_mut()
}

/// The map at a dotted path of an object, if present.
pub(crate) fn part<'a>(object: &'a mut Object, path: &str) -> Option<&'a mut Fields> {
    path.split('.').try_fold(&mut object.0, map_at)
}

/// Sets the labels of a workload without labels to those of its pod template.
pub(crate) fn label_like_template(object: &mut Object) {
    if let Some(labels) = object.at(&["spec", "template", "metadata", "labels"]).cloned() {
        fill(object.meta_mut(), "labels", labels);
    }
}

/// The number in an annotation that kube-apiserver converts to a field; None without the annotation.
///
/// # Errors
///
/// The error of Go for a text that is no 64-bit integer.
pub(crate) fn annotation_number(object: &Object, key: &str) -> Option<Result<i64, String>> {
    let text = object.annotation(key)?;
    Some(text.parse().map_err(|error: std::num::ParseIntError| {
        let reason = match error.kind() {
            std::num::IntErrorKind::PosOverflow | std::num::IntErrorKind::NegOverflow => "value out of range",
            _ => "invalid syntax",
        };
        format!("strconv.ParseInt: parsing {}: {reason}", quote(text))
    }))
}

/// The map in a field; inserts an empty map if the field is absent.
/// None if the field holds another type.
pub(crate) fn map_or_insert<'a>(fields: &'a mut Fields, name: &str) -> Option<&'a mut Fields> {
    fields.entry(name).or_insert_with(|| Value::Object(Fields::new())).as_object_mut()
}

/// All maps in the list in a field.
pub(crate) fn maps_in_list<'a>(fields: &'a mut Fields, list: &str) -> impl Iterator<Item = &'a mut Fields> {
    let items = fields.get_mut(list).and_then(Value::as_array_mut);
    items.into_iter().flatten().filter_map(Value::as_object_mut)
}

/// Restores a field from its old value.
pub(crate) fn restore(fields: &mut Fields, name: &str, old: Option<&Value>) {
    match old {
        Some(value) => drop(fields.insert(name.to_owned(), value.clone())),
        None => drop(fields.remove(name)),
    }
}
