//! Numbers that the engine reports of its calls.

use std::time::Duration;

/// Receives numbers of the engine, for metrics. Each method does nothing by default.
pub trait Telemetry: Send + Sync + 'static {
    /// An operation on a key or prefix of the contract ended.
    fn request(&self, _operation: &'static str, _key: &str, _took: Duration, _is_ok: bool) {}

    /// A member reported the size of its database in bytes.
    fn database_size(&self, _member: &str, _bytes: i64) {}

    /// The watch received a progress notice.
    fn progress_notice(&self) {}

    /// A lease is full, or too old for more keys. `count` keys have this lease.
    fn lease_objects(&self, _count: usize) {}
}

/// Ignores all numbers.
impl Telemetry for () {}
