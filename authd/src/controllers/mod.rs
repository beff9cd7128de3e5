//! What authd wants written, asked for on the mirror's stream and performed by apid.
//!
//! # Contract
//!
//! One file a group of controllers. Each compares what is mirrored with what should be there and answers with a batch of
//! writes; none does I/O, and none remembers what the mirror could tell.

mod batches;
pub mod names;
pub mod policy;
pub mod tokens;
