//! Rules for `selectableFields`.

use std::collections::HashSet;

use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::object::Value;

use super::field_path::resolve;
use super::props::Props;
use crate::path_names::PathSyntax;

/// Maximum number of selectable fields of a version; more fields are an error.
const FIELDS_MAX: usize = 8;

/// Validates the selectable fields of a version against its schema.
pub(super) fn validate_selectable_fields(
    fields: &[Value],
    schema: Props<'_>,
    path: &FieldPath,
) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let mut seen_paths = HashSet::new();
    for (index, field) in fields.iter().enumerate() {
        let path = path.index(index).child("jsonPath");
        let text = Props::from_value(field).map_or("", |field| field.text("jsonPath"));
        if text.is_empty() {
            errors.push(FieldError::required(&path, ""));
            continue;
        }
        let resolved = match resolve(text, schema, PathSyntax::Dotted) {
            Ok(resolved) => resolved,
            Err(reason) => {
                errors.push(FieldError::invalid(&path, text, &format!("is an invalid path: {reason}")));
                continue;
            }
        };
        if resolved.root == "metadata" {
            errors.push(FieldError::invalid(&path, text, "must not point to fields in metadata"));
        }
        if !resolved.schema.is_some_and(|schema| matches!(schema.ty(), "string" | "boolean" | "integer")) {
            let detail = "must point to a field of type string, boolean or integer. \
                          Enum string fields and strings with formats are allowed.";
            errors.push(FieldError::invalid(&path, text, detail));
        }
        if !seen_paths.insert(resolved.text) {
            errors.push(FieldError::duplicate(&path, text));
        }
    }
    if seen_paths.len() > FIELDS_MAX {
        errors.push(FieldError::too_many(path, seen_paths.len(), FIELDS_MAX));
    }
    errors
}
