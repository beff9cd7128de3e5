//! Filling in what a client left out.

use apimachinery::object::{Map, Object, Value};

/// The fields of a JSON object.
pub(crate) type Fields = Map<String, Value>;

/// Sets a field that is not there, or null. An explicit zero stays: whether one counts as absent the schema has decided
/// before.
pub(crate) fn fill(fields: &mut Fields, name: &str, value: impl Into<Value>) {
    if fields.get(name).is_none_or(Value::is_null) {
        fields.insert(name.to_owned(), value.into());
    }
}

/// Sets a text that is not there or empty.
pub(crate) fn fill_text(fields: &mut Fields, name: &str, value: &str) {
    if fields.get(name).is_none_or(|text| text.as_str() == Some("")) {
        fields.insert(name.to_owned(), value.into());
    }
}

/// The map at a dotted path, if it is there.
pub(crate) fn map_at<'a>(fields: &'a mut Fields, path: &str) -> Option<&'a mut Fields> {
    path.split('.').try_fold(fields, |map, name| map.get_mut(name)?.as_object_mut())
}

/// The same in an object.
pub(crate) fn part<'a>(object: &'a mut Object, path: &str) -> Option<&'a mut Fields> {
    map_at(&mut object.0, path)
}

/// The map in a field, which is made when it is not there; None when something else is.
pub(crate) fn made<'a>(fields: &'a mut Fields, name: &str) -> Option<&'a mut Fields> {
    fields.entry(name).or_insert_with(|| Value::Object(Fields::new())).as_object_mut()
}

/// The maps in a list.
pub(crate) fn each<'a>(fields: &'a mut Fields, list: &str) -> impl Iterator<Item = &'a mut Fields> {
    let items = fields.get_mut(list).and_then(Value::as_array_mut);
    items.into_iter().flatten().filter_map(Value::as_object_mut)
}
