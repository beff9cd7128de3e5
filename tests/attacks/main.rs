//! Attacks on real servers: one attacker at a time, beside a reference client whose latency is measured.
//!
//! # Contract
//!
//! Each attack produces one row of a table. The row shows the requests of the attacker, their responses, and
//! the latency of the reference client. It also shows the memory and CPU time of apid and authd, and the
//! exceeded limits. A test fails when an attack exceeds a limit. `plan` reads the environment variables that
//! select attacks, their duration, and the programs under test.
//!
//! # Invariants
//!
//! INVARIANT (own machine): attacks connect to 127.0.0.1 only, on the port of a server that this test
//! started.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    unreachable_pub,
    reason = "a test fails by panicking, and runs on the machine's time"
)]

mod admission_objects;
mod attack;
mod attack_suite;
mod catalog;
mod client;
mod dataset;
mod generator;
mod hostile_backend;
mod limits;
mod plan;
mod process;
mod reference_client;
mod row;
mod server;
mod tally;
