//! Conversion between served versions and storage versions.
//!
//! # Contract
//!
//! A non-storage version is a separate [`crate::Kind`] with [`crate::Storage::Shared`] and its own names,
//! schema and printer columns. A [`Conversion`] translates between this version and the storage version. A
//! round trip through the storage version loses nothing, even if one version lacks a field of the other. The
//! schema normalizes the output of a conversion to the stored form, so a conversion does not have to omit zero
//! values.

use apimachinery::names::Names;
use apimachinery::object::Object;

/// Conversion between a served version of a kind and its storage version.
/// Both objects are in the stored form of their schema. The conversion does not handle kind, apiVersion or
/// fields that both versions share.
pub trait Conversion: Send + Sync {
    /// Converts an object from the served version to the storage version.
    fn to_stored(&self, _object: &mut Object, _names: &Names) {}

    /// Converts an object from the storage version to the served version.
    fn convert_from_storage(&self, _object: &mut Object, _names: &Names) {}

    /// Storage-version name of a selectable field that has another name in the served version.
    fn stored_field(&self, _field: &str) -> Option<&'static str> {
        None
    }
}

/// Renames a field of an object.
pub(crate) fn rename(object: &mut Object, from: &str, to: &str) {
    if let Some(value) = object.remove(from) {
        object.set(to, value);
    }
}
