//! Where an owner is: there, waiting for its dependents, gone, or nowhere where it could be one.
//!
//! # Contract
//!
//! [`locate`] reads the watch cache, and the store itself before it says that an owner is gone. It knows kinds by the
//! registry alone, so that every kind that is served can be an owner.
//!
//! # Reference
//!
//! An owner is in the namespace of its dependent, or in none. One of another uid is another object. Kinds and versions
//! that are not served may be served again: what they own stays.

use apimachinery::gvk::GroupVersion;
use storage::Result;

use super::traces::{Owner, Traces};
use crate::background::stored;
use crate::plane::{Collection, Plane};

/// Where an owner is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It is there.
    There,
    /// It is there until its dependents are gone.
    Waiting,
    /// There is no such object.
    Gone,
    /// Its kind is not served in this version.
    Unknown,
    /// Its kind lives in namespaces and the dependent in none.
    Misplaced,
}

/// The kind that a reference names, if it is served.
pub(super) fn collection<'a>(plane: &'a Plane, owner: &Owner) -> Option<&'a Collection> {
    let version = GroupVersion::parse(&owner.api_version)?;
    let mut resources = plane.registry.resources().iter();
    let resource = resources.find(|resource| {
        resource.group_kind.group == version.group
            && resource.group_kind.kind == owner.kind
            && resource.kind.versions.contains(&version.version.as_str())
    })?;
    plane.collection(resource)
}

/// Looks for an owner of an object in a namespace, or in none (`""`).
///
/// # Errors
///
/// The store cannot be read.
pub(super) async fn locate(plane: &Plane, owner: &Owner, namespace: &str) -> Result<Place> {
    let Some(collection) = collection(plane, owner) else { return Ok(Place::Unknown) };
    let resource = &collection.resource;
    if resource.kind.namespaced && namespace.is_empty() {
        return Ok(Place::Misplaced);
    }
    let key = resource.key(namespace, &owner.name);
    let (item, _) = collection.items.get(&key).await?;
    if let Some(item) = item {
        let entry = item.entry()?;
        if entry.uid() == owner.uid && !entry.is_terminating() {
            return Ok(Place::There);
        }
    }
    let row = plane.store.get(&key, None).await?;
    let found = row.and_then(|row| Traces::of(&row.value)).filter(|found| found.uid == owner.uid);
    Ok(match found {
        None => Place::Gone,
        Some(found) if found.ending == Some(super::traces::Ending::Waiting) => Place::Waiting,
        Some(_) => Place::There,
    })
}

/// Whether the object of one key can be an owner of the object of another: it lives in no namespace, or in the same.
pub(super) fn may_own(plane: &Plane, owner: &str, dependent: &str) -> bool {
    let namespace = |key: &str| {
        let resource = plane.registry.of_key(key)?;
        resource
            .kind
            .namespaced
            .then(|| resource.parse_key(key).map(|(namespace, _)| namespace.to_owned()))?
    };
    match namespace(owner) {
        None => true,
        Some(home) => namespace(dependent).is_some_and(|namespace| namespace == home),
    }
}

/// A namespace in which an object has the owner's name and uid, though its dependent is not there.
///
/// # Errors
///
/// The store cannot be read.
pub(super) async fn elsewhere(plane: &Plane, owner: &Owner) -> Result<bool> {
    let Some(collection) = collection(plane, owner).filter(|c| c.resource.kind.namespaced) else {
        return Ok(false);
    };
    let Ok(namespaces) = stored::core(plane, "namespaces") else { return Ok(false) };
    let namespaces_now = namespaces.items.snapshot().await?;
    let objects = collection.items.snapshot().await?;
    for namespace in namespaces_now.scope(namespaces.items.prefix(), "") {
        let Some((_, name)) = namespaces.resource.parse_key(namespace.key()) else { continue };
        if let Some(item) = objects.item(&collection.resource.key(name, &owner.name))
            && stored::entry(item).is_some_and(|entry| entry.uid() == owner.uid)
        {
            return Ok(true);
        }
    }
    Ok(false)
}
