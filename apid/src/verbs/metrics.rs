//! Metrics of reads, with the metric names of Kubernetes.

use std::time::Duration;

use kinds::Resource;
use serving::metrics::{Counters, Definition, Histograms, Metrics, Stability};

const FROM_CACHE: Definition = Definition::new(
    "apiserver_cache_list_total",
    Stability::Alpha,
    "Number of LIST requests, including chunks, served from the watch cache, by resource",
);

const FROM_STORE: Definition = Definition::new(
    "apiserver_storage_list_total",
    Stability::Alpha,
    "Number of LIST requests, including chunks, served from the store, by resource",
);

const CONSISTENT: Definition = Definition::new(
    "apiserver_watch_cache_consistent_read_total",
    Stability::Alpha,
    "Number of consistent LIST requests served from the watch cache after it reached the newest revision, by resource",
);

const TERMINATED: Definition = Definition::new(
    "apiserver_terminated_watchers_total",
    Stability::Alpha,
    "Number of watches closed because the client read too slowly, by resource",
);

const INITIAL: Definition = Definition::new(
    "apiserver_watch_list_duration_seconds",
    Stability::Alpha,
    "Time in seconds from the start of a watch to the end of its initial events, by resource",
);

/// Upper limits of the histogram buckets in seconds.
const BUCKETS: &[f64] =
    &[0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0];

type Labels = Vec<(&'static str, String)>;

/// The metrics of reads.
#[derive(Clone)]
pub struct ReadMetrics {
    from_cache: Counters<Labels>,
    from_store: Counters<Labels>,
    consistent: Counters<Labels>,
    terminated: Counters<Labels>,
    initial: Histograms<Labels>,
}

impl ReadMetrics {
    /// Registers the metrics.
    pub fn new(metrics: &Metrics) -> Self {
        ReadMetrics {
            from_cache: metrics.counter(&FROM_CACHE),
            from_store: metrics.counter(&FROM_STORE),
            consistent: metrics.counter(&CONSISTENT),
            terminated: metrics.counter(&TERMINATED),
            initial: metrics.histogram(&INITIAL, BUCKETS),
        }
    }

    /// Counts a list or chunk served from the watch cache.
    pub(super) fn cache_read(&self, resource: &Resource) {
        let prefix = vec![("resource_prefix", resource.key_prefix.clone()), ("index", String::new())];
        self.from_cache.get_or_create(&prefix).inc();
    }

    /// Counts a list or chunk read from the store.
    pub(super) fn store_read(&self, resource: &Resource) {
        self.from_store.get_or_create(&of(resource)).inc();
    }

    /// Counts a consistent list served from the watch cache.
    pub(super) fn consistent(&self, resource: &Resource) {
        let mut labels = of(resource);
        labels.extend([("success", "true".to_owned()), ("fallback", "false".to_owned())]);
        self.consistent.get_or_create(&labels).inc();
    }

    /// Counts a watch closed because its client read too slowly.
    pub(super) fn terminated(&self, resource: &Resource) {
        self.terminated.get_or_create(&of(resource)).inc();
    }

    /// Observes the duration of the initial events of a watch.
    pub(super) fn initial(&self, resource: &Resource, version: &str, namespace: &str, took: Duration) {
        let labels = vec![
            ("group", resource.group_resource.group.clone()),
            ("version", version.to_owned()),
            ("resource", resource.group_resource.resource.clone()),
            ("scope", if namespace.is_empty() { "cluster" } else { "namespace" }.to_owned()),
        ];
        self.initial.get_or_create(&labels).observe(took.as_secs_f64());
    }
}

fn of(resource: &Resource) -> Labels {
    vec![("resource", resource.group_resource.to_string())]
}
