//! A store apart from the main one: that of a resource with a cluster of its own (`--etcd-servers-overrides`).
//!
//! # Contract
//!
//! Each store has its own revisions, and a [`Cache`] that observes only this store. A collection belongs to one store for
//! the life of the process: [`Caches`] decides by its key prefix, and [`storage::cache::Resource::store`] leads to the store.
//! Everything that decides about requests is in the main store: users, roles, policies, definitions, namespaces, quotas.
//!
//! # Invariants
//!
//! INVARIANT (no mixed revisions): a revision is compared only with revisions of the same store. Where policy and objects
//! meet, the wait is in time: [`SeparateStore::newest_policy`] returns a revision of the main store that has every policy
//! write acknowledged before the call.

use std::sync::Arc;
use std::time::Duration;

use apimachinery::status::Status;
use kinds::Kind;
use storage::{NewestReads, Revision, Store};

use crate::Cache;

/// Maximum time that a watch waits for the newest policy, as for the confirmation of its authorization.
const POLICY_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause after a failed read, before the next one.
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// The watch caches of the stores.
#[derive(Clone)]
pub struct Caches {
    main: Arc<Cache>,
    separate: Option<(String, Arc<Cache>)>,
}

impl Caches {
    /// The cache of the main store, and that of the separate store with the key prefix of its resource.
    pub fn new(main: &Arc<Cache>, separate: Option<(String, Arc<Cache>)>) -> Self {
        Caches { main: Arc::clone(main), separate }
    }

    /// The cache of the objects below a key prefix.
    pub(crate) fn of(&self, key_prefix: &str) -> &Cache {
        match &self.separate {
            Some((separate, cache)) if separate == key_prefix => cache,
            _ => &self.main,
        }
    }

    /// The cache of the main store.
    pub fn main(&self) -> &Arc<Cache> {
        &self.main
    }

    /// The key prefix of the resource in the separate store, and its cache.
    pub fn separate(&self) -> Option<(&str, &Arc<Cache>)> {
        self.separate.as_ref().map(|(key_prefix, cache)| (&**key_prefix, cache))
    }
}

impl From<&Arc<Cache>> for Caches {
    fn from(main: &Arc<Cache>) -> Self {
        Caches::new(main, None)
    }
}

/// The store of one resource, with its revisions. Other servers write to it, too.
pub struct SeparateStore {
    /// The key prefix of the resource.
    pub key_prefix: String,
    /// The store; its cache observes it.
    pub store: Arc<dyn Store>,
    /// The watch cache of the resource.
    pub cache: Arc<Cache>,
    /// The shared reads of the newest revision of this store.
    pub reads: Arc<NewestReads>,
    /// The watch cache of the main store.
    pub main_cache: Arc<Cache>,
    /// The shared reads of the newest revision of the main store.
    pub main_reads: Arc<NewestReads>,
    /// Whether each decision rests on the newest policy.
    pub needs_newest_policy: bool,
}

impl SeparateStore {
    /// Whether the store has the objects of a kind.
    pub fn has(&self, kind: &Kind) -> bool {
        self.key_prefix == kind.key_prefix
    }

    /// Waits until the policy is as new as the call. Returns a revision of the main store up to which policy is known.
    /// Repeats failed reads for [`POLICY_TIMEOUT`], so that a short outage of the main store does not end watches.
    ///
    /// # Errors
    ///
    /// 503: the main store does not tell its newest revision.
    pub(crate) async fn newest_policy(&self) -> Result<Revision, Box<Status>> {
        let known = async {
            while self.needs_newest_policy && self.main_reads.catch_up().await.is_err() {
                tokio::time::sleep(RETRY_DELAY).await;
            }
        };
        tokio::time::timeout(POLICY_TIMEOUT, known).await.map_err(|_| Box::new(unknown("policy")))?;
        Ok(self.main_cache.revision())
    }

    /// Waits until the cache of the main store is as new as the call.
    ///
    /// # Errors
    ///
    /// 503: the main store does not tell its newest revision.
    pub(crate) async fn catch_up_with_main(&self) -> Result<(), Status> {
        self.main_reads.catch_up().await.map_err(|_| unknown("state of namespaces"))
    }
}

/// 503 without the reason, which names members of etcd; the reason is in the log.
fn unknown(what: &str) -> Status {
    let text = format!("the newest {what} is not known to this server: try again, or see /readyz");
    Status::unavailable(text, 1)
}
