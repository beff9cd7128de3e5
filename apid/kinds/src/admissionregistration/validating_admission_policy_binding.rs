//! ValidatingAdmissionPolicyBinding: scope and actions of an admission policy.

use std::collections::BTreeSet;

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;
use serde_json::json;

use super::match_rules;
use crate::defaults::part;
use crate::same_fields::same_fields;
use crate::table::cell::{PathReader, UNSET, selector};
use crate::table::{AGE, NAME};
use crate::validation::{Field, text};
use crate::{BuiltInKind, Column, Context, Generation, MetadataChecks, Strategy, WriteRules};
use crate::{format, labels};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    categories: &["api-extensions"],
    rules: WriteRules {
        metadata_checks: MetadataChecks::ALL,
        restricts_finalizers: false,
        generation: Generation::Counted(&[]),
        unconditional_update: false,
        ..WriteRules::BUILT_IN
    },
    columns: &[
        NAME,
        Column::text("PolicyName", "Name of the policy.").text_at("spec.policyName"),
        Column::text("ParamRef", "Parameters of the policy."),
        AGE,
    ],
    cells: |object, _| vec![json!(parameters_cell(object))],
    strategy: &ValidatingAdmissionPolicyBinding,
    ..BuiltInKind::cluster_scoped(
        "admissionregistration/v1.ValidatingAdmissionPolicyBinding",
        "validatingadmissionpolicybindings",
    )
};

/// The kind in its beta version.
pub(super) const V1BETA1: BuiltInKind =
    same_fields(KIND, "admissionregistration/v1beta1.ValidatingAdmissionPolicyBinding");

/// The kind in its alpha version.
pub(super) const V1ALPHA1: BuiltInKind =
    same_fields(KIND, "admissionregistration/v1alpha1.ValidatingAdmissionPolicyBinding");

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
        (true, true) => {
            labels::validate_selector(&selector, errors);
        }
    }
    text::require_supported(&reference.child("parameterNotFoundAction"), &["Allow", "Deny"], errors);
}

fn validate_actions(actions: &Field<'_, '_>, errors: &mut FieldErrors) {
    actions.require_items("at least one validation action is required", errors);
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
