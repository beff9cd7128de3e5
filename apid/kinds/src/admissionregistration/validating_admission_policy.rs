//! ValidatingAdmissionPolicy: CEL expressions that written objects must satisfy.

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;

use super::{match_rules, policy_rules};
use crate::defaults::{fill, part};
use crate::same_fields::same_fields;
use crate::table::{AGE, NAME, Source};
use crate::{
    BuiltInKind, Column, Context, Generation, MetadataChecks, Revalidation, StatusWrites, Strategy,
    Subresource, WriteRules,
};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    categories: &["api-extensions"],
    subresources: &[Subresource::status("ValidatingAdmissionPolicy")],
    rules: WriteRules {
        metadata_checks: MetadataChecks::ALL,
        restricts_finalizers: false,
        generation: Generation::Counted(&[]),
        unconditional_update: false,
        revalidation: Revalidation::Never,
        status_writes: StatusWrites::StatusOnly,
        ..WriteRules::BUILT_IN
    },
    columns: &[
        NAME,
        Column::integer("Validations", "Number of validations.")
            .with_source(Source::Length("spec.validations")),
        policy_rules::PARAMETER_KIND_COLUMN,
        AGE,
    ],
    cells: policy_rules::cells,
    strategy: &ValidatingAdmissionPolicy,
    ..BuiltInKind::cluster_scoped(
        "admissionregistration/v1.ValidatingAdmissionPolicy",
        "validatingadmissionpolicies",
    )
};

/// The kind in its beta version.
pub(super) const V1BETA1: BuiltInKind =
    same_fields(KIND, "admissionregistration/v1beta1.ValidatingAdmissionPolicy");

/// The kind in its alpha version.
pub(super) const V1ALPHA1: BuiltInKind =
    same_fields(KIND, "admissionregistration/v1alpha1.ValidatingAdmissionPolicy");

struct ValidatingAdmissionPolicy;

impl Strategy for ValidatingAdmissionPolicy {
    fn default(&self, object: &mut Object, _ctx: &Context<'_>) {
        if let Some(spec) = part(object, "spec") {
            fill(spec, "failurePolicy", "Fail");
            match_rules::default_resources_at(spec, "matchConstraints");
        }
    }

    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        policy_rules::validate(object, None)
    }

    fn validate_update(&self, new: &Object, old: &Object, ctx: &Context<'_>) -> FieldErrors {
        match ctx.subresource {
            "status" => policy_rules::validate_status(new),
            _ => policy_rules::validate(new, Some(old)),
        }
    }
}
