//! The freshness of the requests of this server, with its metrics.

use std::sync::Arc;

use httpapi::{Freshness, PolicyConsistency};
use serving::metrics::Stability::Alpha;
use serving::metrics::{Definition, Metrics};
use storage::{NewestRead, NewestReads};
use verbs::{Caches, SeparateStore};

use super::components::Stores;
use crate::config::PolicyConsistencyName;

/// Bounds of the time of a read in seconds.
const READ_SECONDS: &[f64] =
    &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 6.0];
/// The id of the main store in metrics and logs, as in `apiserver_storage_size_bytes`.
const MAIN_CLUSTER: &str = "store";
/// The id of the separate store.
const SEPARATE_CLUSTER: &str = "override-0";
/// The age before the first read, in seconds.
const UNKNOWN_AGE: f64 = f64::INFINITY;

/// The waits for the newest revisions of the stores.
pub(super) struct FreshReads {
    /// The freshness of requests.
    pub(super) freshness: Arc<Freshness>,
    /// The reads of the newest revision of the separate store.
    pub(super) separate: Option<Arc<NewestReads>>,
}

impl FreshReads {
    /// The separate store with its cache and its reads, for the verbs.
    pub(super) fn separate_store(&self, stores: &Stores, caches: &Caches) -> Option<Arc<SeparateStore>> {
        let (key_prefix, cache) = caches.separate()?;
        Some(Arc::new(SeparateStore {
            key_prefix: key_prefix.to_owned(),
            store: Arc::clone(stores.separate.as_ref()?),
            cache: Arc::clone(cache),
            reads: Arc::clone(self.separate.as_ref()?),
            main_cache: Arc::clone(caches.main()),
            main_reads: self.freshness.reads(),
            needs_newest_policy: self.freshness.is_fresh(),
        }))
    }
}

/// Starts the reads of the newest revisions; None if no other server writes to the main store.
pub(super) fn start(
    consistency: PolicyConsistencyName,
    stores: &Stores,
    metrics: &Metrics,
) -> Option<FreshReads> {
    let alpha = |name, help| Definition::new(name, Alpha, help);
    let durations = metrics.histogram::<Vec<(&'static str, &'static str)>>(
        &alpha(
            "apid_newest_revision_read_duration_seconds",
            "Duration of the reads of the newest revision of etcd in seconds, which requests share, by result and cluster",
        ),
        READ_SECONDS,
    );
    let waits = metrics.single_counter(&alpha(
        "apid_newest_revision_waits_total",
        "Number of waits for the newest revision of etcd, mostly of requests; 0 without etcd",
    ));
    let current_age = metrics.single_float_gauge(&alpha(
        "apid_policy_age_seconds",
        "Time in seconds since when all earlier changes of etcd are known to be applied here; 0 without etcd",
    ));
    let on_read = move |cluster, read: NewestRead| {
        let result = if read.is_ok { "success" } else { "error" };
        let labels = vec![("result", result), ("storage_cluster_id", cluster)];
        durations.get_or_create(&labels).observe(read.took.as_secs_f64());
        waits.inc_by(read.calls);
    };
    let on_read = Arc::new(on_read);
    let of_store = |store, cluster| {
        let on_read = Arc::clone(&on_read);
        NewestReads::of(store, cluster, move |read| on_read(cluster, read))
    };
    let reads = of_store(&stores.main, MAIN_CLUSTER)?;
    let separate = stores.separate.as_ref().and_then(|store| of_store(store, SEPARATE_CLUSTER));
    let measured = Arc::clone(&reads);
    metrics.collect_with(move || {
        current_age.set(measured.age().map_or(UNKNOWN_AGE, |age| age.as_secs_f64()));
    });
    tokio::spawn(Arc::clone(&reads).run());
    let consistency = match consistency {
        PolicyConsistencyName::Fresh => PolicyConsistency::Fresh,
        PolicyConsistencyName::Bounded => PolicyConsistency::Bounded,
    };
    Some(FreshReads { freshness: Arc::new(Freshness::new(reads, consistency)), separate })
}
