//! Rules that the kinds of devices share: drivers, pools, selectors, configurations and tolerations.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use apimachinery::field::{FieldError, FieldErrors};
use expressions::{Environment, Type};

use crate::defaults::{Fields, fill_text, maps_in_list};
use crate::format;
use crate::validation::{Field, text};

/// Maximum number of items in each list of selectors, configurations or constraints.
pub(super) const ITEMS_MAX: usize = 32;
/// Maximum length, in bytes, of a driver name.
const DRIVER_MAX: usize = 63;
/// Maximum length, in bytes, of a pool name.
const POOL_MAX: usize = 253;
/// Maximum length, in bytes, of an identifier.
const IDENTIFIER_MAX: usize = 32;

/// Message for an invalid C identifier.
const IDENTIFIER: &str = "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is '[A-Za-z_][A-Za-z0-9_]*')";

/// Type of the variable `device` of a selector.
static DEVICE: LazyLock<Type> = LazyLock::new(|| {
    let by_domain = |ty| Type::map(Type::String, Type::map(Type::String, ty));
    Type::object(
        "Device",
        [
            ("driver".to_owned(), Type::String),
            ("attributes".to_owned(), by_domain(Type::Dyn)),
            ("capacity".to_owned(), by_domain(Type::Dyn)),
        ],
    )
});

/// Validates the name of a driver.
pub(super) fn validate_driver(field: &Field<'_, '_>, errors: &mut FieldErrors) {
    if field.text().is_empty() {
        errors.push(field.required(""));
        return;
    }
    text::check_length(field, DRIVER_MAX, errors);
    text::check_format(field, |name| format::subdomain(&name.to_lowercase()), errors);
}

/// Validates the name of a pool: subdomains with slashes between them.
pub(super) fn validate_pool(field: &Field<'_, '_>, errors: &mut FieldErrors) {
    if field.text().is_empty() {
        errors.push(field.required(""));
        return;
    }
    text::check_length(field, POOL_MAX, errors);
    for part in field.text().split('/') {
        text::check_name(field, part, format::subdomain, errors);
    }
}

/// Validates the selectors of devices.
pub(super) fn validate_selectors(selectors: &Field<'_, '_>, errors: &mut FieldErrors) {
    selectors.check_limit(ITEMS_MAX, errors);
    for selector in selectors.items() {
        let cel = selector.child("cel");
        if !cel.is_present() {
            errors.push(cel.required(""));
            continue;
        }
        let expression = cel.child("expression");
        match Environment::new().variable("device", DEVICE.clone()).compile(expression.text()) {
            Err(error) => errors.push(expression.invalid(&error.reason())),
            Ok(program) if !matches!(program.result_type(), Type::Bool | Type::Dyn) => {
                let found = program.result_type();
                let detail = format!("must evaluate to bool or the unknown type, not {found}");
                errors.push(expression.invalid(&detail));
            }
            Ok(_) => {}
        }
    }
}

/// Validates the configuration of a driver.
pub(super) fn validate_configuration(owner: &Field<'_, '_>, errors: &mut FieldErrors) {
    let opaque = owner.child("opaque");
    if !opaque.is_present() {
        errors.push(opaque.required(""));
        return;
    }
    validate_driver(&opaque.child("driver"), errors);
    let parameters = opaque.child("parameters");
    match parameters.value() {
        None => errors.push(parameters.required("")),
        Some(value) if !value.is_object() => {
            errors.push(parameters.invalid_value("<value omitted>", "must be a valid JSON object"));
        }
        Some(_) => {}
    }
}

/// Validates a fully qualified name: a domain, a slash and a C identifier.
pub(super) fn validate_fully_qualified_name(field: &Field<'_, '_>, errors: &mut FieldErrors) {
    if field.text().is_empty() {
        errors.push(field.required(""));
        return;
    }
    let Some((domain, name)) = field.text().split_once('/') else {
        errors.push(field.invalid("a fully qualified name must be a domain and a name separated by a slash"));
        return;
    };
    text::check_name(field, domain, format::subdomain, errors);
    validate_identifier(field, name, errors);
}

/// Validates a C identifier.
pub(super) fn validate_identifier(field: &Field<'_, '_>, name: &str, errors: &mut FieldErrors) {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.len() > IDENTIFIER_MAX {
        errors.push(FieldError::too_long(&field.path(), IDENTIFIER_MAX));
    }
    if name.is_empty() || !name.chars().all(is_part) || name.starts_with(|c: char| c.is_ascii_digit()) {
        errors.push(field.invalid_value(name, IDENTIFIER));
    }
}

/// Validates the taint of a device.
pub(super) fn validate_taint(taint: &Field<'_, '_>, errors: &mut FieldErrors) {
    text::check_format(&taint.child("key"), format::qualified_name, errors);
    text::check_format(&taint.child("value"), format::label_value, errors);
    text::require_supported(&taint.child("effect"), &["NoExecute", "NoSchedule"], errors);
}

/// Validates the tolerations of a request.
pub(super) fn validate_tolerations(tolerations: &Field<'_, '_>, errors: &mut FieldErrors) {
    for toleration in tolerations.items() {
        let (key, value) = (toleration.child("key"), toleration.child("value"));
        let operator = toleration.child("operator");
        text::check_nonempty_format(&key, format::qualified_name, errors);
        match operator.text() {
            "Exists" if !value.text().is_empty() => {
                errors.push(value.invalid("must be empty for operator `Exists`"));
            }
            "Equal" if key.text().is_empty() => errors.push(key.required("must be set for operator `Equal`")),
            _ => {}
        }
        text::require_supported(&operator, &["Equal", "Exists"], errors);
        if operator.text() == "Equal" {
            text::check_format(&value, format::label_value, errors);
        }
        let effect = toleration.child("effect");
        if !effect.text().is_empty() {
            text::check_supported(&effect, &["NoExecute", "NoSchedule"], errors);
        }
    }
}

/// Sets the default operator of tolerations.
pub(super) fn default_tolerations(owner: &mut Fields) {
    for toleration in maps_in_list(owner, "tolerations") {
        fill_text(toleration, "operator", "Equal");
    }
}

/// Reports list items that repeat the value of the field `key`.
pub(super) fn check_unique(list: &Field<'_, '_>, key: &str, errors: &mut FieldErrors) {
    let mut seen = BTreeSet::new();
    for item in list.items() {
        let name = item.child(key).text();
        if !name.is_empty() && !seen.insert(name) {
            errors.push(item.duplicate_value(name));
        }
    }
}
