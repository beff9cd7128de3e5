//! Typed view of one schema (`JSONSchemaProps`) and of its parts.
//!
//! # Contract
//!
//! [`Props`] borrows the schema of a conformed definition. Accessors return the zero of their type for an
//! absent keyword. Keywords of schema extensions have their stored names; see
//! [`keywords`](super::keywords).

use apimachinery::names::SchemaExtension;
use apimachinery::object::{Map, Value};

/// One schema.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Props<'a>(pub(crate) &'a Map<String, Value>);

/// The keyword `items`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Items<'a> {
    Absent,
    /// One schema for all items.
    One(Props<'a>),
    /// A list of schemas, which definitions must not use.
    Many(&'a [Value]),
}

/// The keyword `additionalProperties`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AdditionalProperties<'a> {
    Absent,
    Allowed(bool),
    Schema(Props<'a>),
}

/// Types of OpenAPI v3.
pub(super) const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];

/// Keywords whose value is a map of schemas.
const MAPS: [&str; 4] = ["properties", "patternProperties", "definitions", "dependencies"];

/// Keywords whose value is a list of schemas.
pub(crate) const JUNCTORS: [&str; 3] = ["allOf", "oneOf", "anyOf"];

impl<'a> Props<'a> {
    /// The schema in a value, if the value is an object.
    pub(crate) fn from_value(value: &'a Value) -> Option<Self> {
        value.as_object().map(Props)
    }

    /// A keyword that is present and not null.
    pub(crate) fn get(self, keyword: &str) -> Option<&'a Value> {
        self.0.get(keyword).filter(|value| !value.is_null())
    }

    /// A text keyword; `""` if absent.
    pub(crate) fn text(self, keyword: &str) -> &'a str {
        self.get(keyword).and_then(Value::as_str).unwrap_or("")
    }

    /// A boolean keyword; false if absent.
    pub(crate) fn flag(self, keyword: &str) -> bool {
        self.get(keyword).and_then(Value::as_bool).unwrap_or(false)
    }

    /// A list keyword; empty if absent.
    pub(crate) fn list(self, keyword: &str) -> &'a [Value] {
        self.get(keyword).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    /// The texts of a list keyword.
    pub(crate) fn texts(self, keyword: &str) -> impl Iterator<Item = &'a str> {
        self.list(keyword).iter().map(|value| value.as_str().unwrap_or(""))
    }

    /// The keyword `type`; `""` if absent.
    pub(crate) fn ty(self) -> &'a str {
        self.text("type")
    }

    /// A keyword whose value is one schema.
    pub(crate) fn schema(self, keyword: &str) -> Option<Props<'a>> {
        self.get(keyword).and_then(Props::from_value)
    }

    /// The schemas of a map keyword such as `properties`, by name.
    pub(crate) fn schemas(self, keyword: &str) -> impl Iterator<Item = (&'a str, Props<'a>)> {
        let map = self.get(keyword).and_then(Value::as_object);
        map.into_iter().flatten().filter_map(|(name, value)| Some((name.as_str(), Props::from_value(value)?)))
    }

    /// The schemas of a list keyword such as `allOf`.
    pub(crate) fn branches(self, keyword: &str) -> impl Iterator<Item = Props<'a>> {
        self.list(keyword).iter().filter_map(Props::from_value)
    }

    /// The schema of a property.
    pub(crate) fn property(self, name: &str) -> Option<Props<'a>> {
        self.get("properties")?.get(name).and_then(Props::from_value)
    }

    /// Whether the schema has at least one property.
    pub(crate) fn has_properties(self) -> bool {
        self.get("properties").and_then(Value::as_object).is_some_and(|map| !map.is_empty())
    }

    /// The keyword `items`.
    pub(crate) fn items(self) -> Items<'a> {
        match self.get("items") {
            Some(Value::Object(map)) => Items::One(Props(map)),
            Some(Value::Array(list)) => Items::Many(list),
            _ => Items::Absent,
        }
    }

    /// The schema of all items.
    pub(crate) fn item_schema(self) -> Option<Props<'a>> {
        self.schema("items")
    }

    /// The keyword `additionalProperties`.
    pub(crate) fn additional(self) -> AdditionalProperties<'a> {
        match self.get("additionalProperties") {
            Some(Value::Bool(allowed)) => AdditionalProperties::Allowed(*allowed),
            Some(Value::Object(map)) => AdditionalProperties::Schema(Props(map)),
            _ => AdditionalProperties::Absent,
        }
    }

    /// A schema extension.
    pub(crate) fn extension(self, extension: SchemaExtension) -> Option<&'a Value> {
        self.get(extension.stored_name())
    }

    /// A schema extension of type boolean; false if absent.
    pub(crate) fn has_extension(self, extension: SchemaExtension) -> bool {
        self.extension(extension).and_then(Value::as_bool).unwrap_or(false)
    }

    /// A schema extension of type text.
    pub(crate) fn extension_text(self, extension: SchemaExtension) -> Option<&'a str> {
        self.extension(extension).and_then(Value::as_str)
    }

    /// A schema extension of type list; empty if absent.
    pub(crate) fn extension_list(self, extension: SchemaExtension) -> &'a [Value] {
        self.extension(extension).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    /// Whether the schema or one of its parts fulfils a condition.
    pub(crate) fn any(self, condition: &mut dyn FnMut(Props<'a>) -> bool) -> bool {
        if condition(self) {
            return true;
        }
        let single = ["not", "items", "additionalProperties", "additionalItems"].into_iter();
        let lists = ["items"].into_iter().chain(JUNCTORS).flat_map(|keyword| self.branches(keyword));
        let maps = MAPS.into_iter().flat_map(|keyword| self.schemas(keyword)).map(|(_, part)| part);
        let mut parts = single.filter_map(|keyword| self.schema(keyword)).chain(lists).chain(maps);
        parts.any(|part| part.any(condition))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn condition_reaches_all_parts_of_schema() {
        for schema in [
            json!({"not": {"title": "x"}}),
            json!({"items": {"title": "x"}}),
            json!({"items": [{"title": "x"}]}),
            json!({"allOf": [{}, {"title": "x"}]}),
            json!({"anyOf": [{"oneOf": [{"title": "x"}]}]}),
            json!({"properties": {"a": {"title": "x"}}}),
            json!({"patternProperties": {"a": {"title": "x"}}}),
            json!({"definitions": {"a": {"title": "x"}}}),
            json!({"dependencies": {"a": {"title": "x"}}}),
            json!({"additionalProperties": {"title": "x"}}),
            json!({"additionalItems": {"title": "x"}}),
        ] {
            assert!(
                Props::from_value(&schema).unwrap().any(&mut |props| props.text("title") == "x"),
                "{schema}"
            );
        }
        let other = json!({"properties": {"a": {"default": {"title": "x"}}}, "required": ["title"]});
        assert!(!Props::from_value(&other).unwrap().any(&mut |props| props.text("title") == "x"));
    }
}
