//! Expression types of the objects of a kind, for type checks.
//!
//! # Reference
//!
//! Built-in types come from the type table, types of custom kinds from their schema with the metadata of all objects.
//! Quantities, integers-or-strings and arbitrary values are dynamic. A type nested in itself is dynamic.

use std::sync::Arc;

use expressions::{Field, ListKind, ObjectType, Type};
use schema::facts::{self, Shape};

use crate::{Kind, KindSchema};

const METADATA: &str = "meta/v1.ObjectMeta";

/// Type of the objects of a kind; None if a schema of a custom kind declares no type.
pub fn object_type(kind: &Kind) -> Option<Type> {
    match &kind.schema {
        KindSchema::Table(name) => Some(named_type(name, &mut Vec::new())),
        KindSchema::Definition(schema) => {
            let Type::Object(schema_type) = schema.object_type()? else { return None };
            let mut fields = schema_type.fields.clone();
            let metadata = Field { name: "metadata".to_owned(), ty: named_type(METADATA, &mut Vec::new()) };
            fields.insert("metadata".to_owned(), metadata);
            Some(Type::Object(Arc::new(ObjectType { name: schema_type.name.clone(), fields })))
        }
    }
}

/// Expression type of a type in the type table; `outer` are the names of the enclosing types.
fn named_type(name: &'static str, outer: &mut Vec<&'static str>) -> Type {
    match name {
        "Time" | "MicroTime" => return Type::Timestamp,
        _ if outer.contains(&name) => return Type::Dyn,
        _ => {}
    }
    let Some(fields) = facts::fields(name) else { return Type::Dyn };
    outer.push(name);
    let fields: Vec<(String, Type)> =
        fields.iter().map(|field| (field.name.to_owned(), field_type(field, outer))).collect();
    outer.pop();
    Type::object(name, fields)
}

fn field_type(field: &facts::Field, outer: &mut Vec<&'static str>) -> Type {
    let kind = match field.list {
        Some("set") => ListKind::Set,
        Some("map") => ListKind::Map(field.keys.iter().map(|key| (*key).to_owned()).collect()),
        _ => ListKind::Atomic,
    };
    match field.shape.target() {
        Shape::List(element) => Type::list_of_kind(shape_type(element, outer), kind),
        shape => shape_type(shape, outer),
    }
}

fn shape_type(shape: &Shape, outer: &mut Vec<&'static str>) -> Type {
    match shape {
        Shape::String(_) => Type::String,
        Shape::Bool => Type::Bool,
        Shape::Int32 | Shape::Int64 => Type::Int,
        Shape::Float64 => Type::Double,
        Shape::Bytes => Type::Bytes,
        Shape::Named(name) => named_type(name, outer),
        Shape::Pointer(target) => shape_type(target, outer),
        Shape::List(element) => Type::list(shape_type(element, outer)),
        Shape::Map(values) => Type::map(Type::String, shape_type(values, outer)),
    }
}
