//! Tests of the lifecycle of API versions and of conversions from removed versions.

#![expect(clippy::indexing_slicing, clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

mod lifecycle;
mod recorded;
mod records;
mod round_trips;
