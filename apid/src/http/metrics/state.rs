//! Metrics of the state of the server, read at each scrape: store, watch cache, authorization, objects.

use std::sync::{Arc, Weak};

use serving::metrics::{Counters, Definition, Gauge, Gauges, Metrics, Stability, raise};

use super::{Labels, info};
use crate::server_state::ServerState;

const OBJECTS: Definition =
    Definition::new("apiserver_storage_objects", Stability::Stable, "Number of stored objects, by resource");
const SIZE: Definition = Definition::new(
    "apiserver_storage_size_bytes",
    Stability::Stable,
    "Size of the files of the store in bytes",
);
const CACHE_REVISION: Definition = Definition::new(
    "apiserver_watch_cache_resource_version",
    Stability::Alpha,
    "Newest resourceVersion of the watch cache, by resource",
);
const INITIALIZATIONS: Definition = Definition::new(
    "apiserver_watch_cache_initializations_total",
    Stability::Alpha,
    "Number of initializations of the watch cache, by resource",
);
const EVENTS_RECEIVED: Definition = Definition::new(
    "apiserver_watch_cache_events_received_total",
    Stability::Alpha,
    "Number of changes that the watch cache has received, by resource",
);
const EVENTS_DISPATCHED: Definition = Definition::new(
    "apiserver_watch_cache_events_dispatched_total",
    Stability::Alpha,
    "Number of changes that the watch cache has offered to watches, by resource",
);
const STORE_REVISION: Definition =
    Definition::new("apid_store_revision", Stability::Alpha, "Newest revision of the store");
const STORE_COMPACTED: Definition = Definition::new(
    "apid_store_compacted_revision",
    Stability::Alpha,
    "Newest revision whose history is removed",
);
const STORE_TABLES: Definition =
    Definition::new("apid_store_tables", Stability::Alpha, "Number of table files of the store");
const STORE_TABLE_BYTES: Definition =
    Definition::new("apid_store_table_bytes", Stability::Alpha, "Size of the table files in bytes");
const STORE_JOURNAL_BYTES: Definition =
    Definition::new("apid_store_journal_bytes", Stability::Alpha, "Size of the journal files in bytes");
const STORE_MEMTABLE_BYTES: Definition =
    Definition::new("apid_store_memtable_bytes", Stability::Alpha, "Size of the memtables in bytes");
const STORE_ROTATIONS: Definition = Definition::new(
    "apid_store_memtable_rotations_total",
    Stability::Alpha,
    "Number of memtables sealed since the start",
);
const STORE_HEALTHY: Definition =
    Definition::new("apid_store_healthy", Stability::Alpha, "1 while the store accepts commits");
const STORE_FULL: Definition =
    Definition::new("apid_store_full", Stability::Alpha, "1 while the disk or the quota is full");
const DECISIONS: Definition = Definition::new(
    "apid_decision_cache_entries",
    Stability::Alpha,
    "Number of cached authorization decisions",
);
const DECISION_BYTES: Definition = Definition::new(
    "apid_decision_cache_bytes",
    Stability::Alpha,
    "Approximate size of the cached authorization decisions in bytes",
);
const MIRROR_LAG: Definition = Definition::new(
    "apid_mirror_lag_revisions",
    Stability::Alpha,
    "Number of revisions that the policy mirror of authd has not been sent yet",
);
const MIRROR_SYNCED: Definition = Definition::new(
    "apid_mirror_synced",
    Stability::Alpha,
    "1 while authd has the policy snapshot of this server",
);
const AUTHD_CONNECTED: Definition =
    Definition::new("apid_authd_connected", Stability::Alpha, "1 while the decision stream to authd is open");

/// Gauges and counters of the server state.
struct StateMetrics {
    objects: Gauges<Labels>,
    cache_revision: Gauges<Labels>,
    initializations: Counters<Labels>,
    events_received: Counters<Labels>,
    events_dispatched: Counters<Labels>,
    size: Gauge,
    /// The gauges of the store, in the order of the definitions in `new`.
    store: [Gauge; 8],
    rotations: serving::metrics::Counter,
    /// The gauges of authorization, in the order of the definitions in `new`.
    authorization: [Gauge; 5],
}

/// Registers the metrics of the server state. They hold a weak reference to the state.
pub fn collect_state(server_state: &Arc<ServerState>) {
    let metrics = &server_state.metrics;
    info::register(metrics, &server_state.gates, &serving::build::INFO);
    let state_metrics = StateMetrics::new(metrics);
    let state: Weak<ServerState> = Arc::downgrade(server_state);
    metrics.collect_with(move || {
        if let Some(state) = state.upgrade() {
            state_metrics.update(&state);
        }
    });
}

impl StateMetrics {
    fn new(metrics: &Metrics) -> Self {
        let sizes = metrics.gauge::<Labels>(&SIZE);
        let store = [
            &STORE_REVISION,
            &STORE_COMPACTED,
            &STORE_TABLES,
            &STORE_TABLE_BYTES,
            &STORE_JOURNAL_BYTES,
            &STORE_MEMTABLE_BYTES,
            &STORE_HEALTHY,
            &STORE_FULL,
        ];
        let authorization = [&DECISIONS, &DECISION_BYTES, &MIRROR_LAG, &MIRROR_SYNCED, &AUTHD_CONNECTED];
        StateMetrics {
            objects: metrics.gauge(&OBJECTS),
            cache_revision: metrics.gauge(&CACHE_REVISION),
            initializations: metrics.counter(&INITIALIZATIONS),
            events_received: metrics.counter(&EVENTS_RECEIVED),
            events_dispatched: metrics.counter(&EVENTS_DISPATCHED),
            size: sizes.get_or_create(&vec![("storage_cluster_id", "store".to_owned())]).clone(),
            store: store.map(|definition| metrics.single_gauge(definition)),
            rotations: metrics.single_counter(&STORE_ROTATIONS),
            authorization: authorization.map(|definition| metrics.single_gauge(definition)),
        }
    }

    fn update(&self, state: &ServerState) {
        self.update_store(state);
        self.update_cache(state);
        let stats = state.auth.cache_stats();
        let values = [
            to_gauge(stats.decisions),
            to_gauge(stats.decision_bytes),
            to_gauge(stats.mirror_lag),
            i64::from(stats.is_mirror_synced),
            i64::from(state.auth.unreachable().is_none()),
        ];
        for (gauge, value) in self.authorization.iter().zip(values) {
            gauge.set(value);
        }
    }

    fn update_store(&self, state: &ServerState) {
        let stats = state.store.stats();
        let values = [
            to_gauge(stats.revision),
            to_gauge(stats.compacted),
            i64::try_from(stats.tables).unwrap_or(i64::MAX),
            to_gauge(stats.table_bytes),
            to_gauge(stats.journal_bytes),
            to_gauge(stats.memtable_bytes),
            i64::from(state.store.health().is_ok()),
            i64::from(state.store.full_reason().is_some()),
        ];
        for (gauge, value) in self.store.iter().zip(values) {
            gauge.set(value);
        }
        self.size.set(to_gauge(stats.table_bytes.saturating_add(stats.journal_bytes)));
        raise(&self.rotations, stats.rotations);
    }

    /// Updates the series of each resource in the watch cache. A resource that no request has read is not loaded.
    fn update_cache(&self, state: &ServerState) {
        // The series of removed definitions disappear. The counts of a definition that is created again begin at 0.
        self.objects.clear();
        self.cache_revision.clear();
        self.initializations.clear();
        self.events_received.clear();
        self.events_dispatched.clear();
        for collection in state.collections() {
            let Some(stats) = collection.items.stats() else { continue };
            let labels = vec![("resource", collection.resource.group_resource.to_string())];
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
