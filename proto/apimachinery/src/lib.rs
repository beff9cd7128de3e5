//! What both processes and every crate speak of: names, kinds, the object tree and its encodings, Status, selectors,
//! users, attributes and decisions.
//!
//! # Invariants
//!
//! INVARIANT (no I/O): nothing here reads a file, opens a socket, starts a thread or knows tokio. Time and chance are
//! the traits of [`clock`], passed in by the caller.
//! INVARIANT (names are a preset): every name with the domain suffix or the vendor prefix comes from [`names::Names`].

pub mod attributes;
pub mod clock;
pub mod codec;
pub mod decision;
pub mod field;
pub mod gvk;
pub mod names;
pub mod object;
pub mod review;
pub mod selector;
pub mod status;
pub mod time;
pub mod user;
