//! Values with the shape of the internal types of kube-apiserver, which some messages show.
//!
//! # Contract
//!
//! The functions return JSON texts. [`render`] writes the fields in the given order, which is that of the Go type; it never
//! omits a field. The errors show these texts as their values.

use apimachinery::field::{FieldError, FieldErrorKind, shorten};
use serde_json::Value;

use super::Field;

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

/// `Invalid value` with a rendered value.
pub(crate) fn invalid(field: &Field<'_, '_>, shown: &str, detail: &str) -> FieldError {
    FieldError::invalid_text(&field.path(), shown, detail)
}

/// `Duplicate value` with a rendered value.
pub(crate) fn duplicate(field: &Field<'_, '_>, shown: &str, detail: &str) -> FieldError {
    let tail = format!("{}: {detail}", shorten(shown));
    FieldError::without_value(FieldErrorKind::Duplicate, &field.path(), &tail)
}

/// `Unsupported value` with a rendered value and the quoted supported values.
pub(crate) fn not_supported(field: &Field<'_, '_>, shown: &str, supported: &str) -> FieldError {
    let tail = format!("{}: supported values: {supported}", shorten(shown));
    FieldError::without_value(FieldErrorKind::NotSupported, &field.path(), &tail)
}
