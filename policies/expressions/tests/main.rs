//! Tests of expressions through the public interface: tables, recordings, generated and hostile input.

#![expect(clippy::indexing_slicing, clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

mod differential;
mod evaluation;
mod fuzz;
mod json_schema;
mod kubernetes;
mod language;
mod libraries;
mod recorded;
mod rules;
mod urls;
