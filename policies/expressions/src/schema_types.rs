//! Conversion of schemas to CEL types, according to the table of the specification.
//!
//! # Contract
//! - A schema part without a type (such as one that only preserves unknown fields) has no CEL type.
//! - Expressions cannot access fields without a CEL type, and never unknown fields.
//! - Type names are paths below the root name: `name.field`, `name.field.@idx` for list elements,
//!   `name.field.@elem` for map values.

use crate::types::{ListKind, Type};

/// Type keyword of a schema.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SchemaType {
    /// An object or a map.
    Object,
    /// A list.
    Array,
    /// A string, or the type of its format.
    String,
    /// An integer of any format.
    Integer,
    /// A number of any format.
    Number,
    /// A boolean.
    Boolean,
    /// An integer or a string.
    IntOrString,
    /// No type.
    #[default]
    Unspecified,
}

impl SchemaType {
    /// The keyword; empty without a type and for an integer or a string.
    pub fn name(self) -> &'static str {
        match self {
            SchemaType::Object => "object",
            SchemaType::Array => "array",
            SchemaType::String => "string",
            SchemaType::Integer => "integer",
            SchemaType::Number => "number",
            SchemaType::Boolean => "boolean",
            SchemaType::IntOrString | SchemaType::Unspecified => "",
        }
    }
}

/// Access to a schema, for the conversion to types and [`Bounds`](crate::Bounds).
pub trait Schema {
    /// Type keyword.
    fn schema_type(&self) -> SchemaType;
    /// Format of a string.
    fn format(&self) -> Option<&str>;
    /// Declared properties, by their names in the data.
    fn properties(&self) -> Vec<(&str, &dyn Schema)>;
    /// Schema of map values.
    fn additional_properties(&self) -> Option<&dyn Schema>;
    /// Schema of list elements.
    fn items(&self) -> Option<&dyn Schema>;
    /// List type.
    fn list_kind(&self) -> ListKind;
    /// Whether the object has `apiVersion`, `kind` and `metadata`: an embedded object or the root.
    fn embedded(&self) -> bool;
    /// Maximum length of a string in characters.
    fn max_length(&self) -> Option<u64>;
    /// Maximum number of list elements.
    fn max_items(&self) -> Option<u64>;
    /// Maximum number of map entries.
    fn max_properties(&self) -> Option<u64>;
    /// Length of the longest `enum` string, if the schema has an `enum`.
    fn longest_enum(&self) -> Option<u64>;
    /// Whether the property is required.
    fn requires(&self, property: &str) -> bool;
    /// Whether the schema has a default.
    fn has_default(&self) -> bool;
}

impl Type {
    /// CEL type of a schema; `None` if the schema has no type.
    /// `name` identifies the schema: different names are different types.
    pub fn of_schema(schema: &dyn Schema, name: &str) -> Option<Type> {
        Some(match schema.schema_type() {
            SchemaType::Boolean => Type::Bool,
            SchemaType::Integer => Type::Int,
            SchemaType::Number => Type::Double,
            // Evaluation determines the actual type.
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
