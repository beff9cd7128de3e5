//! Spec and status of an object are written apart: by its author, and by the controller that answers for it.
//!
//! # Contract
//!
//! Of a kind with the subresource `status`, [`prepare_create`] replaces the status that a client sent by an empty one,
//! and [`prepare_update`] takes from the stored object what a write may not change: the status when the main resource is
//! written; all but the status, and what [`StatusWrites`] lets by of the metadata, when `status` is. Writes to other
//! subresources are the strategy's alone.

use apimachinery::object::Object;
use schema::Schema;

use crate::{Kind, StatusWrites};

const STATUS: &str = "status";

/// Metadata that belongs to the author of an object.
const AUTHORED: [&str; 4] = ["labels", "annotations", "finalizers", "ownerReferences"];

/// Drops the status, but that of kinds which are created with one.
pub(crate) fn prepare_create(kind: &Kind, object: &mut Object) {
    if !kind.has_status() || kind.strategy.created_with_status() {
        return;
    }
    match empty(kind) {
        Some(status) => object.set(STATUS, status),
        None => drop(object.remove(STATUS)),
    }
}

/// Keeps what the written part does not hold.
pub(crate) fn prepare_update(kind: &Kind, new: &mut Object, old: &Object, subresource: &str) {
    if !kind.has_status() {
        return;
    }
    match subresource {
        "" => keep(new, old, STATUS),
        STATUS => {
            keep_all_but_status(new, old);
            let kept: &[&str] = match kind.strategy.status_writes() {
                StatusWrites::Metadata => &[],
                StatusWrites::MetadataWithoutLabels => &["labels"],
                StatusWrites::Alone => &AUTHORED,
            };
            for field in kept {
                match old.meta().and_then(|metadata| metadata.get(*field)) {
                    Some(value) => new.set_meta(field, value.clone()),
                    None => drop(new.remove_meta(field)),
                }
            }
        }
        _ => {}
    }
}

/// Takes a field from the stored object.
pub(crate) fn keep(new: &mut Object, old: &Object, field: &str) {
    match old.get(field) {
        Some(value) => new.set(field, value.clone()),
        None => drop(new.remove(field)),
    }
}

fn keep_all_but_status(new: &mut Object, old: &Object) {
    let own = |field: &str| matches!(field, "kind" | "apiVersion" | "metadata" | STATUS);
    new.0.retain(|field, _| own(field) || old.get(field).is_some());
    for (field, value) in &old.0 {
        if !own(field) {
            new.set(field, value.clone());
        }
    }
}

/// The status of an object that says nothing: what conforming makes of none.
fn empty(kind: &Kind) -> Option<serde_json::Value> {
    let mut nothing = Object::default();
    Schema::of(kind.schema)?.conform(&mut nothing).ok()?;
    nothing.remove(STATUS)
}
