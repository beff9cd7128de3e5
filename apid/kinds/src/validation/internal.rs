//! Values with the shape of the internal types of kube-apiserver, which some messages show.
//!
//! # Contract
//!
//! The functions return JSON texts. [`render`] writes the fields in the given order, which is that of the Go type; it never
//! omits a field. The errors show these texts as their values.

use apimachinery::field::{FieldError, FieldErrorKind, shorten_json};
use schema::InternalForm;
use schema::key_order::text_of_type;
use serde_json::Value;

use super::Field;

/// The shape of a value of an internal type.
pub(crate) enum Shape {
    /// A string; `""` if absent.
    Text,
    /// A number; 0 if absent.
    Number,
    /// A boolean; false if absent.
    Flag,
    /// A value in the form of the request; `null` if absent.
    Any,
    /// A structure.
    Struct(&'static [Member]),
    /// A value of a type of the API, in the form of the request; `null` if absent.
    Api(&'static str),
    /// A value of another shape; `null` if absent.
    Optional(&'static Shape),
    /// A list; `null` if it is absent or empty.
    List(&'static Shape),
}

/// A field of an internal type: its name in Go, its name in JSON, and its shape.
pub(crate) struct Member(pub(crate) &'static str, pub(crate) &'static str, pub(crate) Shape);

/// The members of the internal type of a reference to an object.
pub(crate) const OBJECT_REFERENCE: &[Member] = &[
    Member("Kind", "kind", Shape::Text),
    Member("Namespace", "namespace", Shape::Text),
    Member("Name", "name", Shape::Text),
    Member("UID", "uid", Shape::Text),
    Member("APIVersion", "apiVersion", Shape::Text),
    Member("ResourceVersion", "resourceVersion", Shape::Text),
    Member("FieldPath", "fieldPath", Shape::Text),
];

/// Renders a value of an internal type.
pub(crate) fn render_value(value: Option<&Value>, shape: &Shape) -> String {
    let value = value.filter(|value| !value.is_null());
    match shape {
        Shape::Text => text(value.and_then(Value::as_str).unwrap_or("")),
        Shape::Number => value.map_or_else(|| "0".to_owned(), Value::to_string),
        Shape::Flag => value.map_or_else(|| "false".to_owned(), Value::to_string),
        Shape::Any => self::value(value),
        Shape::Api(type_name) => {
            value.map_or_else(|| "null".to_owned(), |value| text_of_type(value, type_name))
        }
        Shape::Struct(members) => {
            let member = |Member(name, field, shape): &Member| -> (&str, String) {
                (*name, render_value(value.and_then(|value| value.get(*field)), shape))
            };
            render(&members.iter().map(member).collect::<Vec<_>>())
        }
        Shape::Optional(shape) => {
            value.map_or_else(|| "null".to_owned(), |value| render_value(Some(value), shape))
        }
        Shape::List(shape) => match value.and_then(Value::as_array) {
            Some(items) if !items.is_empty() => {
                let items: Vec<String> = items.iter().map(|item| render_value(Some(item), shape)).collect();
                format!("[{}]", items.join(","))
            }
            _ => "null".to_owned(),
        },
    }
}

/// The error `Invalid value`, which shows the value of a field as its internal type.
pub(crate) fn invalid_value(field: &Field<'_, '_>, shape: &Shape, detail: &str) -> FieldError {
    invalid(field, &render_value(field.value(), shape), detail)
}

/// The error `Invalid value`, which shows the value of a field as the internal type of a type of the table.
pub(crate) fn invalid_of_type(field: &Field<'_, '_>, type_name: &str, detail: &str) -> FieldError {
    FieldError::invalid_collection(&field.path(), &InternalForm::new(field.value(), type_name), detail)
}

/// Renders a structure from names and rendered values.
pub(crate) fn render(fields: &[(&str, String)]) -> String {
    let fields: Vec<String> = fields.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
    format!("{{{}}}", fields.join(","))
}

/// Renders a value; an absent value is `null`.
pub(crate) fn value(value: Option<&Value>) -> String {
    value.map_or_else(|| "null".to_owned(), Value::to_string)
}

/// Renders a text.
pub(crate) fn text(text: &str) -> String {
    Value::from(text).to_string()
}

/// The error `Invalid value` with a rendered value.
pub(crate) fn invalid(field: &Field<'_, '_>, value_text: &str, detail: &str) -> FieldError {
    FieldError::invalid_json(&field.path(), value_text, detail)
}

/// The error `Duplicate value` with a rendered value.
pub(crate) fn duplicate(field: &Field<'_, '_>, value_text: &str, detail: &str) -> FieldError {
    let tail = format!("{}: {detail}", shorten_json(value_text));
    FieldError::without_value(FieldErrorKind::Duplicate, &field.path(), &tail)
}

/// The error `Duplicate value` with a rendered value, without a detail.
pub(crate) fn duplicate_value(field: &Field<'_, '_>, value_text: &str) -> FieldError {
    FieldError::without_value(FieldErrorKind::Duplicate, &field.path(), &shorten_json(value_text))
}

/// The error `Unsupported value` with a rendered value and the quoted supported values.
pub(crate) fn not_supported(field: &Field<'_, '_>, value_text: &str, supported: &str) -> FieldError {
    let tail = format!("{}: supported values: {supported}", shorten_json(value_text));
    FieldError::without_value(FieldErrorKind::NotSupported, &field.path(), &tail)
}
