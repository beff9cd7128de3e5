//! A version of a kind with the fields of the storage version.
//!
//! # Contract
//!
//! [`same_fields`] makes the kind of such a version from the stored kind. A conversion changes only `apiVersion`;
//! the schemas of both versions have the same fields.

use apimachinery::names::Names;
use apimachinery::object::Object;

use crate::{Conversion, Kind, Storage, Strategy, Table};

/// Rules of a version with the fields of the storage version.
pub(crate) struct SameFields {
    /// Rules of the stored kind.
    pub(crate) stored: &'static dyn Strategy,
    /// Deprecation of this version.
    pub(crate) deprecation: Option<Deprecation>,
}

/// Deprecation of a version of a kind.
pub(crate) struct Deprecation {
    /// Group stem.
    pub(crate) group: &'static str,
    /// Version and kind: `v1beta1 ServiceCIDR`.
    pub(crate) version_kind: &'static str,
    /// Release of the deprecation, and of the removal if it is known.
    pub(crate) releases: &'static str,
}

impl Deprecation {
    /// Returns the warning of responses.
    pub(crate) fn warning(&self, names: &Names) -> String {
        format!("{}/{} is deprecated in {}", names.group(self.group), self.version_kind, self.releases)
    }
}

/// Returns another version of a stored kind. `schema` is the type of this version, `strategy` its rules.
pub(crate) const fn same_fields(
    stored: Kind,
    versions: &'static [&'static str],
    schema: &'static str,
    strategy: &'static SameFields,
) -> Kind {
    Kind { versions, storage: Storage::Shared(stored.group), schema, strategy, ..stored }
}

impl Strategy for SameFields {
    fn conversion(&self) -> Option<&dyn Conversion> {
        Some(self)
    }

    fn deprecation(&self, names: &Names) -> Option<String> {
        self.deprecation.as_ref().map(|deprecation| deprecation.warning(names))
    }

    fn selectable_fields(&self) -> &'static [&'static str] {
        self.stored.selectable_fields()
    }

    fn table(&self) -> Option<&'static Table> {
        self.stored.table()
    }
}

impl Conversion for SameFields {
    fn to_stored(&self, _object: &mut Object, _names: &Names) {}

    fn convert_from_storage(&self, _object: &mut Object, _names: &Names) {}

    fn stored_field(&self, field: &str) -> Option<&'static str> {
        self.stored.selectable_fields().iter().find(|selectable| **selectable == field).copied()
    }
}
