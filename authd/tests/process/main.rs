//! Tests of the authd process over its gRPC interface, as apid uses it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod combined;
mod decisions;
mod examples;
mod harness;
mod identities;
mod mirror;
mod reviews;
mod start;
