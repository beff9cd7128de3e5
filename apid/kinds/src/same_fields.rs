//! A version of a kind with the fields of the storage version.
//!
//! # Contract
//!
//! [`same_fields`] makes the kind of such a version from the stored kind. A conversion changes only `apiVersion`;
//! the schemas of both versions have the same fields.

use crate::strategy::DefaultStrategy;
use crate::{BuiltInKind, Conversion, Storage};

/// Returns another version of a stored kind. `schema` is the type of this version.
pub(crate) const fn same_fields(stored: BuiltInKind, schema: &'static str) -> BuiltInKind {
    derive_version(stored, schema, &SameFields)
}

/// Returns another version of a stored kind with a conversion. `schema` is the type of this version.
pub(crate) const fn derive_version(
    stored: BuiltInKind,
    schema: &'static str,
    conversion: &'static dyn Conversion,
) -> BuiltInKind {
    let storage = Storage::Shared(stored.group);
    let BuiltInKind { version, .. } = BuiltInKind::namespaced(schema, stored.resource);
    BuiltInKind {
        version,
        storage,
        schema,
        strategy: &DefaultStrategy,
        conversion: Some(conversion),
        ..stored
    }
}

/// Conversion to and from a version with the same fields.
struct SameFields;

impl Conversion for SameFields {}
