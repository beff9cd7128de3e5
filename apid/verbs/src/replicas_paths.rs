//! Paths of the replicas in the objects of a kind: the fields that the subresource `scale` reads and writes.
//!
//! # Reference
//!
//! kube-apiserver converts field ownership between an object and its Scale by the same paths. A version of a
//! custom kind has the path `specReplicasPath` of its definition.

use std::borrow::Cow;
use std::sync::LazyLock;

use apimachinery::object::Object;
use apply::managers::{Entry, ManagedFields};
use apply::path::Element;
use kinds::Kind;

use super::Call;

/// Path of the replicas in a Scale, and in an object of a built-in kind.
pub(super) static REPLICAS: LazyLock<[Element; 2]> =
    LazyLock::new(|| [Element::field("spec"), Element::field("replicas")]);

/// The paths of the replicas in the versions of a kind.
#[derive(Clone, Copy)]
pub(super) struct ReplicasPaths<'a> {
    kind: &'a Kind,
}

impl<'a> ReplicasPaths<'a> {
    /// Returns the paths of the kind of a call.
    pub(super) fn new(call: &Call<'a>) -> Self {
        ReplicasPaths { kind: call.collection.kind.internal() }
    }

    /// Whether the kind has a version, served or not.
    pub(super) fn has_version(&self, api_version: &str) -> bool {
        self.kind.definition().is_none_or(|definition| definition.replicas_paths.contains_key(api_version))
    }

    /// Returns the path in a version; None for a version without the subresource `scale`.
    pub(super) fn in_version(&self, api_version: &str) -> Option<Cow<'static, [Element]>> {
        let Some(definition) = self.kind.definition() else { return Some(Cow::Borrowed(&*REPLICAS)) };
        let path = definition.replicas_paths.get(api_version)?.as_ref()?;
        Some(path.iter().map(|name| Element::field(name)).collect())
    }

    /// Returns the path of the replicas that an entry of the object's managed fields owns, if it owns them.
    pub(super) fn owned_by(&self, entry: &Entry) -> Option<Cow<'static, [Element]>> {
        self.in_version(&entry.api_version).filter(|path| entry.fields.contains(path))
    }

    /// Whether any manager owns the replicas of an object.
    pub(super) fn have_owner(&self, object: &Object) -> bool {
        ManagedFields::of(object).entries.iter().any(|entry| self.owned_by(entry).is_some())
    }
}
