//! Common types of both processes and every crate.
//!
//! Names, kinds, the object tree and its encodings, Status, selectors, users, attributes and decisions.
//!
//! # Invariants
//!
//! INVARIANT (no I/O): this crate reads no files, opens no sockets, starts no threads and does not depend on
//! tokio. The caller passes time and randomness as the traits of [`clock`]. INVARIANT (names are a preset):
//! names with the domain suffix or the vendor prefix come from [`names::Names`]; `tests/tidy` lists the
//! exceptions.

pub mod attributes;
pub mod clock;
pub mod codec;
pub mod decision;
pub mod document;
pub mod duration;
pub mod field;
pub mod format;
pub mod gvk;
pub mod ip_address;
mod message_value;
pub mod names;
pub mod object;
pub mod printable;
pub mod quantity;
pub mod review;
pub mod selector;
pub mod status;
pub mod time;
pub mod user;
