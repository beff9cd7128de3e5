//! Parts of the benchmarks: a client, CPU time and memory of processes, the baseline server,
//! and a server for webhooks.
//!
//! Benchmarks measure real time, so this crate is exempt from the rule that time is a parameter.

#![allow(clippy::disallowed_methods, reason = "a bench measures the machine's time")]

pub mod authd_process;
pub mod bare;
pub mod client;
pub mod control_plane;
pub mod delivery;
pub mod figure;
pub mod objects;
pub mod policy;
pub mod process;
pub mod throughput;
pub mod tls_server;
