//! Names of the types that operations use and the schema table does not contain.

/// The type name of the body of a patch.
pub(super) const PATCH: &str = "meta/v1.Patch";
/// The type name of a watch event.
pub(super) const WATCH_EVENT: &str = "meta/v1.WatchEvent";
