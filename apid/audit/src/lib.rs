//! The audit log: an audit policy selects the requests, stages and levels of its events.
//!
//! # Contract
//!
//! Every response carries an `Audit-Id`. [`AuditLog`] evaluates the policy for each request, encodes the events of its
//! stages, and sends them to the log file and to the webhook. Without a policy file the built-in policy applies: level
//! `Metadata` for all requests, without the stage `RequestReceived` unless the mode blocking-strict needs this stage.
//!
//! Events contain bodies only if a rule of the policy asks for them. They never contain the credentials of a request.
//!
//! The file is rotated by size and opened again at SIGHUP (`rotation`).
//!
//! # Invariants
//!
//! INVARIANT (no silent loss): a lost event is counted and logged. In the blocking modes a request waits until its
//! events are in the queue of the file, or with the webhook. Only the last event of a watch and the events of a
//! disconnected client do not wait.
//! INVARIANT (bounded memory): queues and buffers are limited by their number of events and by bytes. A request that waits
//! for a backend has no encoded event with large objects beyond [`AuditLog::reserve`].

mod audit_log;
mod backend;
mod batch;
mod counts;
mod encode;
mod event;
mod policy;
mod rotation;
mod stage;
mod webhook;
mod writer;

pub use audit_log::{AuditLog, EncodedEvent, EncodingMemory, LARGE_EVENT_BYTES};
pub use backend::{BackendOptions, Format, Mode};
pub use batch::{Batching, Throttle};
pub use event::{Event, MAX_OBJECT_BYTES, Outcome};
pub use policy::{Decision, Policy, PolicyError};
pub use rotation::Rotation;
pub use stage::{Level, Stage, Stages};
pub use webhook::{Webhook, WebhookError};
