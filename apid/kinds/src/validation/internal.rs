//! Errors that show values as the internal types of kube-apiserver: see [`InternalForm`].

use apimachinery::codec::json;
use apimachinery::field::{FieldError, FieldErrorKind, shorten_json};
use schema::InternalForm;
use serde_json::Value;

use super::Field;

/// The JSON text of a value of a type of the table, in the form of the internal type.
pub(crate) fn text_of_type(value: Option<&Value>, type_name: &str) -> String {
    json::to_text(&InternalForm::new(value, type_name))
}

/// The error `Invalid value`, which shows the value of a field as the internal type of a type of the table.
pub(crate) fn invalid_of_type(field: &Field<'_, '_>, type_name: &str, detail: &str) -> FieldError {
    FieldError::invalid_collection(&field.path(), &InternalForm::new(field.value(), type_name), detail)
}

/// The error `Invalid value`, which shows a value as the field `name` of the internal type of a type of the
/// table.
pub(crate) fn invalid_of_field(
    field: &Field<'_, '_>,
    type_name: &str,
    name: &str,
    detail: &str,
) -> FieldError {
    let form = InternalForm::of_field(field.value(), type_name, name);
    FieldError::invalid_collection(&field.path(), &form, detail)
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
