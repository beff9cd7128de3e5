//! Attacks on real servers: one attacker at a time, beside a polite client whose latency is measured.
//!
//! # Contract
//!
//! Each attack produces one row of a table: the attacker's requests and answers, the latency of the polite client, the
//! memory and CPU time of apid and authd, and the bounds that it misses. A test fails when an attack misses a bound.
//! `plan` reads the environment variables that select attacks, their duration, and the programs under test.
//!
//! # Invariants
//!
//! INVARIANT (own machine): attacks connect to 127.0.0.1 only, on the port of a server that this test started.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    unreachable_pub,
    reason = "a test fails by panicking, and runs on the machine's time"
)]

mod attack;
mod bounds;
mod campaign;
mod catalog;
mod client;
mod dataset;
mod generator;
mod plan;
mod polite;
mod process;
mod row;
mod server;
mod tally;
