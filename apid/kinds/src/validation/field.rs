//! A value of an object with its path, which is rendered only for errors.

use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::object::Object;
use serde_json::Value;

use crate::table::cell::PathReader as _;

/// A value of an object with its path. `'v` is the lifetime of the object, `'p` that of the path.
#[derive(Clone, Copy)]
pub(crate) struct Field<'v, 'p> {
    value: Option<&'v Value>,
    path: Path<'p>,
}

/// A path as a linked list on the stack: the last step, and the path before it.
#[derive(Clone, Copy)]
struct Path<'p> {
    parent: Option<&'p Path<'p>>,
    step: Step<'p>,
}

#[derive(Clone, Copy)]
enum Step<'p> {
    Base(&'p str),
    Name(&'p str),
    Index(usize),
    Key(&'p str),
}

impl Path<'_> {
    fn render(&self) -> FieldPath {
        let mut path = self.parent.map_or_else(FieldPath::root, Path::render);
        match self.step {
            Step::Base(name) | Step::Name(name) => path.push_child(name),
            Step::Index(index) => path.push_index(index),
            Step::Key(key) => path.push_key(key),
        }
        path
    }
}

impl<'v, 'p> Field<'v, 'p> {
    /// Creates a field from a value and its path. Null is an absent value.
    pub(crate) fn new(value: Option<&'v Value>, path: &'p str) -> Self {
        Field {
            value: value.filter(|value| !value.is_null()),
            path: Path { parent: None, step: Step::Base(path) },
        }
    }

    fn member(&'p self, value: Option<&'v Value>, step: Step<'p>) -> Self {
        Field { value: value.filter(|value| !value.is_null()), path: Path { parent: Some(&self.path), step } }
    }

    /// The field of this map with a name.
    pub(crate) fn child(&'p self, name: &'p str) -> Self {
        self.member(self.value.and_then(|value| value.get(name)), Step::Name(name))
    }

    /// An entry of this map, with the given value instead of the one in the object.
    pub(crate) fn entry(&'p self, key: &'p str, value: Option<&'v Value>) -> Self {
        self.member(value, Step::Key(key))
    }

    /// Another value at the path of this field: kube-apiserver reports some errors at the path of the owner.
    pub(crate) fn with_value(&self, value: Option<&'v Value>) -> Self {
        Field { value, path: self.path }
    }

    /// The items of this list; none if the list is absent.
    pub(crate) fn items(&'p self) -> impl ExactSizeIterator<Item = Field<'v, 'p>> {
        self.list().iter().enumerate().map(|(i, item)| self.member(Some(item), Step::Index(i)))
    }

    /// The entries of this map, in the order of their keys.
    pub(crate) fn entries(&'p self) -> impl Iterator<Item = (&'v str, Field<'v, 'p>)>
    where
        'v: 'p,
    {
        let map = self.value.and_then(Value::as_object);
        map.into_iter().flatten().map(|(key, value)| (key.as_str(), self.member(Some(value), Step::Key(key))))
    }

    /// The names of the fields of this map that have a value other than null.
    pub(crate) fn names(&self) -> Vec<&'v str> {
        let map = self.value.and_then(Value::as_object);
        let present = map.into_iter().flatten().filter(|(_, value)| !value.is_null());
        present.map(|(name, _)| name.as_str()).collect()
    }

    /// The value; None if absent or null.
    pub(crate) fn value(&self) -> Option<&'v Value> {
        self.value
    }

    /// The items of this list, as values without paths.
    pub(crate) fn list(&self) -> &'v [Value] {
        self.value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    /// The text; `""` if absent.
    pub(crate) fn text(&self) -> &'v str {
        self.value.and_then(Value::as_str).unwrap_or("")
    }

    /// The whole number, if present.
    pub(crate) fn integer(&self) -> Option<i64> {
        self.value.and_then(Value::as_i64)
    }

    /// The boolean; false if absent.
    pub(crate) fn flag(&self) -> bool {
        self.value.and_then(Value::as_bool).unwrap_or(false)
    }

    /// Whether the field has a value other than null.
    pub(crate) fn is_present(&self) -> bool {
        self.value.is_some()
    }

    /// The rendered path of the field.
    pub(crate) fn path(&self) -> FieldPath {
        self.path.render()
    }

    fn value_or_null(&self) -> Value {
        self.value.cloned().unwrap_or_default()
    }

    /// The error `Required value`, with a detail unless it is empty.
    pub(crate) fn required(&self, detail: &str) -> FieldError {
        FieldError::required(&self.path(), detail)
    }

    /// The error `Invalid value`, which shows the value. An absent value is shown as null.
    pub(crate) fn invalid(&self, detail: &str) -> FieldError {
        FieldError::invalid(&self.path(), self.value_or_null(), detail)
    }

    /// The error `Invalid value`, which shows another value than that of the field.
    pub(crate) fn invalid_value(&self, value: impl Into<Value>, detail: &str) -> FieldError {
        FieldError::invalid(&self.path(), value.into(), detail)
    }

    /// The error `Invalid value`, which shows a name, a key or a label value.
    pub(crate) fn invalid_name(&self, name: &str, detail: &str) -> FieldError {
        FieldError::invalid_name(&self.path(), name, detail)
    }

    /// The error `Forbidden`.
    pub(crate) fn forbidden(&self, detail: &str) -> FieldError {
        FieldError::forbidden(&self.path(), detail)
    }

    /// The error `Unsupported value`. The caller sorts the supported values.
    pub(crate) fn not_supported(&self, supported: &[&str]) -> FieldError {
        FieldError::not_supported(&self.path(), self.value_or_null(), supported)
    }

    /// The error `Duplicate value`.
    pub(crate) fn duplicate(&self) -> FieldError {
        FieldError::duplicate(&self.path(), self.value_or_null())
    }

    /// The error `Duplicate value`, which shows another value than that of the field.
    pub(crate) fn duplicate_value(&self, value: impl Into<Value>) -> FieldError {
        FieldError::duplicate(&self.path(), value.into())
    }

    /// Reports an absent value.
    pub(crate) fn require_present(&self, detail: &str, errors: &mut FieldErrors) {
        if !self.is_present() {
            errors.push(self.required(detail));
        }
    }

    /// Reports an absent or empty list.
    pub(crate) fn require_items(&self, detail: &str, errors: &mut FieldErrors) {
        if self.list().is_empty() {
            errors.push(self.required(detail));
        }
    }

    /// Reports a list with more than `max` items. Returns whether the list is within the limit.
    pub(crate) fn check_limit(&self, max: usize, errors: &mut FieldErrors) -> bool {
        let count = self.list().len();
        if count > max {
            errors.push(FieldError::too_many(&self.path(), count, max));
        }
        count <= max
    }

    /// Reports a present value.
    pub(crate) fn forbid(&self, detail: &str, errors: &mut FieldErrors) {
        if self.is_present() {
            errors.push(self.forbidden(detail));
        }
    }

    /// The error `Not found`.
    pub(crate) fn not_found(&self) -> FieldError {
        FieldError::not_found(&self.path(), self.value_or_null())
    }
}

/// Reports each of the fields at dotted paths that an update changes.
pub(crate) fn immutable_fields(new: &Object, old: &Object, paths: &[&str]) -> FieldErrors {
    let changed = paths.iter().filter(|path| new.find(path) != old.find(path));
    changed.map(|path| Field::new(new.find(path), path).invalid("field is immutable")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn field_renders_its_path_and_reads_its_value() {
        let value = json!({"list": [{"a": "x"}], "map": {"k/1": 2}, "none": null});
        let root = Field::new(Some(&value), "spec");
        let list = root.child("list");
        let item = list.items().next().unwrap();
        assert_eq!(item.child("a").required("").to_string(), "spec.list[0].a: Required value");
        assert_eq!(item.child("a").text(), "x");
        let map = root.child("map");
        let (key, entry) = map.entries().next().unwrap();
        assert_eq!((key, entry.integer(), entry.path().as_str()), ("k/1", Some(2), "spec.map[k/1]"));
        assert!(!root.child("none").is_present());
        assert_eq!(root.child("none").invalid("d").to_string(), "spec.none: Invalid value: null: d");
    }
}
