//! Patches, field ownership and server-side apply, as pure functions on objects and their types.
//!
//! # Contract
//!
//! - [`set`] and [`path`]: sets of paths into an object, `fieldsV1`.
//! - [`typed`]: typed operations ([`schema::merge::Merge`]): paths, comparison, merge, removal.
//! - [`managers`]: `metadata.managedFields`. [`update`]: field ownership after a create, a replace or a
//!   patch.
//! - [`server_side`]: server-side apply. [`last_applied`]: the migration from client-side apply.
//! - [`json_patch`], [`merge_patch`], [`strategic`]: the patch types.
//!
//! # Invariants
//!
//! INVARIANT (pure): no I/O, no clock, no randomness; the caller passes times.
//! INVARIANT (no kind by name): differences between kinds are in their types and in the arguments of the
//! caller.

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
mod work;
