//! Lease: the holder of a lock and the expiry of the lock.

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;
use serde_json::Value;

use crate::table::{AGE, NAME};
use crate::validation::{Field, number};
use crate::{BuiltInKind, Column, Context, MetadataChecks, Strategy, WriteRules};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    rules: WriteRules {
        metadata_checks: MetadataChecks::CHANGES,
        restricts_finalizers: false,
        create_on_update: true,
        unconditional_update: false,
        ..WriteRules::BUILT_IN
    },
    columns: &[NAME, Column::text("Holder", "Holder of the lease.").text_at("spec.holderIdentity"), AGE],
    strategy: &Lease,
    ..BuiltInKind::namespaced("coordination/v1.Lease", "leases")
};

/// Fields of the disabled feature gate CoordinatedLeaderElection.
/// apid drops these fields from a write unless the stored object has them.
const GATED: [&str; 2] = ["strategy", "preferredHolder"];

struct Lease;

impl Strategy for Lease {
    fn prepare_create(&self, object: &mut Object, _ctx: &Context<'_>) {
        drop_gated(object);
    }

    fn prepare_update(&self, new: &mut Object, old: &Object, _ctx: &Context<'_>) {
        if GATED.iter().all(|field| old.at(&["spec", field]).is_none()) {
            drop_gated(new);
        }
    }

    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        let spec = Field::new(object.get("spec"), "spec");
        let mut errors = FieldErrors::new();
        number::check_positive(&spec.child("leaseDurationSeconds"), &mut errors);
        number::check_not_negative(&spec.child("leaseTransitions"), &mut errors);
        let holder = spec.child("preferredHolder");
        if !holder.text().is_empty() && spec.child("strategy").text().is_empty() {
            errors.push(holder.forbidden("may only be specified if `strategy` is defined"));
        }
        errors
    }
}

fn drop_gated(object: &mut Object) {
    if let Some(Value::Object(spec)) = object.get_mut("spec") {
        spec.retain(|field, _| !GATED.contains(&field.as_str()));
    }
}
