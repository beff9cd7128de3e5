//! Owners of fields: what a write of a verb means to `metadata.managedFields`.
//!
//! # Contract
//!
//! [`Ownership::follow`] gives the manager of a create, a replace or a patch what it changed. [`Ownership::write`] is the
//! same write for an apply. Both look at the object as the client wants it, with its defaults and before admission and
//! the kind's preparation: what those two fill in belongs to nobody.
//!
//! # Reference
//!
//! Requirements D-MF. What a way of writing does not change it does not own, whatever the body says of it.

use std::sync::{LazyLock, OnceLock};

use apimachinery::object::Object;
use apimachinery::status::Status;
use apply::managers::Managed;
use apply::path::Element;
use apply::set::Set;
use apply::update::{Versions, Write};
use kinds::{Kind, Resource, StatusWrites};
use schema::Schema;
use schema::merge::Merge;

use super::Call;
use super::options::WriteOptions;
use crate::plane::Plane;

/// The manager of what this process writes on its own.
const SELF: &str = "apid";

/// The subresource that shows one number of an object.
const SCALE: &str = "scale";
/// Where that number is, in the object and in its Scale.
pub(super) static REPLICAS: LazyLock<[Element; 2]> =
    LazyLock::new(|| [Element::field("spec"), Element::field("replicas")]);

/// An object on its way to the store, and who owns it.
pub(super) struct Wanted {
    /// The object as the client wants it.
    pub(super) object: Object,
    /// What the client should know.
    pub(super) warnings: Vec<String>,
    /// Whether its managed fields are what an apply made them; else they follow from what changes.
    pub(super) applied: bool,
}

/// A write, as the owners see it.
pub(super) struct Ownership<'a> {
    manager: &'a str,
    subresource: &'a str,
    now: Option<jiff::Timestamp>,
    api_version: String,
    merge: Merge,
    empty: Object,
    ignored: &'static Set,
    /// The version that is written.
    served: &'a Resource,
    versions: Others<'a>,
}

/// The versions of the kind other than the one that is written.
struct Others<'a> {
    plane: &'a Plane,
    /// The stored version.
    resource: &'a Resource,
    merges: OnceLock<Vec<(String, Merge)>>,
}

impl<'a> Ownership<'a> {
    /// Of a call; None for a kind of which no schema is known.
    pub(super) fn of(call: &Call<'a>, options: &'a WriteOptions) -> Option<Self> {
        let (resource, served) = (&*call.collection.resource, &*call.collection.served);
        let schema = Schema::of(served.kind.schema)?;
        Some(Ownership {
            manager: if call.by.is_internal() { SELF } else { options.manager() },
            subresource: call.subresource,
            // The reference loses it on the way between an object and its Scale.
            now: (call.subresource != SCALE).then(|| call.plane.clock.now()),
            api_version: served.api_version(),
            merge: schema.merge(),
            empty: schema.empty(),
            ignored: ignored(resource.kind, call.subresource),
            served,
            versions: Others { plane: call.plane, resource, merges: OnceLock::new() },
        })
    }

    /// The write.
    pub(super) fn write(&self) -> Write<'_> {
        Write {
            manager: self.manager,
            api_version: &self.api_version,
            subresource: self.subresource,
            now: self.now,
            merge: &self.merge,
            versions: &self.versions,
            ignored: self.ignored,
            empty: &self.empty,
            reset_then_track: self.versions.plane.names.behaviour.reset_of_owners_owns_the_rest,
        }
    }

    /// An object of the kind that nobody filled: what an apply that creates is laid over.
    pub(super) fn empty(&self) -> &Object {
        &self.empty
    }

    /// Gives the manager what it changes. Both objects are of the stored version; `old` is None for a creation.
    ///
    /// # Errors
    ///
    /// 500: a version in which somebody owns fields cannot be reached.
    pub(super) fn follow(&self, old: Option<&Object>, new: &mut Object) -> Result<(), Status> {
        // A Scale of whose number nobody is the owner is an object without owners, and stays one.
        if self.subresource == SCALE && old.is_some_and(|old| !has_owner(old, &*REPLICAS)) {
            return Ok(());
        }
        if !self.served.is_converted() {
            return self.write().update(old, new).map_err(Status::internal);
        }
        let convert =
            |object: &Object| self.versions.convert(object, &self.api_version).map_err(Status::internal);
        let old = old.map(convert).transpose()?;
        let mut written = convert(new)?;
        self.write().update(old.as_ref(), &mut written).map_err(Status::internal)?;
        match written.remove_meta("managedFields") {
            Some(managed) => new.set_meta("managedFields", managed),
            None => drop(new.remove_meta("managedFields")),
        }
        Ok(())
    }
}

impl Others<'_> {
    fn find(&self, api_version: &str) -> Result<&Resource, String> {
        let found = self.plane.registry.version_of(self.resource, api_version);
        found.map(|resource| &**resource).ok_or_else(|| format!("{api_version} is not served"))
    }
}

impl Versions for Others<'_> {
    fn merge(&self, api_version: &str) -> Option<&Merge> {
        let all = self.merges.get_or_init(|| {
            let resources = self.plane.registry.resources().iter();
            let versions = resources.filter(|other| other.key_prefix == self.resource.key_prefix);
            versions.filter_map(|v| Some((v.api_version(), Schema::of(v.kind.schema)?.merge()))).collect()
        });
        all.iter().find(|(version, _)| version == api_version).map(|(_, merge)| merge)
    }

    fn convert(&self, object: &Object, api_version: &str) -> Result<Object, String> {
        let mut object = object.clone();
        if object.api_version() != api_version {
            let names = &self.plane.names;
            let (from, to) = (self.find(object.api_version())?, self.find(api_version)?);
            from.to_stored(&mut object, names).map_err(|error| error.to_string())?;
            to.show(&mut object, names).map_err(|error| error.to_string())?;
        }
        Ok(object)
    }
}

/// Whether somebody owns a field.
fn has_owner(object: &Object, path: &[Element]) -> bool {
    Managed::of(object).entries.iter().any(|entry| entry.fields.contains(path))
}

/// What a way of writing a kind leaves alone.
fn ignored(kind: &Kind, subresource: &str) -> &'static Set {
    static NOTHING: Set = Set::new();
    static STATUS: LazyLock<Set> = LazyLock::new(|| paths(&[&["status"]]));
    static SPEC: LazyLock<Set> = LazyLock::new(|| paths(&[&["spec"]]));
    static SPEC_AND_LABELS: LazyLock<Set> = LazyLock::new(|| paths(&[&["spec"], &["metadata", "labels"]]));
    static SPEC_AND_METADATA: LazyLock<Set> = LazyLock::new(|| paths(&[&["spec"], &["metadata"]]));
    match (subresource, kind.strategy.status_writes()) {
        ("", _) if kind.has_status() => &STATUS,
        ("status", StatusWrites::Metadata) => &SPEC,
        ("status", StatusWrites::MetadataWithoutLabels) => &SPEC_AND_LABELS,
        ("status", StatusWrites::Alone) => &SPEC_AND_METADATA,
        _ => &NOTHING,
    }
}

fn paths(all: &[&[&str]]) -> Set {
    let mut set = Set::new();
    for path in all {
        let elements: Vec<Element> = path.iter().map(|name| Element::field(name)).collect();
        set.insert(&elements);
    }
    set
}
