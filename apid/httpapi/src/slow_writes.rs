//! Resources whose small writes take long: their writes run on the work pool.
//!
//! # Contract
//!
//! The expected cost of a request says nothing about the work of policies, webhooks, defaults and conversions. So
//! [`SlowWrites::measure`] measures the writes on I/O threads. The elapsed time is cheap to read, but contains other
//! load of the machine: after a write that takes longer than [`THRESHOLD`], its resource is suspect for [`PERIOD`].
//! The CPU time of writes of a suspect resource is measured. After a write with more than [`THRESHOLD`], writes of
//! the resource are slow for [`PERIOD`].
//!
//! # Invariants
//!
//! INVARIANT (bounded): the set has at most one entry for each served resource, and entries of the past are removed.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::time::Duration;

use apimachinery::clock::Clock;
use kinds::Resource;
use parking_lot::RwLock;
use rustix::time::{ClockId, clock_gettime};

/// Time on an I/O thread after which a write is slow: some twenty times that of a usual write.
const THRESHOLD: Duration = Duration::from_millis(5);
/// Time for which a resource is suspect or its writes are slow.
const PERIOD: Duration = Duration::from_secs(60);

/// The resources with slow writes and the suspect resources, by key prefix.
#[derive(Default)]
pub(super) struct SlowWrites(RwLock<HashMap<String, Finding>>);

/// The result of the measurements of a resource.
#[derive(Clone, Copy)]
struct Finding {
    /// The end of the period on the monotonic clock.
    end: Duration,
    /// Whether the CPU time of a write exceeded the threshold; false: the elapsed time did.
    is_slow: bool,
}

impl SlowWrites {
    /// Whether writes of a resource are slow.
    pub(super) fn contains(&self, resource: &Resource, clock: &dyn Clock) -> bool {
        self.find(resource, clock).is_some_and(|finding| finding.is_slow)
    }

    /// Returns the finding about a resource whose period has not ended.
    fn find(&self, resource: &Resource, clock: &dyn Clock) -> Option<Finding> {
        let findings = self.0.read();
        if findings.is_empty() {
            return None;
        }
        findings.get(&resource.key_prefix).copied().filter(|finding| finding.end > clock.monotonic())
    }

    /// Runs a write of a resource and measures its time on this thread.
    pub(super) async fn measure<T>(
        &self,
        resource: &Resource,
        clock: &dyn Clock,
        write: impl Future<Output = T>,
    ) -> T {
        let is_suspect = self.find(resource, clock).is_some();
        // The CPU time of a thread needs a system call; the monotonic time does not.
        let read_time = || if is_suspect { thread_cpu_time() } else { clock.monotonic() };
        let mut write = pin!(write);
        let mut used = Duration::ZERO;
        poll_fn(|context| {
            let started = read_time();
            let result = write.as_mut().poll(context);
            let took = read_time().saturating_sub(started);
            if used <= THRESHOLD && used + took > THRESHOLD {
                self.insert(resource, clock.monotonic(), is_suspect);
            }
            used += took;
            result
        })
        .await
    }

    fn insert(&self, resource: &Resource, now: Duration, is_slow: bool) {
        let mut findings = self.0.write();
        findings.retain(|_, finding| finding.end > now);
        let known = findings.get(&resource.key_prefix).is_some_and(|finding| finding.is_slow);
        let finding = Finding { end: now + PERIOD, is_slow: is_slow || known };
        findings.insert(resource.key_prefix.clone(), finding);
    }
}

/// CPU time of this thread.
fn thread_cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use apimachinery::clock::ManualClock;
    use apimachinery::names::{Names, Preset};
    use kinds::Registry;

    use super::*;

    /// Uses CPU time of this thread.
    fn work(time: Duration) {
        let started = thread_cpu_time();
        while thread_cpu_time().saturating_sub(started) < time {}
    }

    #[tokio::test]
    async fn resource_is_slow_for_a_period_after_two_writes_with_much_cpu_time() {
        let registry = Registry::new(&Names::new(Preset::Kubernetes, "").unwrap());
        let resource = |kind| registry.find_kind("", kind).unwrap();
        let (maps, secrets) = (resource("ConfigMap"), resource("Secret"));
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
                clock.advance(THRESHOLD / 2);
                work(THRESHOLD / 2);
                tokio::task::yield_now().await;
            }
        };
        slow.measure(maps, &clock, in_steps()).await;
        assert!(!slow.contains(maps, &clock), "the resource is suspect only");
        slow.measure(maps, &clock, in_steps()).await;
        assert_eq!((slow.contains(maps, &clock), slow.contains(secrets, &clock)), (true, false));
        clock.advance(PERIOD);
        assert!(!slow.contains(maps, &clock));
        slow.measure(maps, &clock, async { work(THRESHOLD / 10) }).await;
        assert!(!slow.contains(maps, &clock));
    }
}
