//! Resources whose small writes take long: their writes run on the work pool.
//!
//! # Contract
//!
//! The expected cost of a request says nothing about the work of policies, webhooks, defaults and conversions. So
//! [`SlowWrites::measure`] measures the CPU time of the writes on I/O threads. After a write that takes longer than
//! [`THRESHOLD`], writes of its resource are slow for [`PERIOD`].
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

/// CPU time on an I/O thread after which a write is slow: some twenty times that of a usual write.
const THRESHOLD: Duration = Duration::from_millis(5);
/// Time for which the writes of a resource are slow.
const PERIOD: Duration = Duration::from_secs(60);

/// Resources with slow writes: the end of the period by key prefix of the resource, on the monotonic clock.
#[derive(Default)]
pub(super) struct SlowWrites(RwLock<HashMap<String, Duration>>);

impl SlowWrites {
    /// Whether writes of a resource are slow.
    pub(super) fn contains(&self, resource: &Resource, clock: &dyn Clock) -> bool {
        let ends = self.0.read();
        !ends.is_empty() && ends.get(&resource.key_prefix).is_some_and(|end| *end > clock.monotonic())
    }

    /// Runs a write of a resource and measures its CPU time on this thread.
    pub(super) async fn measure<T>(
        &self,
        resource: &Resource,
        clock: &dyn Clock,
        write: impl Future<Output = T>,
    ) -> T {
        let mut write = pin!(write);
        let mut used = Duration::ZERO;
        poll_fn(|context| {
            let started = thread_cpu_time();
            let result = write.as_mut().poll(context);
            let took = thread_cpu_time().saturating_sub(started);
            if used <= THRESHOLD && used + took > THRESHOLD {
                self.insert(resource, clock.monotonic());
            }
            used += took;
            result
        })
        .await
    }

    fn insert(&self, resource: &Resource, now: Duration) {
        let mut ends = self.0.write();
        ends.retain(|_, end| *end > now);
        ends.insert(resource.key_prefix.clone(), now + PERIOD);
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
    async fn resource_is_slow_for_a_period_after_a_write_with_much_cpu_time() {
        let registry = Registry::new(&Names::new(Preset::Kubernetes, "").unwrap());
        let resource = |kind| registry.find_kind("", kind).unwrap();
        let (maps, secrets) = (resource("ConfigMap"), resource("Secret"));
        let clock = ManualClock::at(jiff::Timestamp::UNIX_EPOCH);
        let slow = SlowWrites::default();
        slow.measure(secrets, &clock, tokio::time::sleep(THRESHOLD * 2)).await;
        assert!(!slow.contains(secrets, &clock), "a write that waits is not slow");
        let in_steps = async {
            for _ in 0..4 {
                work(THRESHOLD / 2);
                tokio::task::yield_now().await;
            }
        };
        slow.measure(maps, &clock, in_steps).await;
        assert_eq!((slow.contains(maps, &clock), slow.contains(secrets, &clock)), (true, false));
        clock.advance(PERIOD);
        assert!(!slow.contains(maps, &clock));
        slow.measure(maps, &clock, async { work(THRESHOLD / 10) }).await;
        assert!(!slow.contains(maps, &clock));
    }
}
