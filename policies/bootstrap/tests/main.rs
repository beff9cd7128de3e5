//! Tests of the default policy: its objects and recordings.

#![expect(clippy::indexing_slicing, clippy::unwrap_used, reason = "a test fails by panicking")]

mod policy;
mod recorded;
