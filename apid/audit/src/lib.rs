//! The audit log: one JSON line per request, an `Event` of the audit group at level `Metadata`.
//!
//! # Contract
//!
//! Every response carries an `Audit-Id`. With `--audit-log-path` apid writes a line of stage
//! `ResponseComplete` for each request, and before it a line of stage `ResponseStarted` for a watch or a
//! backup. Lines never contain bodies, tokens or certificates.
//!
//! The file is rotated by size and opened again at SIGHUP (`rotation`).
//!
//! # Invariants
//!
//! INVARIANT (no silent loss): a request waits until its line is in the queue. Only the last line of a watch
//! and the line of a disconnected client do not wait. When they find a full queue, or when a write to the
//! file fails, apid counts and logs the lost lines.
//!
//! # Reference
//!
//! The audit policy file and its levels are not implemented yet. The lines are as with a policy
//! that sets the level `Metadata` for all requests.

mod event;
mod rotation;
mod writer;

pub use event::{Event, Stage};
pub use rotation::Rotation;
pub use writer::AuditLog;
