//! Tests with real programs and processes: end-to-end, crashes, and the model of many clients.
//!
//! One program runs them, because `cargo test` runs test programs one after the other, and these tests mostly wait.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    unreachable_pub,
    reason = "a test fails by panicking, and runs on the machine's time"
)]

mod crash;
mod e2e;
mod model;
