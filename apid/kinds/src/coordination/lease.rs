//! Lease: the holder of a lock and the expiry of the lock.

use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::object::Object;
use serde_json::Value;

use crate::table::{AGE, NAME};
use crate::{Column, Context, Kind, MetadataChecks, Strategy};

pub(super) const KIND: Kind = Kind {
    metadata_checks: MetadataChecks::CHANGES,
    restricts_finalizers: false,
    create_on_update: true,
    unconditional_update: false,
    columns: &[NAME, Column::text("Holder", "Holder of the lease.").text_at("spec.holderIdentity"), AGE],
    strategy: &Lease,
    ..Kind::namespaced("coordination/v1.Lease", "leases")
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
        let spec = FieldPath::new("spec");
        let number = |field: &str| object.at(&["spec", field]).and_then(Value::as_i64);
        let mut errors = FieldErrors::new();
        if let Some(seconds) = number("leaseDurationSeconds").filter(|s| *s <= 0) {
            errors.push(FieldError::invalid(
                &spec.child("leaseDurationSeconds"),
                seconds,
                "must be greater than 0",
            ));
        }
        if let Some(count) = number("leaseTransitions").filter(|c| *c < 0) {
            let detail = "must be greater than or equal to 0";
            errors.push(FieldError::invalid(&spec.child("leaseTransitions"), count, detail));
        }
        let text = |field: &str| object.str_at(&["spec", field]).unwrap_or("");
        if !text("preferredHolder").is_empty() && text("strategy").is_empty() {
            let detail = "may only be specified if `strategy` is defined";
            errors.push(FieldError::forbidden(&spec.child("preferredHolder"), detail));
        }
        errors
    }
}

fn drop_gated(object: &mut Object) {
    if let Some(Value::Object(spec)) = object.get_mut("spec") {
        spec.retain(|field, _| !GATED.contains(&field.as_str()));
    }
}
