//! Requests in flight and long-running requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use serving::metrics::{Gauge, Metrics};

use super::{Labels, stable};

/// Length of the intervals whose peaks `apiserver_current_inflight_requests` shows.
const INTERVAL: Duration = Duration::from_secs(1);

/// Numbers of read requests and of write requests in flight.
pub(super) struct InFlightRequests {
    reads: Arc<PeakCounter>,
    writes: Arc<PeakCounter>,
}

impl InFlightRequests {
    pub(super) fn new(metrics: &Metrics) -> Self {
        let gauges = metrics.gauge::<Labels>(&stable(
            "apiserver_current_inflight_requests",
            "Highest number of requests in flight in the last second, by request kind, without watches",
        ));
        let counter = |kind: &str| {
            let gauge = gauges.get_or_create(&vec![("request_kind", kind.to_owned())]).clone();
            let counter = Arc::new(PeakCounter::default());
            let collected_counter = Arc::clone(&counter);
            metrics.collect_with(move || {
                gauge.set(collected_counter.peak());
            });
            counter
        };
        InFlightRequests { reads: counter("readOnly"), writes: counter("mutating") }
    }

    pub(super) fn begin(&self, is_write: bool) -> ActiveRequest {
        let counter = if is_write { &self.writes } else { &self.reads };
        counter.enter();
        ActiveRequest(Active::InFlight(Arc::clone(counter)))
    }

    /// Returns the task that begins a new interval every second.
    pub(super) fn measure_peaks(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let counters = [Arc::clone(&self.reads), Arc::clone(&self.writes)];
        async move {
            loop {
                tokio::time::sleep(INTERVAL).await;
                counters.iter().for_each(|counter| counter.begin_interval());
            }
        }
    }
}

/// A counter of requests in flight that also keeps its highest values in the current and in the previous
/// interval.
#[derive(Debug, Default)]
struct PeakCounter {
    current: AtomicI64,
    /// The highest value of the current interval.
    peak: AtomicI64,
    /// The highest value of the previous interval.
    previous_peak: AtomicI64,
}

impl PeakCounter {
    fn enter(&self) {
        let current = self.current.fetch_add(1, Ordering::Relaxed) + 1;
        self.peak.fetch_max(current, Ordering::Relaxed);
    }

    fn leave(&self) {
        self.current.fetch_sub(1, Ordering::Relaxed);
    }

    /// Begins an interval. Its peak is at first its initial value.
    fn begin_interval(&self) {
        let peak = self.peak.swap(self.current.load(Ordering::Relaxed), Ordering::Relaxed);
        self.previous_peak.store(peak, Ordering::Relaxed);
    }

    fn peak(&self) -> i64 {
        self.peak.load(Ordering::Relaxed).max(self.previous_peak.load(Ordering::Relaxed))
    }
}

/// A counted request; it counts until it is dropped.
pub(crate) struct ActiveRequest(Active);

impl ActiveRequest {
    /// Counts a watch in the gauge of long-running requests.
    pub(super) fn long_running(gauge: Gauge) -> Self {
        gauge.inc();
        ActiveRequest(Active::LongRunning(gauge))
    }
}

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
    fn peak_counter_reports_highest_value_of_last_intervals() {
        let counter = PeakCounter::default();
        (0..4).for_each(|_| counter.enter());
        (0..3).for_each(|_| counter.leave());
        assert_eq!(counter.peak(), 4);
        counter.begin_interval();
        assert_eq!(counter.peak(), 4, "the previous interval counts");
        counter.begin_interval();
        assert_eq!(counter.peak(), 1, "one request runs");
        counter.leave();
        assert_eq!(counter.peak(), 1, "the request ran in this interval");
        counter.begin_interval();
        assert_eq!(counter.peak(), 1, "the request ran in the previous interval");
        counter.begin_interval();
        assert_eq!(counter.peak(), 0);
    }

    #[test]
    fn gauge_forgets_peak_after_an_interval() {
        let metrics = Metrics::new();
        let in_flight = InFlightRequests::new(&metrics);
        drop(in_flight.begin(true));
        for value in [1, 1, 0] {
            let sample = format!("request_kind=\"mutating\"}} {value}\n");
            assert!(metrics.text().contains(&sample), "{sample}{}", metrics.text());
            in_flight.writes.begin_interval();
        }
    }
}
