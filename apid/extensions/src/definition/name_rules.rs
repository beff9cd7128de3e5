//! Rules for the name of a definition, its group and scope, and the names of its kind.

use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::format;
use apimachinery::object::{Object, Value};

use super::props::Props;
use super::spec::Spec;

/// Prefix of the messages for names that may have upper-case letters.
const MIXED_CASE: &str = "may have mixed case, but should otherwise match: ";

/// Validates that the object name is the plural name and the group.
pub(super) fn validate_object_name(definition: &Object, spec: &Spec<'_>) -> FieldErrors {
    let path = FieldPath::new("metadata");
    let required = format!("{}.{}", spec.requested_name("plural"), spec.text("group"));
    ["generateName", "name"]
        .into_iter()
        .filter(|field| !definition.meta_str(field).is_empty() && definition.meta_str(field) != required)
        .map(|field| {
            let detail = "must be spec.names.plural+\".\"+spec.group";
            FieldError::invalid(&path.child(field), definition.meta_str(field), detail)
        })
        .collect()
}

/// Validates the group.
pub(super) fn validate_group(group: &str, path: &FieldPath) -> FieldErrors {
    let messages = format::subdomain(group);
    if group.is_empty() {
        FieldError::required(path, "").into()
    } else if !messages.is_empty() {
        FieldError::invalid(path, group, &messages.join(",")).into()
    } else if !group.contains('.') {
        FieldError::invalid(path, group, "should be a domain with at least one dot").into()
    } else {
        FieldErrors::new()
    }
}

/// Validates a required text with a fixed set of values.
pub(super) fn validate_choice(value: &str, path: &FieldPath, choices: &[&str]) -> Option<FieldError> {
    match value {
        "" => Some(FieldError::required(path, "")),
        value if choices.contains(&value) => None,
        value => Some(FieldError::not_supported(path, value, choices)),
    }
}

/// Validates the name of a version, or a name in `names`, as an RFC 1035 label.
pub(super) fn validate_label(value: &str, path: &FieldPath) -> Option<FieldError> {
    let messages = format::label_1035(value);
    (!messages.is_empty()).then(|| FieldError::invalid(path, value, &messages.join(",")))
}

/// Validates that the required names are present.
pub(super) fn validate_required_names(spec: &Spec<'_>, path: &FieldPath) -> FieldErrors {
    ["plural", "singular", "kind", "listKind"]
        .into_iter()
        .filter(|field| spec.requested_name(field).is_empty())
        .map(|field| FieldError::required(&path.child(field), ""))
        .collect()
}

/// Validates the format of `spec.names` or `status.acceptedNames`.
pub(super) fn validate_names(names: Option<Props<'_>>, path: &FieldPath) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let Some(names) = names else { return errors };
    for field in ["plural", "singular"] {
        if !names.text(field).is_empty() {
            errors.extend(validate_label(names.text(field), &path.child(field)));
        }
    }
    for field in ["kind", "listKind"] {
        let messages = format::label_1035(&names.text(field).to_lowercase());
        if !names.text(field).is_empty() && !messages.is_empty() {
            let detail = format!("{MIXED_CASE}{}", messages.join(","));
            errors.push(FieldError::invalid(&path.child(field), names.text(field), &detail));
        }
    }
    errors.extend(validate_labels(names.list("shortNames"), &path.child("shortNames")));
    let (kind, list_kind) = (names.text("kind"), names.text("listKind"));
    if !kind.is_empty() && kind == list_kind {
        let detail = "kind and listKind may not be the same";
        errors.push(FieldError::invalid(&path.child("listKind"), list_kind, detail));
    }
    errors.extend(validate_labels(names.list("categories"), &path.child("categories")));
    errors
}

fn validate_labels(list: &[Value], path: &FieldPath) -> FieldErrors {
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    list.iter()
        .enumerate()
        .filter_map(|(index, value)| validate_label(&text(value), &path.index(index)))
        .collect()
}
