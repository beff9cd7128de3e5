//! Lookup of an owner: existing, waiting for its dependents, gone, not served, or in an invalid scope.
//!
//! # Contract
//!
//! [`look_up_owner`] reads the watch cache, and reads the store itself before it reports that an owner is
//! gone, after it has caught up with a separate store. An owner can be of any served kind. [`fetch_owner_state`] asks the server of an aggregated API, which
//! [`remote_kind`] returns.
//!
//! # Reference
//!
//! An owner is in the namespace of its dependent, or cluster-scoped. An object with another uid is another
//! object. A kind or version that is not served may be served again, so its dependents stay. A server that cannot be
//! reached, or answers with an error, does not make its objects absent.

use std::sync::Arc;

use aggregation::{Aggregation, RemoteKind, RemoteResource};
use apimachinery::gvk::GroupVersion;
use apimachinery::status::Status;
use apimachinery::user::UserInfo;
use kinds::metadata::FOREGROUND;
use storage::{Error, Result, Row, unreadable_reason};

use super::ownership_data::{DeletionState, Owner, OwnerState, OwnershipData};
use super::remote_owners::RemoteOwner;
use crate::stored;
use verbs::{ApiState, Collection};

/// Returns the collection of the kind in an owner reference, if it is served.
pub(super) fn collection(api_state: &ApiState, owner: &Owner) -> Option<Arc<Collection>> {
    let version = GroupVersion::parse(&owner.api_version)?;
    let kinds = api_state.kinds.get();
    let resource = kinds.registry.find_kind_version(&version.group, &version.version, &owner.kind)?;
    kinds.collection(resource).cloned()
}

/// Looks up an owner that this server stores. `namespace` is that of the dependent; `""` for a cluster-scoped dependent.
///
/// # Errors
///
/// The store cannot be read or, for a separate store, asked for its newest revision; or the object with the owner's
/// name cannot be decoded.
pub(super) async fn look_up_owner(
    api_state: &ApiState,
    owner: &Owner,
    namespace: &str,
) -> Result<OwnerState> {
    let Some(collection) = collection(api_state, owner) else { return Ok(OwnerState::NotServed) };
    let resource = collection.kind.internal();
    if resource.namespaced && namespace.is_empty() {
        return Ok(OwnerState::InvalidScope);
    }
    let key = resource.key(namespace, &owner.name);
    let (item, _) = collection.items.get(&key).await?;
    if let Some(item) = item {
        let entry = item.entry()?;
        if entry.uid() == owner.uid && !entry.is_terminating() {
            return Ok(OwnerState::Exists);
        }
    }
    // INVARIANT (no living owner): a dependent can be newer than what has arrived of the separate store of its owner.
    stored::catch_up_with_separate(api_state, &collection).await?;
    let row = collection.items.store()?.get(&key, None).await?;
    row.map_or(Ok(OwnerState::Gone), |row| stored_state(&row, owner))
}

/// Returns the kind of an owner at another server; None if no other server serves the version.
///
/// The store may have objects of the same kind. They are not the owner, so [`look_up_owner`] must not search for them.
pub(super) fn remote_kind(aggregation: &Aggregation, owner: &Owner) -> Option<RemoteKind> {
    let version = GroupVersion::parse(&owner.api_version)?;
    aggregation.remote_kind(&version.group, &version.version, &owner.kind)
}

/// Fetches the state of an owner from another server, as `user`.
///
/// # Errors
///
/// The server cannot be reached, or its answer does not say whether the owner exists: the owner is not gone.
pub(super) async fn fetch_owner_state(
    resource: &RemoteResource,
    user: &UserInfo,
    owner: &RemoteOwner,
) -> std::result::Result<OwnerState, Status> {
    let found = resource.get(user, &owner.namespace, &owner.name).await?;
    Ok(match found.filter(|found| found.uid == owner.uid) {
        None => OwnerState::Gone,
        Some(found) if found.is_terminating && found.finalizers.iter().any(|f| f == FOREGROUND) => {
            OwnerState::Waiting
        }
        Some(_) => OwnerState::Exists,
    })
}

/// The state of an owner whose name has this row.
///
/// # Errors
///
/// `Corrupt` if the row cannot be parsed: it may be the owner.
fn stored_state(row: &Row, owner: &Owner) -> Result<OwnerState> {
    let ownership = OwnershipData::parse(&row.value).ok_or_else(|| {
        let reason = unreadable_reason(&row.value).unwrap_or("the metadata cannot be parsed");
        Error::Corrupt(format!("reading owner `{}` at revision {} failed: {reason}", row.key, row.revision))
    })?;
    Ok(match ownership.deletion_state {
        _ if ownership.uid != owner.uid => OwnerState::Gone,
        Some(DeletionState::WaitingForDependents) => OwnerState::Waiting,
        _ => OwnerState::Exists,
    })
}

/// Whether the scopes of two objects allow ownership: the owner is cluster-scoped, or in the namespace of
/// the dependent. `owner` and `dependent` are the storage keys of the objects.
pub(super) fn may_own(api_state: &ApiState, owner: &str, dependent: &str) -> bool {
    let registry = api_state.kinds.registry();
    let namespace = |key: &str| {
        let resource = registry.of_key(key)?;
        resource.namespaced.then(|| resource.parse_key(key).map(|(namespace, _)| namespace.to_owned()))?
    };
    match namespace(owner) {
        None => true,
        Some(owner_namespace) => namespace(dependent).is_some_and(|namespace| namespace == owner_namespace),
    }
}

/// Whether any namespace contains an object with the owner's kind, name and uid.
///
/// # Errors
///
/// The store cannot be read.
pub(super) async fn exists_in_other_namespace(api_state: &ApiState, owner: &Owner) -> Result<bool> {
    let Some(collection) = collection(api_state, owner).filter(|c| c.kind.namespaced) else {
        return Ok(false);
    };
    let Ok(namespaces) = stored::core(api_state, "namespaces") else { return Ok(false) };
    let namespaces_now = namespaces.items.snapshot().await?;
    let objects = collection.items.snapshot().await?;
    for namespace in namespaces_now.scope(namespaces.items.prefix(), "") {
        let Some((_, name)) = namespaces.kind.parse_key(namespace.key()) else { continue };
        if let Some(item) = objects.item(&collection.kind.key(name, &owner.name))
            && stored::entry(item).is_some_and(|entry| entry.uid() == owner.uid)
        {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use apimachinery::object::Object;
    use bytes::Bytes;
    use serde_json::json;
    use storage::{Revision, unreadable_value};

    use super::*;

    #[test]
    fn owner_with_unparsable_row_is_not_gone() {
        let owner = Owner { uid: "u".to_owned(), ..Owner::default() };
        let row = |value: Bytes| Row { key: "core/secrets/a/s".into(), value, revision: Revision(7) };
        let object = |uid: &str, finalizers: &[&str]| {
            let metadata = json!({
                "uid": uid, "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": finalizers,
            });
            row(kinds::entry::encode(&Object::from_value(json!({"metadata": metadata})).unwrap()))
        };
        for (row, expected) in [
            (object("u", &["a/b"]), OwnerState::Exists),
            (object("u", &["foregroundDeletion"]), OwnerState::Waiting),
            (object("v", &["a/b"]), OwnerState::Gone),
        ] {
            assert_eq!(stored_state(&row, &owner).unwrap(), expected);
        }
        for (value, reason) in [
            (unreadable_value("wrong key"), "wrong key"),
            (Bytes::from_static(b"{\"metadata\":"), "the metadata cannot be parsed"),
        ] {
            let error = stored_state(&row(value), &owner).unwrap_err();
            let text = format!("reading owner `core/secrets/a/s` at revision 7 failed: {reason}");
            assert!(matches!(&error, Error::Corrupt(found) if *found == text), "{error}");
        }
    }
}
