//! Tests of the authd process over its gRPC interface, as apid uses it.

mod combined;
mod decisions;
mod examples;
mod harness;
mod identities;
mod mirror;
mod reviews;
mod several_apids;
mod start;
