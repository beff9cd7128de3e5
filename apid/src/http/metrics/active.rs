//! Requests in flight and long-running requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use apimachinery::clock::Clock;
use serving::metrics::{Definition, Gauge, Gauges, Metrics, Stability};

use super::Labels;

const IN_FLIGHT: Definition = Definition::new(
    "apiserver_current_inflight_requests",
    Stability::Stable,
    "Highest number of requests in flight in the last second, by request kind, without watches",
);
const LONG_RUNNING: Definition = Definition::new(
    "apiserver_longrunning_requests",
    Stability::Stable,
    "Number of open watches, by verb, resource, scope and component",
);

/// Requests in flight, by request kind.
pub(super) struct InFlightRequests {
    reading: Arc<PeakCounter>,
    mutating: Arc<PeakCounter>,
}

impl InFlightRequests {
    pub(super) fn new(metrics: &Metrics) -> Self {
        let gauges = metrics.gauge::<Labels>(&IN_FLIGHT);
        let counter = |kind: &str| {
            let gauge = gauges.get_or_create(&vec![("request_kind", kind.to_owned())]).clone();
            let counter = Arc::new(PeakCounter::default());
            let collected = Arc::clone(&counter);
            metrics.collect_with(move || {
                gauge.set(collected.peak());
            });
            counter
        };
        InFlightRequests { reading: counter("readOnly"), mutating: counter("mutating") }
    }

    pub(super) fn begin(&self, is_write: bool, clock: &dyn Clock) -> ActiveRequest {
        let counter = if is_write { &self.mutating } else { &self.reading };
        counter.enter(clock.monotonic().as_secs());
        ActiveRequest(Active::InFlight(Arc::clone(counter)))
    }
}

/// A counter that knows its highest value of the current and of the previous second with a request.
#[derive(Debug, Default)]
struct PeakCounter {
    current: AtomicI64,
    peak: AtomicI64,
    previous_peak: AtomicI64,
    second: AtomicU64,
}

impl PeakCounter {
    fn enter(&self, second: u64) {
        let current = self.current.fetch_add(1, Ordering::Relaxed) + 1;
        if self.second.swap(second, Ordering::Relaxed) == second {
            self.peak.fetch_max(current, Ordering::Relaxed);
        } else {
            self.previous_peak.store(self.peak.swap(current, Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    fn leave(&self) {
        self.current.fetch_sub(1, Ordering::Relaxed);
    }

    fn peak(&self) -> i64 {
        self.peak.load(Ordering::Relaxed).max(self.previous_peak.load(Ordering::Relaxed))
    }
}

/// Long-running requests: watches.
pub(super) struct LongRunningRequests {
    gauges: Gauges<Labels>,
}

impl LongRunningRequests {
    pub(super) fn new(metrics: &Metrics) -> Self {
        LongRunningRequests { gauges: metrics.gauge(&LONG_RUNNING) }
    }

    pub(super) fn begin(&self, labels: &Labels) -> ActiveRequest {
        let gauge = self.gauges.get_or_create(labels).clone();
        gauge.inc();
        ActiveRequest(Active::LongRunning(gauge))
    }
}

/// A counted request; it counts until it is dropped.
pub(in crate::http) struct ActiveRequest(Active);

enum Active {
    InFlight(Arc<PeakCounter>),
    LongRunning(Gauge),
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        match &self.0 {
            Active::InFlight(counter) => counter.leave(),
            Active::LongRunning(gauge) => {
                gauge.dec();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peak_counter_shows_highest_value_of_last_seconds() {
        let counter = PeakCounter::default();
        for _ in 0..3 {
            counter.enter(5);
        }
        (0..3).for_each(|_| counter.leave());
        assert_eq!(counter.peak(), 3);
        counter.enter(6);
        assert_eq!(counter.peak(), 3, "the previous second counts");
        counter.leave();
        counter.enter(7);
        assert_eq!(counter.peak(), 1);
    }
}
