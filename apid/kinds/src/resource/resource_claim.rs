//! ResourceClaim: a claim for devices, and their allocation.

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;
use serde_json::{Value, json};

use super::claim_rules;
use super::conversion::EarlierVersion;
use crate::defaults::part;
use crate::same_fields::derive_version;
use crate::table::cell::PathReader;
use crate::table::{AGE, NAME};
use crate::validation::{Field, conditions, immutable_fields, text};
use crate::{BuiltInKind, Column, Context, MetadataChecks, Revalidation, Strategy, Subresource, WriteRules};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    subresources: &[Subresource::status("ResourceClaim")],
    rules: WriteRules {
        metadata_checks: MetadataChecks::CHANGES,
        // The specification is immutable.
        revalidation: Revalidation::Never,
        ..WriteRules::BUILT_IN
    },
    columns: &[NAME, Column::text("State", "Allocation, reservation and deletion of the claim."), AGE],
    cells: |object, _| vec![json!(states(object).join(","))],
    strategy: &ResourceClaim,
    ..BuiltInKind::namespaced("resource/v1beta2.ResourceClaim", "resourceclaims")
};

/// The kind in its first beta version.
pub(super) const V1BETA1: BuiltInKind =
    derive_version(KIND, "resource/v1beta1.ResourceClaim", &EarlierVersion::Claim(&["spec"]));

/// The kind in its alpha version.
pub(super) const V1ALPHA3: BuiltInKind =
    derive_version(KIND, "resource/v1alpha3.ResourceClaim", &EarlierVersion::Claim(&["spec"]));

/// Maximum number of consumers of a claim.
const CONSUMERS_MAX: usize = 256;

struct ResourceClaim;

impl Strategy for ResourceClaim {
    fn default(&self, object: &mut Object, _ctx: &Context<'_>) {
        if let Some(spec) = part(object, "spec") {
            claim_rules::default(spec);
        }
    }

    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        let mut errors = FieldErrors::new();
        claim_rules::validate(&Field::new(object.get("spec"), "spec"), &mut errors);
        errors
    }

    fn validate_update(&self, new: &Object, old: &Object, ctx: &Context<'_>) -> FieldErrors {
        match ctx.subresource {
            "status" => validate_status(new),
            _ => immutable_fields(new, old, &["spec"]),
        }
    }
}

fn validate_status(object: &Object) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let status = Field::new(object.get("status"), "status");
    let consumers = status.child("reservedFor");
    consumers.check_limit(CONSUMERS_MAX, &mut errors);
    for consumer in consumers.items() {
        for name in ["resource", "name", "uid"] {
            text::require(&consumer.child(name), &mut errors);
        }
    }
    let allocation = status.child("allocation");
    if !consumers.list().is_empty() && !allocation.is_present() {
        errors.push(consumers.forbidden("may not be specified when `allocated` is not set"));
    }
    for result in allocation.child("devices").child("results").items() {
        super::rules::validate_driver(&result.child("driver"), &mut errors);
        super::rules::validate_pool(&result.child("pool"), &mut errors);
        text::require_format(&result.child("device"), crate::format::label, &mut errors);
    }
    for device in status.child("devices").items() {
        conditions::validate(&device.child("conditions"), &mut errors);
    }
    errors
}

fn states(object: &Object) -> Vec<&'static str> {
    let mut states = Vec::new();
    if object.is_terminating() {
        states.push("deleted");
    }
    match object.find("status.allocation") {
        Some(Value::Object(_)) => states.push("allocated"),
        _ => states.push("pending"),
    }
    if !object.items("status.reservedFor").is_empty() {
        states.push("reserved");
    }
    states
}
