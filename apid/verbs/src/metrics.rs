//! Metrics of reads and watches, with the metric names of Kubernetes.

use std::time::Duration;

use kinds::Kind;
use serving::metrics::{Counter, Counters, Definition, Histogram, Histograms, Metrics, Stability};

/// Upper limits of the buckets of event sizes, in bytes.
const EVENT_BUCKETS: &[f64] = &[1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0, 65536.0, 131_072.0];
/// Upper limits of the buckets of the waits for a resourceVersion, in seconds.
const WAIT_BUCKETS: &[f64] = &[0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0];
/// Upper limits of the buckets of the durations of the initial events of a watch, in seconds.
const BUCKETS: &[f64] =
    &[0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0];

type Labels = Vec<(&'static str, String)>;

/// The metrics of lists and watches.
#[derive(Clone)]
pub struct ReadMetrics {
    from_cache: Counters<Labels>,
    from_store: Counters<Labels>,
    consistent: Counters<Labels>,
    terminated: Counters<Labels>,
    initial: Histograms<Labels>,
    cache_fetched: Counters<Labels>,
    cache_returned: Counters<Labels>,
    store_fetched: Counters<Labels>,
    store_evaluated: Counters<Labels>,
    store_returned: Counters<Labels>,
    initial_events: Counters<Labels>,
    events: Counters<Labels>,
    event_sizes: Histograms<Labels>,
    read_wait: Histograms<Labels>,
}

/// Counts the events of one watch.
pub struct WatchEventMetrics {
    events: Counter,
    sizes: Histogram,
}

impl WatchEventMetrics {
    /// Counts an event of this size in bytes.
    pub fn observe(&self, bytes: usize) {
        self.events.inc();
        self.sizes.observe(bytes as f64);
    }
}

impl ReadMetrics {
    /// Registers the metrics.
    pub fn new(metrics: &Metrics) -> Self {
        let definition = |name, help| Definition::new(name, Stability::Alpha, help);
        let counter = |name, help| metrics.counter(&definition(name, help));
        let histogram = |name, help, buckets| metrics.histogram(&definition(name, help), buckets);
        ReadMetrics {
            from_cache: counter(
                "apiserver_cache_list_total",
                "Number of LIST requests, including chunks, served from the watch cache, by resource",
            ),
            from_store: counter(
                "apiserver_storage_list_total",
                "Number of LIST requests, including chunks, served from the store, by resource",
            ),
            consistent: counter(
                "apiserver_watch_cache_consistent_read_total",
                "Number of consistent LIST requests served from the watch cache after it reached the newest revision, by resource",
            ),
            terminated: counter(
                "apiserver_terminated_watchers_total",
                "Number of watches closed because the client read too slowly, by resource",
            ),
            initial: histogram(
                "apiserver_watch_list_duration_seconds",
                "Time in seconds from the start of a watch to the end of its initial events, by resource",
                BUCKETS,
            ),
            cache_fetched: counter(
                "apiserver_cache_list_fetched_objects_total",
                "Number of objects read from the watch cache by LIST requests, by resource",
            ),
            cache_returned: counter(
                "apiserver_cache_list_returned_objects_total",
                "Number of objects returned from the watch cache by LIST requests, by resource",
            ),
            store_fetched: counter(
                "apiserver_storage_list_fetched_objects_total",
                "Number of objects read from the store by LIST requests, by resource",
            ),
            store_evaluated: counter(
                "apiserver_storage_list_evaluated_objects_total",
                "Number of objects from the store that LIST requests compared with selectors, by resource",
            ),
            store_returned: counter(
                "apiserver_storage_list_returned_objects_total",
                "Number of objects returned from the store by LIST requests, by resource",
            ),
            initial_events: counter(
                "apiserver_init_events_total",
                "Number of initial events of watches, by resource",
            ),
            events: counter(
                "apiserver_watch_events_total",
                "Number of events sent to watches, by group, version and kind",
            ),
            event_sizes: histogram(
                "apiserver_watch_events_sizes",
                "Size of watch events in bytes, by group, version and kind",
                EVENT_BUCKETS,
            ),
            read_wait: histogram(
                "apiserver_watch_cache_read_wait_seconds",
                "Time in seconds that reads waited for their resourceVersion, by resource",
                WAIT_BUCKETS,
            ),
        }
    }

    /// Counts a list or chunk served from the watch cache.
    pub(super) fn count_cache_read(&self, resource: &Kind, fetched: usize, returned: usize) {
        let mut labels = vec![("resource_prefix", resource.key_prefix.clone())];
        self.cache_returned.get_or_create(&labels).inc_by(returned as u64);
        labels.push(("index", String::new()));
        self.cache_fetched.get_or_create(&labels).inc_by(fetched as u64);
        self.from_cache.get_or_create(&labels).inc();
    }

    /// Counts a list or chunk read from the store.
    pub(super) fn count_store_read(&self, resource: &Kind, fetched: usize, returned: usize) {
        let labels = resource_label(resource);
        self.from_store.get_or_create(&labels).inc();
        self.store_fetched.get_or_create(&labels).inc_by(fetched as u64);
        self.store_evaluated.get_or_create(&labels).inc_by(fetched as u64);
        self.store_returned.get_or_create(&labels).inc_by(returned as u64);
    }

    /// Counts initial events of a watch.
    pub(super) fn count_initial_events(&self, resource: &Kind, events: usize) {
        self.initial_events.get_or_create(&resource_label(resource)).inc_by(events as u64);
    }

    /// Observes the wait of a read for its resourceVersion.
    pub(super) fn observe_read_wait(&self, resource: &Kind, wait: Duration) {
        self.read_wait.get_or_create(&resource_label(resource)).observe(wait.as_secs_f64());
    }

    /// Returns the metrics of the events that watches of a kind send in one version.
    pub fn watch_events(&self, resource: &Kind, version: &str) -> WatchEventMetrics {
        let labels = vec![
            ("group", resource.group_resource.group.clone()),
            ("version", version.to_owned()),
            ("kind", resource.name().to_owned()),
        ];
        let events = self.events.get_or_create(&labels).clone();
        WatchEventMetrics { events, sizes: self.event_sizes.get_or_create(&labels).clone() }
    }

    /// Counts a consistent list served from the watch cache.
    pub(super) fn count_consistent_list(&self, resource: &Kind) {
        let mut labels = resource_label(resource);
        labels.extend([("success", "true".to_owned()), ("fallback", "false".to_owned())]);
        self.consistent.get_or_create(&labels).inc();
    }

    /// Counts a watch closed because its client read too slowly.
    pub(super) fn count_terminated_watch(&self, resource: &Kind) {
        self.terminated.get_or_create(&resource_label(resource)).inc();
    }

    /// Observes the duration of the initial events of a watch.
    pub(super) fn observe_initial_events_duration(
        &self,
        resource: &Kind,
        version: &str,
        namespace: &str,
        duration: Duration,
    ) {
        let labels = vec![
            ("group", resource.group_resource.group.clone()),
            ("version", version.to_owned()),
            ("resource", resource.group_resource.resource.clone()),
            ("scope", if namespace.is_empty() { "cluster" } else { "namespace" }.to_owned()),
        ];
        self.initial.get_or_create(&labels).observe(duration.as_secs_f64());
    }
}

fn resource_label(resource: &Kind) -> Labels {
    vec![("resource", resource.group_resource.to_string())]
}
