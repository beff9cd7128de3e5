//! Field ownership: the effect of a verb's write on `metadata.managedFields`.
//!
//! # Contract
//!
//! [`Ownership::record_changes`] makes the field manager of a create, update or patch the owner of the changed
//! fields. For an apply, [`Ownership::write`] describes the write to the crate `apply`, which computes the
//! ownership. Both use the object as sent by the client, with defaults, before admission and the kind's
//! preparation. Fields that admission or preparation sets have no owner.
//!
//! The ownership is computed without waiting. A computation that lacks the result of a conversion webhook
//! fails. [`Ownership::convert_missing`] then gets the missing results, and the computation runs again.
//!
//! # Reference
//!
//! Requirements D-MF. The manager of a write does not own fields that the write cannot change, such as
//! `status`.

use std::sync::{LazyLock, OnceLock};

use apimachinery::object::Object;
use apimachinery::status::Status;
use apply::path::Element;
use apply::set::Set;
use apply::update::{ConversionError, ManagedWrite, Versions};
use kinds::{Kind, Registry, StatusWrites};
use schema::TypeError;
use schema::merge::Merge;

use super::Call;
use super::options::WriteOptions;
use super::replicas_paths::ReplicasPaths;
use super::request_conversions::RequestConversions;
use crate::ApiState;
use crate::conversion::ObjectConverter;

/// The field manager of writes by apid itself.
const APID_MANAGER: &str = "apid";

/// The subresource for the replicas of an object.
const SCALE: &str = "scale";

/// An object to be stored, and the state of its managed fields.
pub(super) struct ProposedObject {
    /// The object after the change: the body of the request, or the result of a patch.
    pub(super) object: Object,
    /// Warnings for the client.
    pub(super) warnings: Vec<String>,
    /// Whether an apply has already set the managed fields. If false, they are computed from the changes.
    pub(super) has_managed_fields: bool,
}

/// The parts of a write that determine field ownership.
pub(super) struct Ownership<'a> {
    manager: &'a str,
    subresource: &'a str,
    now: Option<jiff::Timestamp>,
    api_version: String,
    merge: Merge,
    empty: Object,
    /// The fields that the write cannot change.
    ignored: &'static Set,
    /// The kind in the version of the request.
    served: &'a Kind,
    replicas_paths: ReplicasPaths<'a>,
    versions: OtherVersions<'a>,
}

/// The other versions of the kind.
struct OtherVersions<'a> {
    api_state: &'a ApiState,
    registry: &'a Registry,
    /// The kind in its storage version.
    resource: &'a Kind,
    /// Converts objects of a custom kind.
    converter: Option<&'a ObjectConverter>,
    /// The results of the conversion webhook.
    conversions: RequestConversions,
    merges: OnceLock<Vec<(String, Merge)>>,
}

impl<'a> Ownership<'a> {
    /// Returns the ownership of a call's write.
    pub(super) fn for_call(call: &Call<'a>, options: &'a WriteOptions) -> Self {
        let (resource, served) = (&**call.collection.kind.internal(), &*call.collection.kind);
        Ownership {
            // An apply names its controller, so that each controller owns what it applies.
            manager: match options.field_manager.is_empty() && call.authorized.is_internal() {
                true => APID_MANAGER,
                false => options.manager(),
            },
            subresource: call.subresource,
            // The reference loses the time when it converts managed fields between an object and its Scale.
            now: (call.subresource != SCALE).then(|| call.api_state.clock.now()),
            api_version: served.api_version(),
            merge: served.schema.merge(),
            empty: served.schema.empty(),
            ignored: unchangeable_fields(resource, call.subresource),
            served,
            replicas_paths: ReplicasPaths::new(call),
            versions: OtherVersions {
                api_state: call.api_state,
                registry: &call.kinds.registry,
                resource,
                converter: call.collection.converter.as_deref(),
                conversions: RequestConversions::default(),
                merges: OnceLock::new(),
            },
        }
    }

    /// Returns this write in the form that the crate `apply` takes.
    pub(super) fn write(&self) -> ManagedWrite<'_> {
        ManagedWrite {
            manager: self.manager,
            api_version: &self.api_version,
            subresource: self.subresource,
            now: self.now,
            merge: &self.merge,
            versions: &self.versions,
            ignored: self.ignored,
            empty: &self.empty,
            reset_then_track: self.versions.api_state.names.behaviour.owner_reset_claims_other_changes,
        }
    }

    /// Returns an object without fields, the base of an apply that creates.
    pub(super) fn empty(&self) -> &Object {
        &self.empty
    }

    /// Gives the changed fields to the field manager. Both objects are of the stored version; `old` is None
    /// for a creation.
    ///
    /// # Errors
    ///
    /// 500: the object cannot be converted to a version in which a manager owns fields.
    pub(super) async fn record_changes(&self, old: Option<&Object>, new: &mut Object) -> Result<(), Status> {
        let Some(converter) = self.versions.converter.filter(|converter| converter.has_webhook()) else {
            return self.record_known_changes(old, new);
        };
        loop {
            let mut attempt = new.clone();
            let result = self.record_known_changes(old, &mut attempt);
            if !self.versions.conversions.convert_missing(converter).await {
                *new = attempt;
                return result;
            }
        }
    }

    /// Runs the conversions that the last computation lacked. Returns whether there were any.
    pub(super) async fn convert_missing(&self) -> bool {
        match self.versions.converter {
            Some(converter) => self.versions.conversions.convert_missing(converter).await,
            None => false,
        }
    }

    fn record_known_changes(&self, old: Option<&Object>, new: &mut Object) -> Result<(), Status> {
        // The Scale of an object whose replicas have no owner has no managed fields, and a write adds none.
        if self.subresource == SCALE && old.is_some_and(|old| !self.replicas_paths.have_owner(old)) {
            return Ok(());
        }
        if !self.served.is_converted() {
            return self.write().update(old, new).map_err(Status::internal);
        }
        let convert =
            |object: &Object| self.versions.convert(object, &self.api_version).map_err(Status::internal);
        let old = old.map(convert).transpose()?;
        let mut converted = convert(new)?;
        self.write().update(old.as_ref(), &mut converted).map_err(Status::internal)?;
        match converted.remove_meta("managedFields") {
            Some(managed) => new.set_meta("managedFields", managed),
            None => drop(new.remove_meta("managedFields")),
        }
        Ok(())
    }
}

impl OtherVersions<'_> {
    fn find(&self, api_version: &str) -> Result<&Kind, ConversionError> {
        let found = self.registry.version_of(self.resource, api_version);
        found.map(|resource| &**resource).ok_or_else(|| ConversionError::NotServed(api_version.to_owned()))
    }
}

impl Versions for OtherVersions<'_> {
    fn merge(&self, api_version: &str) -> Option<&Merge> {
        let merges = self.merges.get_or_init(|| {
            let versions = self.registry.versions_of(self.resource);
            versions.map(|version| (version.api_version(), version.schema.merge())).collect()
        });
        merges.iter().find(|(version, _)| version == api_version).map(|(_, merge)| merge)
    }

    fn convert(&self, object: &Object, api_version: &str) -> Result<Object, ConversionError> {
        let mut object = object.clone();
        if object.api_version() != api_version && self.resource.is_custom() {
            let target = self.find(api_version)?;
            if let Some(converter) = self.converter
                && !converter.convert_locally(&mut object, api_version)
            {
                object = self.conversions.find(&object, api_version)?;
            }
            target.repair(&mut object);
        } else if object.api_version() != api_version {
            let names = &self.api_state.names;
            let (source, target) = (self.find(object.api_version())?, self.find(api_version)?);
            let conversion_error = |error: TypeError| ConversionError::Failed(error.to_string());
            source.to_stored(&mut object, names).map_err(conversion_error)?;
            target.convert_from_storage(&mut object, names).map_err(conversion_error)?;
        }
        Ok(object)
    }
}

/// Returns the fields that a write to the subresource cannot change.
fn unchangeable_fields(kind: &Kind, subresource: &str) -> &'static Set {
    static NOTHING: Set = Set::new();
    static STATUS: LazyLock<Set> = LazyLock::new(|| field_set(&[&["status"]]));
    static SPEC: LazyLock<Set> = LazyLock::new(|| field_set(&[&["spec"]]));
    static SPEC_AND_LABELS: LazyLock<Set> =
        LazyLock::new(|| field_set(&[&["spec"], &["metadata", "labels"]]));
    static SPEC_AND_METADATA: LazyLock<Set> = LazyLock::new(|| field_set(&[&["spec"], &["metadata"]]));
    match (subresource, kind.rules.status_writes) {
        ("", _) if kind.has_status() => &STATUS,
        ("status", StatusWrites::Metadata) => &SPEC,
        ("status", StatusWrites::MetadataWithoutLabels) => &SPEC_AND_LABELS,
        ("status", StatusWrites::ServerMetadata | StatusWrites::StatusOnly) => &SPEC_AND_METADATA,
        _ => &NOTHING,
    }
}

fn field_set(paths: &[&[&str]]) -> Set {
    let mut set = Set::new();
    for path in paths {
        let elements: Vec<Element> = path.iter().map(|name| Element::field(name)).collect();
        set.insert(&elements);
    }
    set
}
