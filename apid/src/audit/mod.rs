//! The audit log: one JSON line a request, an `Event` of the audit group at level `Metadata`.
//!
//! # Contract
//!
//! Every answer carries an `Audit-Id`. With `--audit-log-path` each request leaves a line of stage `ResponseComplete`, and
//! a watch one of `ResponseStarted` before it. Lines never hold bodies, tokens or certificates.
//!
//! # Invariants
//!
//! INVARIANT (nothing lost in silence): a request waits until its line has a place in the queue; when the file cannot be
//! written, the lines that miss are counted and logged.
//!
//! # Reference
//!
//! The audit policy file and its levels come with a later part; this is what `Metadata` for everything writes.

mod event;
mod writer;

pub use event::{Event, Stage};
pub use writer::AuditLog;
