//! A version of a kind with the fields of the storage version.
//!
//! # Contract
//!
//! [`same_fields`] makes the kind of such a version from the stored kind. A conversion changes only `apiVersion`;
//! the schemas of both versions have the same fields.

use apimachinery::names::Names;
use apimachinery::object::Object;

use crate::strategy::DefaultStrategy;
use crate::{Conversion, Kind, Storage};

/// Returns another version of a stored kind. `schema` is the type of this version. The stored kind must not
/// have selectable fields.
pub(crate) const fn same_fields(
    stored: Kind,
    versions: &'static [&'static str],
    schema: &'static str,
) -> Kind {
    let storage = Storage::Shared(stored.group);
    Kind {
        versions,
        storage,
        schema,
        strategy: &DefaultStrategy,
        conversion: Some(&SameFields(&[])),
        ..stored
    }
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
