//! MutatingAdmissionPolicyBinding: scope and parameters of a mutating admission policy.

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;
use serde_json::Value;

use super::match_rules;
use super::validating_admission_policy_binding::{KIND as VALIDATING, validate_parameters};
use crate::defaults::{fill, part};
use crate::format;
use crate::unenforced::MUTATING_POLICIES;
use crate::validation::{Field, text};
use crate::{BuiltInKind, Context, Generation, MetadataChecks, Strategy, WriteRules};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    categories: &["api-extensions"],
    rules: WriteRules {
        metadata_checks: MetadataChecks::CHANGES,
        restricts_finalizers: false,
        generation: Generation::Counted(&[]),
        unconditional_update: false,
        ..WriteRules::BUILT_IN
    },
    unenforced: Some(&MUTATING_POLICIES),
    columns: VALIDATING.columns,
    cells: VALIDATING.cells,
    strategy: &MutatingAdmissionPolicyBinding,
    ..BuiltInKind::cluster_scoped(
        "admissionregistration/v1alpha1.MutatingAdmissionPolicyBinding",
        "mutatingadmissionpolicybindings",
    )
};

struct MutatingAdmissionPolicyBinding;

impl Strategy for MutatingAdmissionPolicyBinding {
    fn default(&self, object: &mut Object, _ctx: &Context<'_>) {
        if let Some(spec) = part(object, "spec") {
            match_rules::default_resources_at(spec, "matchResources");
            if let Some(Value::Object(reference)) = spec.get_mut("paramRef") {
                fill(reference, "parameterNotFoundAction", "Deny");
            }
        }
    }

    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        let spec = Field::new(object.get("spec"), "spec");
        let mut errors = FieldErrors::new();
        text::require_format(&spec.child("policyName"), format::subdomain, &mut errors);
        validate_parameters(&spec.child("paramRef"), &mut errors);
        let resources = spec.child("matchResources");
        match_rules::validate_match_resources(&resources, &mut errors);
        match_rules::check_mutating_operations(&resources, &mut errors);
        errors
    }
}
