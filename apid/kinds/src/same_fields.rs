//! A version of a kind with the fields of the storage version.
//!
//! # Contract
//!
//! [`same_fields`] makes the kind of such a version from the stored kind. A conversion changes only `apiVersion`;
//! the schemas of both versions have the same fields.

use apimachinery::names::Names;
use apimachinery::object::Object;

use crate::{Conversion, Kind, Storage, Strategy};

/// Deprecation of a version. It is the strategy of this version, which adds the deprecation warning to
/// responses.
pub(crate) struct Deprecation {
    /// Group stem.
    pub(crate) group: &'static str,
    /// Version and kind: `v1beta1 ServiceCIDR`.
    pub(crate) version_kind: &'static str,
    /// The release that deprecates the version, and the release that removes it if known, as the end of the
    /// warning.
    pub(crate) releases: &'static str,
}

impl Deprecation {
    /// Returns the deprecation warning that responses contain.
    pub(crate) fn warning(&self, names: &Names) -> String {
        format!("{}/{} is deprecated in {}", names.group(self.group), self.version_kind, self.releases)
    }
}

impl Strategy for Deprecation {
    fn deprecation(&self, names: &Names) -> Option<String> {
        Some(self.warning(names))
    }
}

/// Returns another version of a stored kind. `schema` is the type of this version and `strategy` its
/// strategy, usually its deprecation. The stored kind must not have selectable fields.
pub(crate) const fn same_fields(
    stored: Kind,
    versions: &'static [&'static str],
    schema: &'static str,
    strategy: &'static dyn Strategy,
) -> Kind {
    let storage = Storage::Shared(stored.group);
    Kind { versions, storage, schema, strategy, conversion: Some(&SameFields(&[])), ..stored }
}

/// Conversion to and from a version with the same fields. The list contains the selectable fields of the
/// kind.
pub(crate) struct SameFields(pub(crate) &'static [&'static str]);

impl Conversion for SameFields {
    fn to_stored(&self, _object: &mut Object, _names: &Names) {}

    fn convert_from_storage(&self, _object: &mut Object, _names: &Names) {}

    fn stored_field(&self, field: &str) -> Option<&'static str> {
        self.0.iter().find(|selectable| **selectable == field).copied()
    }
}
