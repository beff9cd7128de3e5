//! ValidatingAdmissionPolicyBinding: scope and actions of an admission policy.

use std::collections::BTreeSet;

use apimachinery::clock::Clock;
use apimachinery::field::FieldErrors;
use apimachinery::object::Object;
use serde_json::json;

use super::match_rules;
use crate::defaults::part;
use crate::format;
use crate::same_fields::same_fields;
use crate::table::cell::{PathReader, UNSET, selector};
use crate::table::{AGE, NAME, age};
use crate::validation::{Field, text};
use crate::{Column, Context, Generation, Kind, MetadataChecks, Strategy, Table};

pub(super) const KIND: Kind = Kind {
    group: "admissionregistration",
    kind: "ValidatingAdmissionPolicyBinding",
    resource: "validatingadmissionpolicybindings",
    singular: "validatingadmissionpolicybinding",
    categories: &["api-extensions"],
    schema: "admissionregistration/v1.ValidatingAdmissionPolicyBinding",
    metadata_checks: MetadataChecks::ALL,
    restricts_finalizers: false,
    generation: Generation::Counted(&[]),
    unconditional_update: false,
    table: &TABLE,
    strategy: &ValidatingAdmissionPolicyBinding,
    ..Kind::CLUSTER_SCOPED
};

/// The kind in its beta version.
pub(super) const V1BETA1: Kind =
    same_fields(KIND, &["v1beta1"], "admissionregistration/v1beta1.ValidatingAdmissionPolicyBinding");

/// The kind in its alpha version.
pub(super) const V1ALPHA1: Kind =
    same_fields(KIND, &["v1alpha1"], "admissionregistration/v1alpha1.ValidatingAdmissionPolicyBinding");

struct ValidatingAdmissionPolicyBinding;

impl Strategy for ValidatingAdmissionPolicyBinding {
    fn default(&self, object: &mut Object, _ctx: &Context<'_>) {
        if let Some(spec) = part(object, "spec") {
            match_rules::default_resources_at(spec, "matchResources");
        }
    }

    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        let spec = Field::new(object.get("spec"), "spec");
        let mut errors = FieldErrors::new();
        text::require_format(&spec.child("policyName"), format::subdomain, &mut errors);
        validate_parameters(&spec.child("paramRef"), &mut errors);
        match_rules::validate_match_resources(&spec.child("matchResources"), &mut errors);
        validate_actions(&spec.child("validationActions"), &mut errors);
        errors
    }
}

/// Validates the reference to parameters.
pub(super) fn validate_parameters(reference: &Field<'_, '_>, errors: &mut FieldErrors) {
    if !reference.is_present() {
        return;
    }
    let (name, selector) = (reference.child("name"), reference.child("selector"));
    match (name.text().is_empty(), selector.is_present()) {
        (false, true) => {
            for field in [&name, &selector] {
                errors.push(field.forbidden("name and selector are mutually exclusive"));
            }
        }
        (true, false) => errors.push(reference.required("one of name or selector must be specified")),
        (false, false) => text::check_format(&name, |name| format::path_segment(name, false), errors),
        (true, true) => match_rules::validate_selector(&selector, errors),
    }
    text::require_supported(&reference.child("parameterNotFoundAction"), &["Allow", "Deny"], errors);
}

fn validate_actions(actions: &Field<'_, '_>, errors: &mut FieldErrors) {
    if actions.list().is_empty() {
        errors.push(actions.required("at least one validation action is required"));
    }
    let mut seen = BTreeSet::new();
    for action in actions.items() {
        if !matches!(action.text(), "Audit" | "Deny" | "Warn") {
            errors.push(action.not_supported(&["Audit", "Deny", "Warn"]));
        } else if !seen.insert(action.text()) {
            errors.push(action.duplicate());
        }
    }
    if seen.contains("Deny") && seen.contains("Warn") {
        errors.push(actions.invalid(
            "must not contain both Deny and Warn (repeating the same validation failure information in the API \
             response and headers serves no purpose)",
        ));
    }
}

/// Table of the bindings of validating and of mutating admission policies.
pub(super) static TABLE: Table = Table {
    columns: &[
        NAME,
        Column::text("PolicyName", "Name of the policy."),
        Column::text("ParamRef", "Parameters of the policy."),
        AGE,
    ],
    cells: |object: &Object, clock: &dyn Clock| {
        vec![
            json!(object.name()),
            json!(object.text("spec.policyName")),
            json!(parameters_cell(object)),
            age(object, clock),
        ]
    },
};

/// Returns the cell of the parameters of a binding.
fn parameters_cell(object: &Object) -> String {
    match (object.text("spec.paramRef.namespace"), object.text("spec.paramRef.name")) {
        (_, "") if object.find("spec.paramRef.selector").is_some() => {
            selector(object, "spec.paramRef.selector")
        }
        (_, "") => UNSET.to_owned(),
        ("", name) => name.to_owned(),
        (namespace, name) => format!("{namespace}/{name}"),
    }
}
