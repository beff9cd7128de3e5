//! ResourceClaimTemplate: the claims that pods get.

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;

use super::claim_rules;
use super::conversion::EarlierVersion;
use crate::defaults::part;
use crate::same_fields::derive_version;
use crate::table::{AGE, NAME};
use crate::validation::{Field, immutable_fields};
use crate::{BuiltInKind, Context, MetadataChecks, Revalidation, Strategy, WriteRules};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    rules: WriteRules {
        metadata_checks: MetadataChecks::CHANGES,
        // The specification is immutable.
        revalidation: Revalidation::Never,
        ..WriteRules::BUILT_IN
    },
    columns: &[NAME, AGE],
    strategy: &ResourceClaimTemplate,
    ..BuiltInKind::namespaced("resource/v1beta2.ResourceClaimTemplate", "resourceclaimtemplates")
};

/// The kind in its first beta version.
pub(super) const V1BETA1: BuiltInKind =
    derive_version(KIND, "resource/v1beta1.ResourceClaimTemplate", &EarlierVersion::Claim(&["spec", "spec"]));

/// The kind in its alpha version.
pub(super) const V1ALPHA3: BuiltInKind = derive_version(
    KIND,
    "resource/v1alpha3.ResourceClaimTemplate",
    &EarlierVersion::Claim(&["spec", "spec"]),
);

struct ResourceClaimTemplate;

impl Strategy for ResourceClaimTemplate {
    fn default(&self, object: &mut Object, _ctx: &Context<'_>) {
        if let Some(spec) = part(object, "spec.spec") {
            claim_rules::default(spec);
        }
    }

    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        let spec = Field::new(object.get("spec"), "spec");
        let mut errors = FieldErrors::new();
        claim_rules::validate(&spec.child("spec"), &mut errors);
        errors
    }

    fn validate_update(&self, new: &Object, old: &Object, _ctx: &Context<'_>) -> FieldErrors {
        immutable_fields(new, old, &["spec"])
    }
}
