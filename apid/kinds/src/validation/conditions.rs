//! Rules for the conditions of a status.

use std::collections::BTreeSet;

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;

use super::{Field, text};
use crate::format;

/// Maximum length, in bytes, of the reason of a condition.
const REASON_MAX: usize = 1024;
/// Maximum length, in bytes, of the message of a condition.
const MESSAGE_MAX: usize = 32 * 1024;

/// Message for an invalid reason.
const REASON: &str = "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric characters or '_,:', and must end with an alphanumeric character or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex used for validation is '[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')";

/// Validates a list of conditions with the standard fields.
pub(crate) fn validate(conditions: &Field<'_, '_>, errors: &mut FieldErrors) {
    check_unique_types(conditions, validate_condition, errors);
}

/// Reports conditions of a status without a type, or with the type of an earlier condition.
pub(crate) fn validate_condition_types(object: &Object) -> FieldErrors {
    let (status, mut errors) = (Field::new(object.get("status"), "status"), FieldErrors::new());
    let has_type = |condition: &Field<'_, '_>, errors: &mut FieldErrors| {
        text::require(&condition.child("type"), errors);
    };
    check_unique_types(&status.child("conditions"), has_type, &mut errors);
    errors
}

/// Reports repeated types, and validates each condition.
fn check_unique_types(
    conditions: &Field<'_, '_>,
    rule: impl Fn(&Field<'_, '_>, &mut FieldErrors),
    errors: &mut FieldErrors,
) {
    let mut types = BTreeSet::new();
    for condition in conditions.items() {
        let kind = condition.child("type");
        if !types.insert(kind.text()) {
            errors.push(kind.duplicate());
        }
        rule(&condition, errors);
    }
}

fn validate_condition(condition: &Field<'_, '_>, errors: &mut FieldErrors) {
    text::check_format(&condition.child("type"), format::qualified_name, errors);
    let status = condition.child("status");
    text::check_listed(&status, &["False", "True", "Unknown"], errors);
    let generation = condition.child("observedGeneration");
    if generation.integer().is_some_and(|generation| generation < 0) {
        errors.push(generation.invalid("must be greater than or equal to zero"));
    }
    condition.child("lastTransitionTime").require_present("", errors);
    let reason = condition.child("reason");
    text::check_length(&reason, REASON_MAX, errors);
    if reason.text().is_empty() {
        errors.push(reason.required(""));
    } else if !is_reason(reason.text()) {
        errors.push(reason.invalid(REASON));
    }
    text::check_length(&condition.child("message"), MESSAGE_MAX, errors);
}

/// Whether a text is a valid reason: `[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?`.
fn is_reason(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_,:".contains(&b))
        && !text.ends_with([',', ':'])
}
