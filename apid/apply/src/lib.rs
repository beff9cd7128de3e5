//! Patches, owners of fields and server-side apply. Pure: objects and types in, objects out.
//!
//! # Contract
//!
//! - [`set`] and [`path`]: sets of paths into an object, `fieldsV1`.
//! - [`typed`]: walking objects with their types ([`schema::merge::Merge`]): paths, comparison, merge, removal.
//! - [`managers`]: `metadata.managedFields`. [`update`]: who owns what after a create, a replace or a patch.
//! - [`server_side`]: server-side apply; [`last_applied`]: the client tool's way to it.
//! - [`json_patch`], [`merge_patch`], [`strategic`]: the patch types.
//!
//! # Invariants
//!
//! INVARIANT (pure): no I/O, no clock, no chance; times are passed in.
//! INVARIANT (no kind by name): what differs between kinds is in their types and in what the caller passes.

pub mod json_patch;
pub mod last_applied;
pub mod managers;
pub mod merge_patch;
pub mod path;
pub mod server_side;
pub mod set;
pub mod strategic;
pub mod typed;
pub mod update;
