//! The order of keys in JSON documents.
//!
//! # Contract
//!
//! [`Ordered`] serializes a JSON tree. The keys of an object follow the order of declaration in its type:
//! `kind`, `apiVersion`, `metadata`, `spec`, `status`. Undeclared keys follow the declared keys, sorted. Keys
//! of maps are sorted.
//!
//! A tree selects its type by its own `apiVersion` and `kind`, also within any value, such as the object of a Table
//! row. In an object of unknown type, `kind`, `apiVersion` and `metadata` precede the other keys, which are sorted;
//! see [`key_rank`].
//!
//! # Invariants
//!
//! INVARIANT (same tree): only the order of keys differs from the serialization of the tree itself.

use apimachinery::codec::json;
use apimachinery::object::{Map, Value};
use serde::ser::{Serialize, SerializeSeq, Serializer};

use crate::table::{Schema, Type};

/// A JSON tree that serializes its keys in the order of its type.
#[derive(Clone, Copy)]
pub struct Ordered<'a> {
    value: &'a Value,
    form: Form,
}

/// The fields of a JSON object in the order of its type.
#[derive(Clone, Copy)]
pub struct OrderedFields<'a> {
    fields: &'a Map<String, Value>,
    /// None for an object of unknown type.
    schema: Option<&'static Schema>,
}

/// The type that decides the order of the keys of a value, or the way to find the type.
#[derive(Clone, Copy)]
enum Form {
    /// A type that a field declares.
    Declared(&'static Type),
    /// A struct type.
    Struct(&'static Schema),
    /// A value without a type and without a lookup by `kind`: the keys of its objects are sorted.
    Map,
    /// The type that `apiVersion` and `kind` of the value name, if any.
    ByKind,
}

impl<'a> Ordered<'a> {
    /// Orders a tree by its own `apiVersion` and `kind`.
    pub fn new(value: &'a Value) -> Self {
        Ordered { value, form: Form::ByKind }
    }

    /// Orders a tree of the type `schema`, such as a list item without `kind`. If `schema` is None, the order
    /// is that of [`Ordered::new`].
    pub fn of_type(value: &'a Value, schema: Option<&'static Schema>) -> Self {
        Ordered { value, form: schema.map_or(Form::ByKind, Form::Struct) }
    }
}

/// Returns the JSON text of a value of a type.
pub fn text_of_type(value: &Value, type_name: &str) -> String {
    json::to_text(&Ordered::of_type(value, Schema::of(type_name)))
}

impl<'a> OrderedFields<'a> {
    /// Orders the fields of an object by its own `apiVersion` and `kind`.
    pub fn new(fields: &'a Map<String, Value>) -> Self {
        OrderedFields { fields, schema: schema_of(fields) }
    }

    /// Orders the fields of an object of a given type.
    pub fn of_type(fields: &'a Map<String, Value>, schema: &'static Schema) -> Self {
        OrderedFields { fields, schema: Some(schema) }
    }

    /// The fields in order, with their values.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, Ordered<'a>)> + use<'a> {
        let rank = |(key, value): (&'a String, &'a Value)| {
            let (rank, form) = rank_and_form(self.schema, key);
            (rank, key.as_str(), Ordered { value, form })
        };
        let mut ranked: Vec<_> = self.fields.iter().map(rank).collect();
        // The sort is stable: keys of equal rank stay sorted.
        ranked.sort_by_key(|(rank, ..)| *rank);
        ranked.into_iter().map(|(_, key, value)| (key, value))
    }
}

/// The rank of a key in an object of unknown type. Keys of equal rank are sorted by name.
pub fn key_rank(key: &str) -> u8 {
    match key {
        "kind" => 0,
        "apiVersion" => 1,
        "metadata" => 2,
        _ => UNDECLARED,
    }
}

const UNDECLARED: u8 = u8::MAX;

/// The schema that `apiVersion` and `kind` of an object name, if any.
fn schema_of(fields: &Map<String, Value>) -> Option<&'static Schema> {
    let text = |key: &str| fields.get(key).and_then(Value::as_str);
    // Discovery documents of the core group have no `apiVersion`.
    Schema::of_kind(text("apiVersion").unwrap_or("v1"), text("kind")?)
}

/// The rank and the form of a field of an object. `schema` is None for an object of unknown type.
fn rank_and_form(schema: Option<&'static Schema>, key: &str) -> (u8, Form) {
    match schema {
        Some(schema) => match schema.field(key) {
            Some(field) => (field.rank, Form::Declared(&field.ty)),
            None => (UNDECLARED, Form::Map),
        },
        // In a list of custom objects, each item selects its own type.
        None if key == "items" => (UNDECLARED, Form::ByKind),
        None => (key_rank(key), Form::Map),
    }
}

impl Form {
    /// Returns the form of an object, with its struct type if it has one.
    fn resolve(self, fields: &Map<String, Value>) -> Form {
        match self {
            Form::ByKind => schema_of(fields).map_or(Form::ByKind, Form::Struct),
            Form::Declared(Type::Pointer(inner)) => Form::Declared(inner).resolve(fields),
            Form::Declared(
                Type::Struct(r) | Type::SchemaOrBool(r) | Type::SchemaOrArray(r) | Type::SchemaOrStrings(r),
            ) => r.schema().map_or(Form::ByKind, Form::Struct),
            Form::Declared(Type::Any) => Form::ByKind.resolve(fields),
            _ => self,
        }
    }

    /// The form of the values of a map.
    fn map_value(self) -> Form {
        match self {
            Form::Declared(Type::Map(inner)) => Form::Declared(inner),
            _ => Form::Map,
        }
    }

    /// The form of the items of a list.
    fn item(self) -> Form {
        match self {
            Form::Declared(Type::Pointer(inner)) => Form::Declared(inner).item(),
            Form::Declared(Type::List(inner)) => Form::Declared(inner),
            Form::Declared(Type::SchemaOrArray(_)) | Form::ByKind => self,
            _ => Form::Map,
        }
    }
}

impl Serialize for Ordered<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.value {
            Value::Object(fields) => match self.form.resolve(fields) {
                Form::Struct(schema) => OrderedFields { fields, schema: Some(schema) }.serialize(serializer),
                Form::ByKind => OrderedFields { fields, schema: None }.serialize(serializer),
                map @ (Form::Declared(_) | Form::Map) => {
                    // The tree already sorts its keys.
                    let form = map.map_value();
                    serializer.collect_map(fields.iter().map(|(key, value)| (key, Ordered { value, form })))
                }
            },
            Value::Array(items) => {
                let form = self.form.item();
                let mut list = serializer.serialize_seq(Some(items.len()))?;
                for value in items {
                    list.serialize_element(&Ordered { value, form })?;
                }
                list.end()
            }
            scalar => scalar.serialize(serializer),
        }
    }
}

impl Serialize for OrderedFields<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn text(value: &Value) -> String {
        serde_json::to_string(&Ordered::new(value)).unwrap()
    }

    #[test]
    fn keys_follow_the_order_of_declaration() {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"labels": {"b": "2", "a": "1"}, "uid": "u", "name": "x"},
            "status": {"phase": "Running"},
            "spec": {
                "nodeName": "n", "x-unknown": 1,
                "containers": [{"image": "i", "name": "c", "env": [{"value": "v", "name": "e"}]}],
                "volumes": [{"configMap": {"name": "m"}, "name": "v"}],
            },
        });
        let expected = concat!(
            r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"x","uid":"u","labels":{"a":"1","b":"2"}},"#,
            r#""spec":{"volumes":[{"name":"v","configMap":{"name":"m"}}],"#,
            r#""containers":[{"name":"c","image":"i","env":[{"name":"e","value":"v"}]}],"nodeName":"n","x-unknown":1},"#,
            r#""status":{"phase":"Running"}}"#,
        );
        assert_eq!(text(&pod), expected);
    }

    #[test]
    fn embedded_objects_select_their_own_type() {
        let table = json!({
            "apiVersion": "meta.k8s.io/v1", "kind": "Table", "metadata": {},
            "rows": [{"object": {"spec": {"replicas": 1}, "kind": "Deployment", "apiVersion": "apps/v1"}, "cells": ["a"]}],
            "columnDefinitions": [],
        });
        let expected = concat!(
            r#"{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{},"columnDefinitions":[],"rows":["#,
            r#"{"cells":["a"],"object":{"kind":"Deployment","apiVersion":"apps/v1","spec":{"replicas":1}}}]}"#,
        );
        assert_eq!(text(&table), expected);
    }

    #[test]
    fn unknown_types_begin_with_kind_version_and_metadata() {
        let widget = json!({
            "spec": {"kind": "a", "apiVersion": "b", "a": {"metadata": 1, "b": 2}}, "apiVersion": "example.com/v1",
            "kind": "Widget", "metadata": {"name": "x"}, "alpha": 1,
        });
        let expected = concat!(
            r#"{"kind":"Widget","apiVersion":"example.com/v1","metadata":{"name":"x"},"alpha":1,"#,
            r#""spec":{"a":{"b":2,"metadata":1},"apiVersion":"b","kind":"a"}}"#,
        );
        assert_eq!(text(&widget), expected);
        assert_eq!(text(&json!([{"b": 1, "a": [null, true]}])), r#"[{"a":[null,true],"b":1}]"#);
    }

    #[test]
    fn schemas_of_definitions_are_ordered_at_any_depth() {
        let schema = json!({"properties": {"z": {"type": "string", "items": {"type": "x", "description": "d"}}, "a": {}}, "type": "object"});
        let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "spec": {"versions": [{"schema": {"openAPIV3Schema": schema}, "name": "v1"}]}});
        let expected = concat!(
            r#"{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1","spec":{"versions":[{"name":"v1","#,
            r#""schema":{"openAPIV3Schema":{"type":"object","properties":{"a":{},"#,
            r#""z":{"type":"string","items":{"description":"d","type":"x"}}}}}}]}}"#,
        );
        assert_eq!(text(&definition), expected);
    }

    #[test]
    fn ordered_text_parses_to_the_same_tree() {
        let tree = json!({"kind": "Pod", "apiVersion": "v1", "spec": [1, {"b": {}, "a": []}], "metadata": "text", "status": null});
        assert_eq!(serde_json::from_str::<Value>(&text(&tree)).unwrap(), tree);
    }
}
