//! Shared parts of the tests with real programs.
//!
//! A simulated disk, which computes the effect of power cuts, is mounted for a process under test. The
//! [`harness`] starts control planes.
//!
//! # Contract
//!
//! [`disk::Disk`] is the disk, [`mount::Mount`] serves it as a FUSE file system. A test that mounts runs
//! itself again with [`namespace::run_inside`], so that its mounts end when its process ends.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test fails by panicking, and runs on the machine's time"
)]

mod content;
pub mod disk;
pub mod harness;
pub mod mount;
pub mod namespace;
