//! Metrics of the state of the server, read at each scrape: store, watch cache, authorization, objects.

use std::sync::{Arc, Weak};

use serving::build::BuildInfo;
use serving::metrics::{Counter, Counters, Gauge, Gauges, Metrics, raise};

use super::{Labels, alpha, info, stable};
use authclient::AuthStats;
use storage::Stats;
use verbs::ApiState;

/// A scrape of the gauges without labels.
struct Scrape<'a> {
    state: &'a ApiState,
    store: Stats,
    auth: AuthStats,
}

/// Returns the current value of a gauge without labels.
type GaugeValue = fn(&Scrape<'_>) -> u64;

/// Name, help and value of each gauge of the store and of authorization.
const GAUGES: [(&str, &str, GaugeValue); 13] = [
    ("apid_store_revision", "Newest revision of the store", |s| s.store.revision),
    ("apid_store_compacted_revision", "Newest revision whose history is removed", |s| s.store.compacted),
    ("apid_store_tables", "Number of table files of the store", |s| s.store.tables as u64),
    ("apid_store_table_bytes", "Size of the table files in bytes", |s| s.store.table_bytes),
    ("apid_store_journal_bytes", "Size of the journal files in bytes", |s| s.store.journal_bytes),
    ("apid_store_memtable_bytes", "Size of the memtables in bytes", |s| s.store.memtable_bytes),
    ("apid_store_healthy", "1 while the store accepts commits", |s| s.state.store.health().is_ok().into()),
    ("apid_store_full", "1 while the disk or the quota is full", |s| {
        s.state.store.full_reason().is_some().into()
    }),
    ("apid_decision_cache_entries", "Number of cached authorization decisions", |s| s.auth.decisions),
    ("apid_decision_cache_bytes", "Approximate size of the cached authorization decisions in bytes", |s| {
        s.auth.decision_bytes
    }),
    (
        "apid_mirror_lag_revisions",
        "Number of revisions that the policy mirror of authd has not been sent yet",
        |s| s.auth.mirror_lag,
    ),
    ("apid_mirror_synced", "1 while authd has the policy snapshot of this server", |s| {
        s.auth.is_mirror_synced.into()
    }),
    ("apid_authd_connected", "1 while the decision stream to authd is open", |s| {
        s.state.auth.connection().unreachable().is_none().into()
    }),
];

/// Gauges and counters of the state of the API.
struct StateMetrics {
    objects: Gauges<Labels>,
    cache_revision: Gauges<Labels>,
    initializations: Counters<Labels>,
    events_received: Counters<Labels>,
    events_dispatched: Counters<Labels>,
    sizes: Gauges<Labels>,
    rotations: Counter,
    /// The gauges of [`GAUGES`], each with the function that returns its value.
    gauges: [(Gauge, GaugeValue); GAUGES.len()],
}

/// Registers the metrics of the state of the API. They hold a weak reference to the state.
pub(crate) fn collect_state(metrics: &Arc<Metrics>, api_state: &Arc<ApiState>, build: &BuildInfo) {
    info::register(metrics, &api_state.gates, build);
    let state_metrics = StateMetrics::new(metrics);
    let state: Weak<ApiState> = Arc::downgrade(api_state);
    metrics.collect_with(move || {
        if let Some(state) = state.upgrade() {
            state_metrics.update(&state);
        }
    });
}

impl StateMetrics {
    fn new(metrics: &Metrics) -> Self {
        let sizes = metrics.gauge::<Labels>(&stable(
            "apiserver_storage_size_bytes",
            "Size of the files of the store in bytes",
        ));
        StateMetrics {
            objects: metrics
                .gauge(&stable("apiserver_storage_objects", "Number of stored objects, by resource")),
            cache_revision: metrics.gauge(&alpha(
                "apiserver_watch_cache_resource_version",
                "Newest resourceVersion of the watch cache, by resource",
            )),
            initializations: metrics.counter(&alpha(
                "apiserver_watch_cache_initializations_total",
                "Number of initializations of the watch cache, by resource",
            )),
            events_received: metrics.counter(&alpha(
                "apiserver_watch_cache_events_received_total",
                "Number of changes that the watch cache has received, by resource",
            )),
            events_dispatched: metrics.counter(&alpha(
                "apiserver_watch_cache_events_dispatched_total",
                "Number of changes that the watch cache has offered to watches, by resource",
            )),
            sizes,
            rotations: metrics.single_counter(&alpha(
                "apid_store_memtable_rotations_total",
                "Number of memtables sealed since the start",
            )),
            gauges: GAUGES.map(|(name, help, value)| (metrics.single_gauge(&alpha(name, help)), value)),
        }
    }

    fn update(&self, state: &ApiState) {
        let scrape = Scrape { state, store: state.store.stats(), auth: state.auth.cache_stats() };
        for (gauge, value) in &self.gauges {
            gauge.set(to_gauge(value(&scrape)));
        }
        let store = &scrape.store;
        self.set_size("store", store);
        if let Some(separate) = &state.separate_store {
            self.set_size("override-0", &separate.store.stats());
        }
        raise(&self.rotations, store.rotations);
        self.update_cache(state);
    }

    fn set_size(&self, cluster: &str, stats: &Stats) {
        let gauge = self.sizes.get_or_create(&vec![("storage_cluster_id", cluster.to_owned())]);
        gauge.set(to_gauge(stats.table_bytes.saturating_add(stats.journal_bytes)));
    }

    /// Updates the series of each resource in the watch cache. A resource that no request has read is not loaded.
    fn update_cache(&self, state: &ApiState) {
        // The series of removed definitions disappear. The counts of a definition that is created again begin at 0.
        self.objects.clear();
        self.cache_revision.clear();
        self.initializations.clear();
        self.events_received.clear();
        self.events_dispatched.clear();
        for collection in state.kinds.collections() {
            let Some(stats) = collection.items.stats() else { continue };
            let labels = vec![("resource", collection.kind.internal().group_resource.to_string())];
            self.objects.get_or_create(&labels).set(i64::try_from(stats.objects).unwrap_or(i64::MAX));
            self.cache_revision.get_or_create(&labels).set(to_gauge(stats.revision.0));
            raise(&self.initializations.get_or_create(&labels).clone(), stats.loads);
            raise(&self.events_received.get_or_create(&labels).clone(), stats.received);
            raise(&self.events_dispatched.get_or_create(&labels).clone(), stats.dispatched);
        }
    }
}

fn to_gauge(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
