//! The values of kube-apiserver in etcd: Protobuf or JSON.
//!
//! # Contract
//!
//! Reading accepts each form: Protobuf in its envelope, JSON, CBOR, and versions that are not the storage version. The
//! result is the stored form of this server, with the defaults of its version, as in kube-apiserver. Writing follows
//! `--storage-media-type`; as in kube-apiserver, custom objects, definitions and APIServices are JSON. Data that is
//! not an object stays unchanged.

use apimachinery::clock::{SystemClock, SystemRng};
use apimachinery::gvk::GroupVersion;
use apimachinery::names::Names;
use apimachinery::object::Object;
use bytes::Bytes;
use kinds::{Context, EnabledVersions, Registry, entry};
use storage::form::Form;
use verbs::envelope;

use crate::config::StorageMediaType;

/// Group stems of built-in kinds that kube-apiserver stores as JSON.
const JSON_GROUPS: [&str; 2] = ["apiextensions", "apiregistration"];

/// The beginning of the keys of custom objects.
const CUSTOM: &str = "custom/";

/// The values of kube-apiserver.
pub(crate) struct ReferenceValues {
    media_type: StorageMediaType,
    names: Names,
    clock: SystemClock,
    /// All versions of the built-in kinds.
    registry: Registry,
}

impl ReferenceValues {
    /// The values under a names preset.
    pub(crate) fn new(names: &Names, media_type: StorageMediaType) -> Self {
        let (all, _) = EnabledVersions::parse(["api/all=true"], names).unwrap_or_default();
        ReferenceValues {
            media_type,
            names: names.clone(),
            clock: SystemClock::new(),
            registry: Registry::with_versions(names, &all),
        }
    }

    /// The object in a value, in the stored form of this server.
    fn object(&self, prefix: &str, value: &Bytes) -> Result<Object, String> {
        let mut object = if envelope::is_envelope(value) {
            envelope::read_stored(value).map_err(|error| error.to_string())?
        } else {
            entry::parse(value).map_err(|error| error.to_string())?
        };
        if !prefix.starts_with(CUSTOM) {
            self.conform(&mut object)?;
        }
        Ok(object)
    }

    /// Brings an object of a built-in kind into the storage version and its stored form.
    fn conform(&self, object: &mut Object) -> Result<(), String> {
        migration::upgrade_stored(object, &self.names);
        let kind = GroupVersion::parse(object.api_version()).and_then(|stored| {
            self.registry.find_kind_version(&stored.group, &stored.version, object.kind())
        });
        let Some(kind) = kind else {
            return Err(format!("the type {} {} is unknown", object.api_version(), object.kind()));
        };
        kind.schema.conform(object).map_err(|error| error.to_string())?;
        kind.to_stored(object, &self.names).map_err(|error| error.to_string())
    }

    /// Whether the objects of a resource have Protobuf messages in etcd.
    fn has_message(prefix: &str) -> bool {
        let stem = prefix.split('/').next().unwrap_or_default();
        !prefix.starts_with(CUSTOM) && !JSON_GROUPS.contains(&stem)
    }
}

impl Form for ReferenceValues {
    fn read(&self, key: &str, value: &Bytes) -> Result<Bytes, String> {
        let Some(prefix) = kinds::resource_prefix(key) else { return Ok(value.clone()) };
        if entry::is_cbor(value) {
            return Ok(value.clone());
        }
        let mut object = self.object(prefix, value)?;
        if let Some(kind) = self.registry.of_key(key) {
            let context =
                Context { names: &self.names, clock: &self.clock, rng: &SystemRng, subresource: "" };
            kind.default(&mut object, &context);
        }
        Ok(entry::encode(&object))
    }

    fn write(&self, key: &str, value: &Bytes) -> Result<Bytes, String> {
        let Some(prefix) = kinds::resource_prefix(key) else { return Ok(value.clone()) };
        if entry::is_cbor(value) {
            return Ok(value.clone());
        }
        if self.media_type == StorageMediaType::Protobuf && Self::has_message(prefix) {
            let object = entry::parse(value).map_err(|error| error.to_string())?;
            if let Some(written) = envelope::write_stored(&object) {
                return Ok(written.into());
            }
        }
        // kube-apiserver ends JSON with a line feed.
        Ok([value, &b"\n"[..]].concat().into())
    }
}

#[cfg(test)]
mod tests;
