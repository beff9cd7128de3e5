//! From schemas to types of expressions, as the specification's table says.
//!
//! # Contract
//! - A part of a schema that says no type (such as one that only keeps unknown fields) has no type in
//!   expressions either: the field is not there for them. Unknown fields are never accessible.
//! - Type names are paths below the name of the root: `name.field`, `name.field.@idx` for elements of a
//!   list, `name.field.@elem` for values of a map.

use crate::types::{ListKind, Type};

/// The type that a schema names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchemaType {
    /// An object or a map.
    Object,
    /// A list.
    Array,
    /// Text, or what its format says.
    String,
    /// An integer of any format.
    Integer,
    /// A number of any format.
    Number,
    /// A truth value.
    Boolean,
    /// An integer or a string.
    IntOrString,
    /// No type is named.
    Unspecified,
}

/// What types and [`Bounds`](crate::Bounds) ask a schema.
pub trait Schema {
    /// The named type.
    fn schema_type(&self) -> SchemaType;
    /// The format of a string.
    fn format(&self) -> Option<&str>;
    /// The declared properties, by their names in the data.
    fn properties(&self) -> Vec<(&str, &dyn Schema)>;
    /// The schema of the values of a map.
    fn additional_properties(&self) -> Option<&dyn Schema>;
    /// The schema of the elements of a list.
    fn items(&self) -> Option<&dyn Schema>;
    /// What the list type says.
    fn list_kind(&self) -> ListKind;
    /// Whether it is an object with `apiVersion`, `kind` and `metadata`: an embedded one, or the root.
    fn embedded(&self) -> bool;
    /// The greatest length of a string, in characters.
    fn max_length(&self) -> Option<u64>;
    /// The greatest number of elements of a list.
    fn max_items(&self) -> Option<u64>;
    /// The greatest number of entries of a map.
    fn max_properties(&self) -> Option<u64>;
    /// The length of the longest of the strings that are allowed, when they are listed.
    fn longest_enum(&self) -> Option<u64>;
    /// Whether an object must have the property.
    fn requires(&self, property: &str) -> bool;
    /// Whether a missing value is filled in.
    fn has_default(&self) -> bool;
}

impl Type {
    /// The type of a schema; `None` where it names no type. `name` identifies the schema: types of
    /// different names are different types.
    pub fn of_schema(schema: &dyn Schema, name: &str) -> Option<Type> {
        Some(match schema.schema_type() {
            SchemaType::Boolean => Type::Bool,
            SchemaType::Integer => Type::Int,
            SchemaType::Number => Type::Double,
            // Which of the two it is shows when the expression runs.
            SchemaType::IntOrString => Type::Dyn,
            SchemaType::Unspecified => return None,
            SchemaType::String => match schema.format() {
                Some("byte") => Type::Bytes,
                Some("date" | "date-time" | "datetime") => Type::Timestamp,
                Some("duration") => Type::Duration,
                _ => Type::String,
            },
            SchemaType::Array => {
                let element = Type::of_schema(schema.items()?, &format!("{name}.@idx"))?;
                Type::list_of_kind(element, schema.list_kind())
            }
            SchemaType::Object => {
                if let Some(values) = schema.additional_properties() {
                    return Some(Type::map(Type::String, Type::of_schema(values, &format!("{name}.@elem"))?));
                }
                object(schema, name)
            }
        })
    }
}

fn object(schema: &dyn Schema, name: &str) -> Type {
    let mut fields: Vec<(String, Type)> = Vec::new();
    for (field, part) in schema.properties() {
        if let Some(ty) = Type::of_schema(part, &format!("{name}.{field}")) {
            fields.push((field.to_owned(), ty));
        }
    }
    if schema.embedded() {
        let text = |name: &str| (name.to_owned(), Type::String);
        let metadata = Type::object(format!("{name}.metadata"), [text("name"), text("generateName")]);
        fields.retain(|(field, _)| !["apiVersion", "kind", "metadata"].contains(&field.as_str()));
        fields.extend([text("apiVersion"), text("kind"), ("metadata".to_owned(), metadata)]);
    }
    Type::object(name, fields)
}
