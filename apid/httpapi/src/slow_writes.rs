//! Small writes that take long: by their measured cost they run on the work pool.
//!
//! # Contract
//!
//! The size of a request says nothing about the work of policies, webhooks, defaults and conversions. So
//! [`SlowWrites::measure`] measures the writes on I/O threads, for each flow and resource. The elapsed time is cheap to
//! read, but contains other load of the machine: after a write that takes longer than [`THRESHOLD`], the writes of its
//! flow to the resource are suspect for [`PERIOD`]. The CPU time of suspect writes is measured. After one with more than
//! [`THRESHOLD`], they are slow for [`PERIOD`].
//!
//! # Invariants
//!
//! INVARIANT (bounded): entries of the past are removed. Each entry costs the time [`THRESHOLD`] of an I/O thread, so a
//! thread makes at most 60,000 in a period.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::time::Duration;

use apimachinery::clock::Clock;
use parking_lot::RwLock;
use rustix::time::{ClockId, clock_gettime};

/// Time on an I/O thread after which a write is slow: some fifteen times that of a usual write.
const THRESHOLD: Duration = Duration::from_millis(1);
/// Time for which writes are suspect or slow.
const PERIOD: Duration = Duration::from_secs(60);

/// The writes of a flow to a resource, as a hash of both.
pub(super) type WritesKey = u64;

/// The slow writes and the suspect writes.
#[derive(Default)]
pub(super) struct SlowWrites(RwLock<HashMap<WritesKey, Finding>>);

/// The result of measurements.
#[derive(Clone, Copy)]
struct Finding {
    /// The end of the period on the monotonic clock.
    end: Duration,
    /// Whether the CPU time of a write exceeded the threshold; false: the elapsed time did.
    is_slow: bool,
}

impl SlowWrites {
    /// Whether writes are slow. `key` returns None for a request that is no write.
    pub(super) fn contains(&self, key: impl FnOnce() -> Option<WritesKey>, clock: &dyn Clock) -> bool {
        self.find(key, clock).is_some_and(|finding| finding.is_slow)
    }

    /// Returns the finding about writes whose period has not ended. Seldom needs the key.
    fn find(&self, key: impl FnOnce() -> Option<WritesKey>, clock: &dyn Clock) -> Option<Finding> {
        let findings = self.0.read();
        if findings.is_empty() {
            return None;
        }
        findings.get(&key()?).copied().filter(|finding| finding.end > clock.monotonic())
    }

    /// Runs a write and measures its time on this thread.
    pub(super) async fn measure<T>(
        &self,
        key: impl Fn() -> Option<WritesKey>,
        clock: &dyn Clock,
        write: impl Future<Output = T>,
    ) -> T {
        let is_suspect = self.find(&key, clock).is_some();
        // The CPU time of a thread needs a system call; the monotonic time does not.
        let read_time = || if is_suspect { thread_cpu_time() } else { clock.monotonic() };
        let mut write = pin!(write);
        let mut used = Duration::ZERO;
        poll_fn(|context| {
            let started = read_time();
            let result = write.as_mut().poll(context);
            let took = read_time().saturating_sub(started);
            if used <= THRESHOLD
                && used + took > THRESHOLD
                && let Some(key) = key()
            {
                self.insert(key, clock.monotonic(), is_suspect);
            }
            used += took;
            result
        })
        .await
    }

    fn insert(&self, key: WritesKey, now: Duration, is_slow: bool) {
        let mut findings = self.0.write();
        findings.retain(|_, finding| finding.end > now);
        let known = findings.get(&key).is_some_and(|finding| finding.is_slow);
        let finding = Finding { end: now + PERIOD, is_slow: is_slow || known };
        findings.insert(key, finding);
    }
}

/// CPU time of this thread.
fn thread_cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use apimachinery::clock::ManualClock;

    use super::*;

    /// Uses CPU time of this thread.
    fn work(time: Duration) {
        let started = thread_cpu_time();
        while thread_cpu_time().saturating_sub(started) < time {}
    }

    #[tokio::test]
    async fn writes_are_slow_for_a_period_after_two_writes_with_much_cpu_time() {
        let (maps, secrets) = (|| Some(1), || Some(2));
        let clock = ManualClock::at(jiff::Timestamp::UNIX_EPOCH);
        let slow = SlowWrites::default();
        for _ in 0..2 {
            slow.measure(secrets, &clock, tokio::time::sleep(THRESHOLD * 2)).await;
            assert!(!slow.contains(secrets, &clock), "a write that waits is not slow");
            slow.measure(secrets, &clock, async { clock.advance(THRESHOLD * 2) }).await;
            assert!(!slow.contains(secrets, &clock), "a write that other load delays is not slow");
        }
        let in_steps = async || {
            for _ in 0..4 {
                clock.advance(THRESHOLD);
                work(THRESHOLD / 2);
                tokio::task::yield_now().await;
            }
        };
        slow.measure(maps, &clock, in_steps()).await;
        assert!(!slow.contains(maps, &clock), "the writes are suspect only");
        slow.measure(maps, &clock, in_steps()).await;
        assert_eq!((slow.contains(maps, &clock), slow.contains(secrets, &clock)), (true, false));
        clock.advance(PERIOD);
        assert!(!slow.contains(maps, &clock));
        slow.measure(maps, &clock, async { work(THRESHOLD / 10) }).await;
        assert!(!slow.contains(maps, &clock));
    }
}
