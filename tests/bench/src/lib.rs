//! Parts of the load benches: a client, the CPU time and memory of processes, and the bare server to compare with.
//!
//! A bench measures the machine's own time, so this crate is outside the rule that time is passed in.

#![allow(clippy::disallowed_methods, reason = "a bench measures the machine's time")]

pub mod authority;
pub mod bare;
pub mod client;
pub mod delivery;
pub mod figure;
pub mod objects;
pub mod plane;
pub mod policy;
pub mod process;
pub mod throughput;
