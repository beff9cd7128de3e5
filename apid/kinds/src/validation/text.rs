//! Rules for texts: required texts, enumerations and formats.

use apimachinery::field::{FieldError, FieldErrors};

use super::Field;
use crate::format;

/// Message for an invalid path after a domain.
const HTTP_PATH: &str = "a valid path must consist of alphanumeric characters, '-', '.', '_', '~', '%', '!', '$', '&', ''', '(', ')', '*', '+', ',', ';', '=' or ':' (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')";

/// Reports a missing text.
pub(crate) fn require(field: &Field<'_, '_>, errors: &mut FieldErrors) {
    if field.text().is_empty() {
        errors.push(field.required(""));
    }
}

/// Reports an absent or empty text as required, and any other text that is not a supported value.
pub(crate) fn require_supported(field: &Field<'_, '_>, supported: &[&str], errors: &mut FieldErrors) {
    match field.text() {
        "" => errors.push(field.required("")),
        text if supported.contains(&text) => {}
        _ => errors.push(field.not_supported(supported)),
    }
}

/// Reports a text, even an empty one, that is not a supported value. An absent text is valid.
pub(crate) fn check_supported(field: &Field<'_, '_>, supported: &[&str], errors: &mut FieldErrors) {
    if field.is_present() && !supported.contains(&field.text()) {
        errors.push(field.not_supported(supported));
    }
}

/// Reports an absent text as required, and any other text, even an empty one, that is not a supported value.
pub(crate) fn require_present_and_supported(
    field: &Field<'_, '_>,
    supported: &[&str],
    errors: &mut FieldErrors,
) {
    if !field.is_present() {
        errors.push(field.required(""));
    }
    check_supported(field, supported, errors);
}

/// Reports a text that is not a supported value. Unlike [`check_supported`], an absent text counts as an empty
/// one.
pub(crate) fn check_listed(field: &Field<'_, '_>, supported: &[&str], errors: &mut FieldErrors) {
    if !supported.contains(&field.text()) {
        errors.push(FieldError::not_supported(&field.path(), field.text(), supported));
    }
}

/// Reports the messages of a format, such as [`format::label`]. The format also checks an empty text.
pub(crate) fn check_format(
    field: &Field<'_, '_>,
    format: impl Fn(&str) -> Vec<String>,
    errors: &mut FieldErrors,
) {
    check_name(field, field.text(), format, errors);
}

/// Reports the messages of a format about a text that is not empty.
pub(crate) fn check_nonempty_format(
    field: &Field<'_, '_>,
    format: impl Fn(&str) -> Vec<String>,
    errors: &mut FieldErrors,
) {
    if !field.text().is_empty() {
        check_format(field, format, errors);
    }
}

/// Reports the messages of a format about a present text, also about an empty one.
pub(crate) fn check_present_format(
    field: &Field<'_, '_>,
    format: impl Fn(&str) -> Vec<String>,
    errors: &mut FieldErrors,
) {
    if field.is_present() {
        check_format(field, format, errors);
    }
}

/// Reports a text with more than `max` bytes.
pub(crate) fn check_length(field: &Field<'_, '_>, max: usize, errors: &mut FieldErrors) {
    if field.text().len() > max {
        errors.push(FieldError::too_long(&field.path(), max));
    }
}

/// Reports the messages of a format about a name, a key or a label value at the path of a field. Returns
/// whether the name is valid.
pub(crate) fn check_name(
    field: &Field<'_, '_>,
    name: &str,
    format: impl Fn(&str) -> Vec<String>,
    errors: &mut FieldErrors,
) -> bool {
    let messages = format(name);
    for message in &messages {
        errors.push(field.invalid_name(name, message));
    }
    messages.is_empty()
}

/// Reports a missing text, or the messages of a format.
pub(crate) fn require_format(
    field: &Field<'_, '_>,
    format: impl Fn(&str) -> Vec<String>,
    errors: &mut FieldErrors,
) {
    require_described_format(field, "", format, errors);
}

/// Reports a missing text with a description, and the messages of a format about any other text.
pub(crate) fn require_described_format(
    field: &Field<'_, '_>,
    detail: &str,
    format: impl Fn(&str) -> Vec<String>,
    errors: &mut FieldErrors,
) {
    if field.text().is_empty() {
        errors.push(field.required(detail));
    } else {
        check_format(field, format, errors);
    }
}

/// Validates a path with a domain as its first segment: `acme.io/foo`.
pub(crate) fn check_domain_prefixed_path(field: &Field<'_, '_>, errors: &mut FieldErrors) {
    if field.text().is_empty() {
        errors.push(field.required(""));
        return;
    }
    let parts = field.text().split_once('/').filter(|(domain, path)| !domain.is_empty() && !path.is_empty());
    let Some((domain, path)) = parts else {
        errors.push(field.invalid("must be a domain-prefixed path (such as \"acme.io/foo\")"));
        return;
    };
    check_name(field, domain, format::subdomain, errors);
    let is_path = |b: u8| b.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&b);
    if !path.bytes().all(is_path) {
        errors.push(field.invalid_value(path, HTTP_PATH));
    }
}

/// Validates the labels of a map.
pub(crate) fn check_labels(field: &Field<'_, '_>, errors: &mut FieldErrors) {
    for (key, value) in field.entries() {
        check_name(field, key, format::qualified_name, errors);
        check_name(field, value.text(), format::label_value, errors);
    }
}
