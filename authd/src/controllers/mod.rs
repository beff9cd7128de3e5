//! Controllers: the writes of authd, requested on the mirror stream and performed by apid.
//!
//! # Contract
//!
//! One file per group of controllers. Each controller compares mirrored objects with the desired state and returns a
//! batch of writes. Controllers do no I/O and store nothing that the mirror contains.

mod batches;
pub mod names;
pub mod policy;
pub mod tokens;
