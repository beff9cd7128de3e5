//! Rules for `additionalPrinterColumns`, and for simple JSON paths.

use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::object::Value;

use super::props::Props;

const TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];

const FORMATS: [&str; 8] = ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];

/// Validates the printer columns of one version, or of all versions.
pub(super) fn validate_columns(columns: &[Value], path: &FieldPath) -> FieldErrors {
    let mut errors = FieldErrors::new();
    for (index, column) in columns.iter().enumerate() {
        if let Some(column) = Props::from_value(column) {
            errors.extend(validate_column(column, &path.index(index)));
        }
    }
    errors
}

fn validate_column(column: Props<'_>, path: &FieldPath) -> FieldErrors {
    let mut errors = FieldErrors::new();
    if column.text("name").is_empty() {
        errors.push(FieldError::required(&path.child("name"), ""));
    }
    let choices = |choices: &[&str]| format!("must be one of {}", choices.join(","));
    match column.ty() {
        "" => errors.push(FieldError::required(&path.child("type"), &choices(&TYPES))),
        ty if TYPES.contains(&ty) => {}
        ty => errors.push(FieldError::invalid(&path.child("type"), ty, &choices(&TYPES))),
    }
    let format = column.text("format");
    if !format.is_empty() && !FORMATS.contains(&format) {
        errors.push(FieldError::invalid(&path.child("format"), format, &choices(&FORMATS)));
    }
    // Errors name the field as the internal form of kube-apiserver does: `JSONPath`.
    let json_path = path.child("JSONPath");
    match column.text("jsonPath") {
        "" => errors.push(FieldError::required(&json_path, "")),
        text => errors.extend(validate_json_path(text, &json_path)),
    }
    errors
}

/// Validates a simple JSON path, which begins with a dot.
pub(super) fn validate_json_path(text: &str, path: &FieldPath) -> Option<FieldError> {
    (!text.starts_with('.'))
        .then(|| FieldError::invalid(path, text, "must be a simple json path starting with ."))
}
