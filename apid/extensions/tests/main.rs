//! Tests of definitions and of structural schemas through the public interface.

#![expect(clippy::indexing_slicing, clippy::unwrap_used, reason = "a test fails by panicking")]

mod bounded_work;
mod definitions;
mod model;
mod recorded;
