//! Rules for the subresources of a version.

use apimachinery::field::{FieldError, FieldErrors, FieldPath};

use super::columns::validate_json_path;
use super::props::Props;

/// Validates the subresources; `status` has no rules.
pub(super) fn validate_subresources(subresources: Option<Props<'_>>, path: &FieldPath) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let Some(scale) = subresources.and_then(|subresources| subresources.schema("scale")) else {
        return errors;
    };
    let path = path.child("scale");
    for (field, parent) in [("specReplicasPath", ".spec"), ("statusReplicasPath", ".status")] {
        match scale.text(field) {
            "" => errors.push(FieldError::required(&path.child(field), "")),
            text => {
                let detail = format!("should be a json path under {parent}");
                errors.extend(validate_path(text, &path.child(field), &[parent], &detail));
            }
        }
    }
    let selector = scale.text("labelSelectorPath");
    if !selector.is_empty() {
        let detail = "should be a json path under either .spec or .status";
        errors.extend(validate_path(
            selector,
            &path.child("labelSelectorPath"),
            &[".spec", ".status"],
            detail,
        ));
    }
    errors
}

/// Validates a JSON path below one of several fields.
fn validate_path(text: &str, path: &FieldPath, parents: &[&str], detail: &str) -> Option<FieldError> {
    let is_below = |parent: &&str| text.strip_prefix(*parent).is_some_and(|rest| rest.starts_with('.'));
    validate_json_path(text, path)
        .or_else(|| (!parents.iter().any(is_below)).then(|| FieldError::invalid(path, text, detail)))
}
