//! Object tree: an API object as JSON values, with access to its metadata.
//!
//! # Contract
//!
//! An [`Object`] is a JSON object. Accessors return `None` (or an empty iterator) for fields that are absent
//! or have a different type. They never fail and never panic, because bodies are untrusted until the schema has
//! checked them.

pub use serde_json::{Map, Number, Value};

/// Returns an item of an array of numbers that stands for bytes. As in Go, null stands for 0; None for another value.
pub fn byte(item: &Value) -> Option<u8> {
    match item {
        Value::Null => Some(0),
        item => item.as_u64().and_then(|number| u8::try_from(number).ok()),
    }
}

/// API object. There is no `Deref`, so that reads and writes are explicit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Object(pub Map<String, Value>);

impl Object {
    /// Converts a value; returns the value if it is not a JSON object.
    ///
    /// # Errors
    ///
    /// The value itself.
    pub fn from_value(value: Value) -> Result<Self, Value> {
        match value {
            Value::Object(map) => Ok(Object(map)),
            other => Err(other),
        }
    }

    /// Converts into a value.
    pub fn into_value(self) -> Value {
        Value::Object(self.0)
    }

    /// Returns a top-level field.
    pub fn get(&self, field: &str) -> Option<&Value> {
        self.0.get(field)
    }

    /// Returns a mutable top-level field.
    pub fn get_mut(&mut self, field: &str) -> Option<&mut Value> {
        self.0.get_mut(field)
    }

    /// Sets a top-level field.
    pub fn set(&mut self, field: &str, value: impl Into<Value>) {
        self.0.insert(field.to_owned(), value.into());
    }

    /// Removes a top-level field.
    pub fn remove(&mut self, field: &str) -> Option<Value> {
        self.0.remove(field)
    }

    /// Returns a nested field by its path of names.
    pub fn at(&self, path: &[&str]) -> Option<&Value> {
        let (first, rest) = path.split_first()?;
        rest.iter().try_fold(self.0.get(*first)?, |value, field| value.get(field))
    }

    /// Returns a nested string by its path of names.
    pub fn str_at(&self, path: &[&str]) -> Option<&str> {
        self.at(path)?.as_str()
    }

    /// Returns `apiVersion`, or `""`.
    pub fn api_version(&self) -> &str {
        self.str_at(&["apiVersion"]).unwrap_or("")
    }

    /// Returns `kind`, or `""`.
    pub fn kind(&self) -> &str {
        self.str_at(&["kind"]).unwrap_or("")
    }

    /// Sets `apiVersion` and `kind`.
    pub fn set_type(&mut self, api_version: &str, kind: &str) {
        self.set("apiVersion", api_version);
        self.set("kind", kind);
    }

    /// Returns `metadata`, if it is an object.
    pub fn meta(&self) -> Option<&Map<String, Value>> {
        self.0.get("metadata")?.as_object()
    }

    /// Returns mutable `metadata`; creates it if it is absent or has a different type.
    pub fn meta_mut(&mut self) -> &mut Map<String, Value> {
        self.part_mut("metadata")
    }

    /// Returns a mutable top-level object such as `spec`; creates it if it is absent or has a different type.
    pub fn part_mut(&mut self, field: &str) -> &mut Map<String, Value> {
        let slot = self.0.entry(field).or_insert_with(|| Value::Object(Map::new()));
        if !slot.is_object() {
            *slot = Value::Object(Map::new());
        }
        match slot {
            Value::Object(map) => map,
            _ => unreachable!("the value was replaced by an object"),
        }
    }

    /// Returns a string of the metadata, `""` if absent.
    pub fn meta_str(&self, field: &str) -> &str {
        self.meta().and_then(|m| m.get(field)).and_then(Value::as_str).unwrap_or("")
    }

    /// Sets a field of the metadata.
    pub fn set_meta(&mut self, field: &str, value: impl Into<Value>) {
        self.meta_mut().insert(field.to_owned(), value.into());
    }

    /// Removes a field of the metadata.
    pub fn remove_meta(&mut self, field: &str) -> Option<Value> {
        self.0.get_mut("metadata")?.as_object_mut()?.remove(field)
    }

    /// Returns `metadata.name`, or `""`.
    pub fn name(&self) -> &str {
        self.meta_str("name")
    }

    /// Returns `metadata.namespace`, or `""`.
    pub fn namespace(&self) -> &str {
        self.meta_str("namespace")
    }

    /// Returns `metadata.uid`, or `""`.
    pub fn uid(&self) -> &str {
        self.meta_str("uid")
    }

    /// Returns `metadata.resourceVersion`, or `""`.
    pub fn resource_version(&self) -> &str {
        self.meta_str("resourceVersion")
    }

    /// Returns `metadata.generation`, or 0.
    pub fn generation(&self) -> i64 {
        self.meta().and_then(|m| m.get("generation")).and_then(Value::as_i64).unwrap_or(0)
    }

    /// Whether `metadata.deletionTimestamp` is set.
    pub fn is_terminating(&self) -> bool {
        !self.meta_str("deletionTimestamp").is_empty()
    }

    /// Iterates over `metadata.labels`: pairs whose value is a string.
    pub fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        self.meta_strings("labels")
    }

    /// Iterates over `metadata.annotations`: pairs whose value is a string.
    pub fn annotations(&self) -> impl Iterator<Item = (&str, &str)> {
        self.meta_strings("annotations")
    }

    /// Returns an annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.meta()?.get("annotations")?.get(key)?.as_str()
    }

    /// Returns a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.meta()?.get("labels")?.get(key)?.as_str()
    }

    /// Iterates over `metadata.finalizers`: the entries that are strings.
    pub fn finalizers(&self) -> impl Iterator<Item = &str> {
        let list = self.meta().and_then(|m| m.get("finalizers")).and_then(Value::as_array);
        list.into_iter().flatten().filter_map(Value::as_str)
    }

    /// Removes an entry of `metadata.finalizers`, and the list if no entry remains.
    pub fn remove_finalizer(&mut self, finalizer: &str) {
        let rest: Vec<Value> =
            self.finalizers().filter(|other| *other != finalizer).map(Value::from).collect();
        match rest.is_empty() {
            true => drop(self.remove_meta("finalizers")),
            false => self.set_meta("finalizers", rest),
        }
    }

    fn meta_strings(&self, field: &str) -> impl Iterator<Item = (&str, &str)> {
        let map = self.meta().and_then(|m| m.get(field)).and_then(Value::as_object);
        map.into_iter().flatten().filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn object_accessors_ignore_wrong_types() {
        let object = Object::from_value(
            json!({"metadata": {"name": 5, "labels": {"a": "b", "c": 1}, "finalizers": "x"}}),
        )
        .unwrap();
        assert_eq!(object.name(), "");
        assert_eq!(object.labels().collect::<Vec<_>>(), [("a", "b")]);
        assert_eq!(object.finalizers().count(), 0);
        let mut broken = Object::from_value(json!({"metadata": []})).unwrap();
        broken.set_meta("name", "x");
        assert_eq!(broken.name(), "x");
    }

    #[test]
    fn removing_the_last_finalizer_removes_the_list() {
        let mut object =
            Object::from_value(json!({"metadata": {"name": "x", "finalizers": ["a", "b", "a"]}})).unwrap();
        object.remove_finalizer("a");
        assert_eq!(object.finalizers().collect::<Vec<_>>(), ["b"]);
        object.remove_finalizer("b");
        assert_eq!(object.into_value(), json!({"metadata": {"name": "x"}}));
    }
}
