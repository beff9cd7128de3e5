//! What loops read: the collection of a kind, and its objects as the watch cache has them.
//!
//! # Contract
//!
//! An object that cannot be read is passed over, with a line in the log: the others do not wait for it.

use apimachinery::object::Object;
use apimachinery::status::Status;
use kinds::entry::Entry;

use crate::plane::{Collection, Item, Plane};

/// The collection of a core resource, `pods` say.
///
/// # Errors
///
/// It is not served.
pub(super) fn core<'a>(plane: &'a Plane, resource: &str) -> Result<&'a Collection, Status> {
    let found = plane.registry.find("", "v1", resource);
    found
        .and_then(|resource| plane.collection(resource))
        .ok_or_else(|| Status::internal(format!("{resource} are not served")))
}

/// The collection of a kind, whose group is named by its stem.
///
/// # Errors
///
/// It is not served.
pub(super) fn of_kind<'a>(plane: &'a Plane, group: &str, kind: &str) -> Result<&'a Collection, Status> {
    let found = plane.registry.find_kind(&plane.names.group(group), kind);
    found
        .and_then(|resource| plane.collection(resource))
        .ok_or_else(|| Status::internal(format!("objects of kind {kind} are not served")))
}

/// The entry of an item, if its bytes are an object.
pub(super) fn entry(item: &Item) -> Option<&Entry> {
    item.entry().inspect_err(|error| passed_over(item, error)).ok()
}

/// The object of an item, if its bytes are one.
pub(super) fn object(item: &Item) -> Option<Object> {
    let read = kinds::entry::decode(item.value(), item.revision());
    read.inspect_err(|error| passed_over(item, error)).ok()
}

/// All objects of a scope of a collection: the prefix of a namespace's keys, or of all.
///
/// # Errors
///
/// The store cannot be read.
pub(super) async fn objects(collection: &Collection, scope: &str) -> Result<Vec<Object>, Status> {
    let snapshot = collection.items.snapshot().await.map_err(unavailable)?;
    Ok(snapshot.scope(scope, "").filter_map(|item| object(item)).collect())
}

/// What went wrong as the loop's own failure, which is tried again.
pub(super) fn unavailable(error: storage::Error) -> Status {
    Status::unavailable(error.to_string(), 1)
}

fn passed_over(item: &Item, error: &dyn std::fmt::Display) {
    tracing::error!(key = %item.key(), %error, "a stored object cannot be read");
}
