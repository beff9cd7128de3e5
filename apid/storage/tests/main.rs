//! Conformance of the engines, and stores that are killed or damaged.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod etcd;
mod fjall;
mod kill;
mod memory;
mod survey;
