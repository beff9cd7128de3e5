//! Tests of the authd process over gRPC, and fuzz targets of its decoders.

#![expect(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

mod fuzz;
mod process;
