//! Tests of the type table: its source, and recorded objects.

#![expect(clippy::indexing_slicing, clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

mod facts;
mod recorded;
