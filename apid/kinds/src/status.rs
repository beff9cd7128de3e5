//! Separation of spec and status: the author writes the spec, a controller writes the status.
//!
//! # Contract
//!
//! These rules apply to kinds with the subresource `status`. [`prepare_create`] replaces the status of a request by an
//! empty status. [`prepare_update`] restores fields from the stored object. A write to the main resource
//! keeps the stored status. A write to `status` keeps all fields outside the status; [`StatusWrites`] defines
//! the metadata that it may change. For other subresources only the strategy applies.

use apimachinery::object::Object;

use crate::defaults::restore;
use crate::{Kind, StatusWrites, metadata};

const STATUS: &str = "status";

/// Metadata fields that the author of an object sets.
const AUTHOR_METADATA: [&str; 4] = ["labels", "annotations", "finalizers", "ownerReferences"];
/// Metadata fields that a request can set, apart from the fields that identify the object.
pub(crate) const REQUEST_METADATA: [&str; 6] =
    ["labels", "annotations", "finalizers", "ownerReferences", "selfLink", "deletionTimestamp"];

/// Resets the status, unless the kind allows a status at creation.
pub(crate) fn prepare_create(kind: &Kind, object: &mut Object) {
    if !kind.has_status() || kind.rules.keeps_status_on_create {
        return;
    }
    match empty_status(kind) {
        Some(status) => object.set(STATUS, status),
        None => drop(object.remove(STATUS)),
    }
}

/// Restores the part of the object that the subresource does not write.
pub(crate) fn prepare_update(kind: &Kind, new: &mut Object, old: &Object, subresource: &str) {
    if !kind.has_status() {
        return;
    }
    match subresource {
        "" => restore_field(new, old, STATUS),
        STATUS => {
            keep_all_but_status(new, old);
            let restored_fields: &[&str] = match kind.rules.status_writes {
                StatusWrites::Metadata => &[],
                StatusWrites::MetadataWithoutLabels => &["labels"],
                StatusWrites::ServerMetadata => &AUTHOR_METADATA,
                StatusWrites::StatusOnly => &REQUEST_METADATA,
                StatusWrites::NoMetadata => {
                    metadata::restore_all(new, old);
                    &[]
                }
            };
            for field in restored_fields {
                metadata::restore_field(new, old, field);
            }
        }
        _ => {}
    }
}

/// Restores a field from the stored object.
pub(crate) fn restore_field(new: &mut Object, old: &Object, field: &str) {
    restore(&mut new.0, field, old.get(field));
}

fn keep_all_but_status(new: &mut Object, old: &Object) {
    let is_outside_spec = |field: &str| matches!(field, "kind" | "apiVersion" | "metadata" | STATUS);
    new.0.retain(|field, _| is_outside_spec(field) || old.get(field).is_some());
    for (field, value) in &old.0 {
        if !is_outside_spec(field) {
            new.set(field, value.clone());
        }
    }
}

/// The status of an object to which no status has been written; None if such an object has no field `status`.
fn empty_status(kind: &Kind) -> Option<serde_json::Value> {
    kind.schema.empty().remove(STATUS)
}
