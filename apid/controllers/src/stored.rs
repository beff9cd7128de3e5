//! Reads of background tasks: the collection of a kind, and its objects in the watch cache.
//!
//! # Contract
//!
//! Objects that cannot be decoded are logged and skipped, so they do not block the others. The functions with
//! `decodable` in their names fail instead, for decisions that must not miss an object.

use std::sync::Arc;

use apimachinery::object::Object;
use apimachinery::status::Status;
use kinds::entry::Entry;

use verbs::{ApiState, Collection, Item};

/// Returns the collection of a core resource, such as `pods`.
///
/// # Errors
///
/// The resource is not served.
pub(super) fn core(api_state: &ApiState, resource: &str) -> Result<Arc<Collection>, Status> {
    let kinds = api_state.kinds.get();
    let stored_resource = kinds.registry.find_stored("", "v1", resource);
    stored_resource
        .and_then(|resource| kinds.collection(resource).cloned())
        .ok_or_else(|| Status::internal(format!("{resource} are not served")))
}

/// Returns the collection of a kind: its API group without the domain, and its name.
///
/// # Errors
///
/// The kind is not served.
pub(super) fn of_kind(api_state: &ApiState, (group, kind): (&str, &str)) -> Result<Arc<Collection>, Status> {
    let kinds = api_state.kinds.get();
    let resource = kinds.registry.find_kind(&api_state.names.group(group), kind);
    resource
        .and_then(|resource| kinds.collection(resource).cloned())
        .ok_or_else(|| Status::internal(format!("objects of kind {kind} are not served")))
}

/// Returns the entry of an item if it can be decoded.
pub(super) fn entry(item: &Item) -> Option<&Entry> {
    item.entry().inspect_err(|error| log_undecodable(item, error)).ok()
}

/// Returns the object of an item if it can be decoded.
pub(super) fn object(item: &Item) -> Option<Object> {
    let decoded = kinds::entry::decode(item.value(), item.revision());
    decoded.inspect_err(|error| log_undecodable(item, error)).ok()
}

/// Returns the object with a name from the watch cache; None if it does not exist or cannot be decoded.
///
/// # Errors
///
/// The store cannot be read.
pub(super) async fn get(
    collection: &Collection,
    namespace: &str,
    name: &str,
) -> Result<Option<Object>, Status> {
    Ok(item(collection, namespace, name).await?.as_deref().and_then(object))
}

/// Returns the object with a name from the watch cache; None if it does not exist.
///
/// # Errors
///
/// The store cannot be read, or the object cannot be decoded.
pub(super) async fn get_decodable(
    collection: &Collection,
    namespace: &str,
    name: &str,
) -> Result<Option<Object>, Status> {
    let Some(item) = item(collection, namespace, name).await? else { return Ok(None) };
    let entry = item.entry().map_err(unavailable)?;
    entry.object(item.revision()).map(Some).map_err(Status::internal)
}

/// Returns the item with a name from the watch cache; None if it does not exist.
///
/// # Errors
///
/// The store cannot be read.
pub(super) async fn item(
    collection: &Collection,
    namespace: &str,
    name: &str,
) -> Result<Option<Arc<Item>>, Status> {
    let key = collection.kind.key(namespace, name);
    let (item, _) = collection.items.get(&key).await.map_err(unavailable)?;
    Ok(item)
}

/// Returns all objects of a collection.
///
/// # Errors
///
/// The store cannot be read.
pub(super) async fn all(collection: &Collection) -> Result<Vec<Object>, Status> {
    objects(collection, &collection.kind.key_prefix).await
}

/// Returns all objects under the key prefix `scope` of a namespace or of the whole collection.
///
/// # Errors
///
/// The store cannot be read.
pub(super) async fn objects(collection: &Collection, scope: &str) -> Result<Vec<Object>, Status> {
    selected_objects(collection, scope, |_| true).await
}

/// Returns the objects of the selected items under a key prefix. Only these items are decoded to objects.
///
/// # Errors
///
/// The store cannot be read.
pub(super) async fn selected_objects(
    collection: &Collection,
    scope: &str,
    is_selected: impl Fn(&Item) -> bool,
) -> Result<Vec<Object>, Status> {
    let snapshot = collection.items.snapshot().await.map_err(unavailable)?;
    let selected = snapshot.scope(scope, "").filter(|item| is_selected(item));
    Ok(selected.filter_map(|item| object(item)).collect())
}

/// Returns the objects of the selected items under a key prefix, as [`selected_objects`] does.
///
/// # Errors
///
/// The store cannot be read, or any item under the prefix cannot be decoded.
pub(super) async fn selected_decodable_objects(
    collection: &Collection,
    scope: &str,
    is_selected: impl Fn(&Item, &Entry) -> bool,
) -> Result<Vec<Object>, Status> {
    let snapshot = collection.items.snapshot().await.map_err(unavailable)?;
    let mut objects = Vec::new();
    for item in snapshot.scope(scope, "") {
        let entry = item.entry().map_err(unavailable)?;
        if is_selected(item, entry) {
            objects.push(entry.object(item.revision()).map_err(Status::internal)?);
        }
    }
    Ok(objects)
}

/// Waits until the watch cache has every change that ended before the call, also those of other servers. A decision about
/// an object that other objects determine needs it: the write compares the revision of the one object only.
///
/// # Errors
///
/// The store does not answer.
pub(super) async fn catch_up(api_state: &ApiState) -> Result<(), Status> {
    api_state.store.newest_revision().await.map(drop).map_err(unavailable)
}

/// Waits until the watch cache has every change of a collection in a separate store that ended before the call. The changes
/// of the main store come in one order with the change that caused the call, so a collection there needs no wait.
///
/// # Errors
///
/// The separate store does not answer.
pub(super) async fn catch_up_with_separate(
    api_state: &ApiState,
    collection: &Collection,
) -> storage::Result<()> {
    match api_state.separate_store_of(&collection.kind) {
        Some(separate) => separate.store.newest_revision().await.map(drop),
        None => Ok(()),
    }
}

/// Converts a storage error to a status with code 503, after which a background task retries.
pub(super) fn unavailable(error: storage::Error) -> Status {
    Status::unavailable(error.to_string(), 1)
}

fn log_undecodable(item: &Item, error: &dyn std::fmt::Display) {
    tracing::error!(key = %item.key(), %error, "stored object cannot be decoded; skipped");
}
