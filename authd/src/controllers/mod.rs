//! Controllers: the writes of authd, requested on the mirror stream and performed by apid.
//!
//! # Contract
//!
//! Each group of controllers has one file. A controller compares mirrored objects with the desired state and
//! returns a batch of writes. Controllers do no I/O and store nothing that the mirror contains.

mod batches;
pub mod policy;
pub mod tokens;
