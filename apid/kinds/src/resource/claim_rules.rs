//! Defaults and validation of claims for devices.

use std::collections::BTreeSet;

use apimachinery::field::FieldErrors;

use super::rules;
use crate::defaults::{Fields, fill, fill_text, map_at, maps_in_list};
use crate::format;
use crate::validation::{Field, text};

/// Maximum number of alternatives of a request.
const ALTERNATIVES_MAX: usize = 8;
/// The allocation mode with an exact number of devices.
const EXACT_COUNT: &str = "ExactCount";

/// Sets the defaults of a claim.
pub(super) fn default(spec: &mut Fields) {
    let Some(devices) = map_at(spec, "devices") else { return };
    for request in maps_in_list(devices, "requests") {
        if let Some(exact) = map_at(request, "exactly") {
            default_request(exact);
        }
        maps_in_list(request, "firstAvailable").for_each(default_request);
    }
}

fn default_request(request: &mut Fields) {
    fill_text(request, "allocationMode", EXACT_COUNT);
    let is_exact = request.get("allocationMode").is_some_and(|mode| mode == EXACT_COUNT);
    if is_exact && request.get("count").is_none_or(|count| count.as_i64() == Some(0)) {
        request.remove("count");
        fill(request, "count", 1);
    }
    rules::default_tolerations(request);
}

/// Validates the specification of a claim.
pub(super) fn validate(spec: &Field<'_, '_>, errors: &mut FieldErrors) {
    let devices = spec.child("devices");
    let requests = devices.child("requests");
    requests.check_limit(rules::ITEMS_MAX, errors);
    let names = request_names(&requests);
    rules::check_unique(&requests, "name", errors);
    for item in requests.items() {
        validate_request(&item, errors);
    }
    let constraints = devices.child("constraints");
    constraints.check_limit(rules::ITEMS_MAX, errors);
    for constraint in constraints.items() {
        validate_references(&constraint.child("requests"), &names, errors);
        rules::validate_fully_qualified_name(&constraint.child("matchAttribute"), errors);
    }
    let config = devices.child("config");
    config.check_limit(rules::ITEMS_MAX, errors);
    for item in config.items() {
        validate_references(&item.child("requests"), &names, errors);
        rules::validate_configuration(&item, errors);
    }
}

/// Returns the names that constraints and configurations can reference: `request` and `request/alternative`.
fn request_names(requests: &Field<'_, '_>) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for request in requests.items() {
        let name = request.child("name").text().to_owned();
        for alternative in request.child("firstAvailable").items() {
            names.insert(format!("{name}/{}", alternative.child("name").text()));
        }
        names.insert(name);
    }
    names
}

fn validate_request(request: &Field<'_, '_>, errors: &mut FieldErrors) {
    text::require_format(&request.child("name"), format::label, errors);
    let (exact, alternatives) = (request.child("exactly"), request.child("firstAvailable"));
    match (exact.is_present(), !alternatives.list().is_empty()) {
        (true, true) => errors.push(request.invalid_value(
            serde_json::Value::Null,
            "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set",
        )),
        (false, false) => {
            errors.push(request.required("exactly one of `exactly` or `firstAvailable` is required"));
        }
        (true, false) => validate_exact_request(&exact, errors),
        (false, true) => {
            alternatives.check_limit(ALTERNATIVES_MAX, errors);
            rules::check_unique(&alternatives, "name", errors);
            for alternative in alternatives.items() {
                text::require_format(&alternative.child("name"), format::label, errors);
                validate_exact_request(&alternative, errors);
            }
        }
    }
}

fn validate_exact_request(request: &Field<'_, '_>, errors: &mut FieldErrors) {
    text::require_format(&request.child("deviceClassName"), format::subdomain, errors);
    rules::validate_selectors(&request.child("selectors"), errors);
    let (mode, count) = (request.child("allocationMode"), request.child("count"));
    match mode.text() {
        "All" if count.integer().is_some_and(|count| count != 0) => {
            errors.push(count.invalid("must not be specified when allocationMode is 'All'"));
        }
        "All" => {}
        EXACT_COUNT => {
            if count.integer().unwrap_or(0) <= 0 {
                errors.push(count.invalid("must be greater than zero"));
            }
        }
        _ => text::check_supported(&mode, &["All", EXACT_COUNT], errors),
    }
    rules::validate_tolerations(&request.child("tolerations"), errors);
}

fn validate_references(references: &Field<'_, '_>, names: &BTreeSet<String>, errors: &mut FieldErrors) {
    let mut seen = BTreeSet::new();
    for reference in references.items() {
        let name = reference.text();
        if !seen.insert(name) {
            errors.push(reference.duplicate());
        }
        for part in name.splitn(2, '/') {
            text::check_name(&reference, part, format::label, errors);
        }
        if !names.contains(name) {
            errors.push(reference.invalid(
                "must be the name of a request in the claim or the name of a request and a subrequest \
                 separated by '/'",
            ));
        }
    }
}
