//! ResourceClaimTemplate: the claims that pods get.

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;

use super::claim_rules;
use super::conversion::EarlierVersion;
use super::device_class::TABLE;
use crate::defaults::part;
use crate::strategy::DefaultStrategy;
use crate::validation::Field;
use crate::{Context, Kind, MetadataChecks, Revalidation, Storage, Strategy};

pub(super) const KIND: Kind = Kind {
    group: "resource",
    versions: &["v1beta2"],
    kind: "ResourceClaimTemplate",
    resource: "resourceclaimtemplates",
    singular: "resourceclaimtemplate",
    schema: "resource/v1beta2.ResourceClaimTemplate",
    metadata_checks: MetadataChecks::CHANGES,
    // The specification is immutable.
    revalidation: Revalidation::Never,
    table: &TABLE,
    strategy: &ResourceClaimTemplate,
    ..Kind::NAMESPACED
};

/// The kind in its first beta version.
pub(super) const V1BETA1: Kind =
    Kind { versions: &["v1beta1"], schema: "resource/v1beta1.ResourceClaimTemplate", ..EARLIER };

/// The kind in its alpha version.
pub(super) const V1ALPHA3: Kind =
    Kind { versions: &["v1alpha3"], schema: "resource/v1alpha3.ResourceClaimTemplate", ..EARLIER };

const EARLIER: Kind = Kind {
    storage: Storage::Shared("resource"),
    conversion: Some(&EarlierVersion::Claim(&["spec", "spec"])),
    strategy: &DefaultStrategy,
    ..KIND
};

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
        let mut errors = FieldErrors::new();
        if new.get("spec") != old.get("spec") {
            errors.push(Field::new(new.get("spec"), "spec").invalid("field is immutable"));
        }
        errors
    }
}
