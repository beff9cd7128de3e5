//! Metrics of the work queues, with the names of Kubernetes: `workqueue_*`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serving::metrics::{
    Counter, Counters, Definition, FloatGauges, Gauge, Gauges, Histogram, Histograms, Metrics, Stability,
};

const ADDS: Definition =
    Definition::new("workqueue_adds_total", Stability::Alpha, "Number of items added to a work queue");
const DEPTH: Definition =
    Definition::new("workqueue_depth", Stability::Alpha, "Number of items that wait in a work queue");
const RETRIES: Definition =
    Definition::new("workqueue_retries_total", Stability::Alpha, "Number of items retried after a failure");
const QUEUE_DURATION: Definition = Definition::new(
    "workqueue_queue_duration_seconds",
    Stability::Alpha,
    "Time in seconds that an item waits in a work queue",
);
const WORK_DURATION: Definition = Definition::new(
    "workqueue_work_duration_seconds",
    Stability::Alpha,
    "Time in seconds that the processing of an item takes",
);
const UNFINISHED: Definition = Definition::new(
    "workqueue_unfinished_work_seconds",
    Stability::Alpha,
    "Sum in seconds of the times for which the items in process have been processed so far",
);
const LONGEST: Definition = Definition::new(
    "workqueue_longest_running_processor_seconds",
    Stability::Alpha,
    "Longest time in seconds for which an item in process has been processed so far",
);

/// Upper limits of the buckets in seconds: powers of ten from 10 ns to 10 s.
const BUCKETS: &[f64] = &[1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0];

type Label = [(&'static str, &'static str); 1];

/// The families of the metrics of all queues; the label `name` is the name of the queue.
pub(super) struct QueueMetrics {
    adds: Counters<Label>,
    depth: Gauges<Label>,
    retries: Counters<Label>,
    queue_duration: Histograms<Label>,
    work_duration: Histograms<Label>,
    unfinished: FloatGauges<Label>,
    longest: FloatGauges<Label>,
    collectors: Arc<Collectors>,
}

/// The functions that set the gauges of the queues before a scrape, by the name of the queue.
type Collectors = Mutex<HashMap<&'static str, Box<dyn Fn() + Send + Sync>>>;

impl QueueMetrics {
    /// Registers the families.
    pub(super) fn new(metrics: &Metrics) -> Self {
        let collectors = Arc::<Collectors>::default();
        let of_queues = Arc::clone(&collectors);
        metrics.collect_with(move || of_queues.lock().values().for_each(|collect| collect()));
        QueueMetrics {
            collectors,
            adds: metrics.counter(&ADDS),
            depth: metrics.gauge(&DEPTH),
            retries: metrics.counter(&RETRIES),
            queue_duration: metrics.histogram(&QUEUE_DURATION, BUCKETS),
            work_duration: metrics.histogram(&WORK_DURATION, BUCKETS),
            unfinished: metrics.float_gauge(&UNFINISHED),
            longest: metrics.float_gauge(&LONGEST),
        }
    }

    /// Calls `collect` before each scrape, in place of the function of an earlier queue with this name.
    pub(super) fn collect_with(&self, name: &'static str, collect: impl Fn() + Send + Sync + 'static) {
        self.collectors.lock().insert(name, Box::new(collect));
    }

    /// Returns the series of one queue.
    pub(super) fn queue(&self, name: &'static str) -> QueueSeries {
        let label = [("name", name)];
        let queue = QueueSeries {
            adds: self.adds.get_or_create(&label).clone(),
            depth: self.depth.get_or_create(&label).clone(),
            retries: self.retries.get_or_create(&label).clone(),
            queue_duration: self.queue_duration.get_or_create(&label).clone(),
            work_duration: self.work_duration.get_or_create(&label).clone(),
            unfinished: self.unfinished.clone(),
            longest: self.longest.clone(),
            label,
        };
        queue.set_running(std::iter::empty());
        queue
    }
}

/// The series of the metrics of one queue.
pub(super) struct QueueSeries {
    adds: Counter,
    depth: Gauge,
    retries: Counter,
    queue_duration: Histogram,
    work_duration: Histogram,
    unfinished: FloatGauges<Label>,
    longest: FloatGauges<Label>,
    label: Label,
}

impl QueueSeries {
    /// Counts an added item and sets the number of waiting items.
    pub(super) fn record_add(&self, depth: usize) {
        self.adds.inc();
        self.set_depth(depth);
    }

    /// Counts a retry.
    pub(super) fn record_retry(&self) {
        self.retries.inc();
    }

    /// Records the start of the processing of an item, after `waited` in the queue.
    pub(super) fn record_start(&self, waited: Duration, depth: usize) {
        self.queue_duration.observe(waited.as_secs_f64());
        self.set_depth(depth);
    }

    /// Records the end of the processing of an item.
    pub(super) fn record_end(&self, duration: Duration) {
        self.work_duration.observe(duration.as_secs_f64());
    }

    /// Sets the gauges of the times for which the items in process have been processed.
    pub(super) fn set_running(&self, times: impl Iterator<Item = Duration>) {
        let (total, longest) = times.fold((Duration::ZERO, Duration::ZERO), |(total, longest), time| {
            (total + time, longest.max(time))
        });
        self.unfinished.get_or_create(&self.label).set(total.as_secs_f64());
        self.longest.get_or_create(&self.label).set(longest.as_secs_f64());
    }

    /// Sets the gauges of a queue that ends.
    pub(super) fn clear(&self) {
        self.set_depth(0);
        self.set_running(std::iter::empty());
    }

    fn set_depth(&self, depth: usize) {
        self.depth.set(i64::try_from(depth).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn queue_of_a_new_term_replaces_the_function_of_the_earlier_queue() {
        let metrics = Metrics::new();
        let families = QueueMetrics::new(&metrics);
        let calls = Arc::new(AtomicUsize::new(0));
        for _term in 0..3 {
            let calls = Arc::clone(&calls);
            families.collect_with("test", move || {
                calls.fetch_add(1, Ordering::SeqCst);
            });
        }
        metrics.text();
        assert_eq!(calls.load(Ordering::SeqCst), 1);
    }
}
