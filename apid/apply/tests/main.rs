//! Laws, hostile input and recorded applies.

#![expect(clippy::indexing_slicing, clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

mod hostile;
mod properties;
mod recorded;
