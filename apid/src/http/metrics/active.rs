//! Requests in flight and long-running requests.

use std::sync::Arc;

use apimachinery::clock::Clock;
use parking_lot::Mutex;
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

/// Numbers of read requests and of write requests in flight.
pub(super) struct InFlightRequests {
    reads: Arc<TimedCounter>,
    writes: Arc<TimedCounter>,
}

impl InFlightRequests {
    pub(super) fn new(metrics: &Metrics, clock: &Arc<dyn Clock>) -> Self {
        let gauges = metrics.gauge::<Labels>(&IN_FLIGHT);
        let counter = |kind: &str| {
            let gauge = gauges.get_or_create(&vec![("request_kind", kind.to_owned())]).clone();
            let counter =
                Arc::new(TimedCounter { counter: PeakCounter::default(), clock: Arc::clone(clock) });
            let collected_counter = Arc::clone(&counter);
            metrics.collect_with(move || {
                gauge.set(collected_counter.counter.peak(collected_counter.second()));
            });
            counter
        };
        InFlightRequests { reads: counter("readOnly"), writes: counter("mutating") }
    }

    pub(super) fn begin(&self, is_write: bool) -> ActiveRequest {
        let requests = if is_write { &self.writes } else { &self.reads };
        requests.counter.enter(requests.second());
        ActiveRequest(Active::InFlight(Arc::clone(requests)))
    }
}

/// A counter of requests in flight, with the clock that determines the current second.
struct TimedCounter {
    counter: PeakCounter,
    clock: Arc<dyn Clock>,
}

impl TimedCounter {
    fn second(&self) -> u64 {
        self.clock.monotonic().as_secs()
    }
}

/// A counter that also keeps its highest values in the current and in the previous second.
#[derive(Debug, Default)]
struct PeakCounter(Mutex<Peaks>);

#[derive(Debug, Default)]
struct Peaks {
    current: i64,
    /// The highest value of `second`.
    peak: i64,
    /// The highest value of the second before `second`.
    previous_peak: i64,
    second: u64,
}

impl Peaks {
    /// Begins a new second. The peak of a second without a change is its initial value.
    fn advance(&mut self, second: u64) {
        if second == self.second {
            return;
        }
        let is_next = second == self.second.saturating_add(1);
        self.previous_peak = if is_next { self.peak } else { self.current };
        (self.peak, self.second) = (self.current, second);
    }
}

impl PeakCounter {
    fn enter(&self, second: u64) {
        let mut peaks = self.0.lock();
        peaks.advance(second);
        peaks.current += 1;
        peaks.peak = peaks.peak.max(peaks.current);
    }

    fn leave(&self, second: u64) {
        let mut peaks = self.0.lock();
        peaks.advance(second);
        peaks.current -= 1;
    }

    fn peak(&self, second: u64) -> i64 {
        let mut peaks = self.0.lock();
        peaks.advance(second);
        peaks.peak.max(peaks.previous_peak)
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
    InFlight(Arc<TimedCounter>),
    LongRunning(Gauge),
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        match &self.0 {
            Active::InFlight(requests) => requests.counter.leave(requests.second()),
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
    fn peak_counter_reports_highest_value_of_last_seconds() {
        let counter = PeakCounter::default();
        (0..3).for_each(|_| counter.enter(5));
        (0..3).for_each(|_| counter.leave(5));
        assert_eq!(counter.peak(5), 3);
        counter.enter(6);
        assert_eq!(counter.peak(6), 3, "the previous second counts");
        counter.leave(6);
        counter.enter(7);
        assert_eq!(counter.peak(7), 1);
    }

    #[test]
    fn peak_counter_without_requests_reports_current_value() {
        let counter = PeakCounter::default();
        (0..4).for_each(|_| counter.enter(5));
        (0..3).for_each(|_| counter.leave(5));
        assert_eq!(counter.peak(6), 4, "the previous second counts");
        assert_eq!(counter.peak(7), 1, "one request runs");
        counter.leave(9);
        assert_eq!(counter.peak(10), 1, "the request ran in the previous second");
        assert_eq!(counter.peak(100), 0);
    }
}
