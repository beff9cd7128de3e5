//! Tests of the rules and facts of kinds: cases, tables and recordings.

#![expect(clippy::indexing_slicing, clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

mod bounded_work;
mod cases;
mod facts;
mod field_labels;
mod field_rules;
mod probes;
mod recorded;
mod versions;
