//! The state of the API that all verbs share.
//!
//! # Contract
//!
//! An [`ApiState`] is constructed once, when the store is open and the built-in registry known, and is
//! read-only from then on. Mutable state is inside its parts: the store, the watch cache, the served kinds,
//! the addresses, authorization.

use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::{Clock, Rng};
use apimachinery::codec::Limits;
use apimachinery::names::Names;
use authclient::Auth;
use forwarding::Forwarding;
use kinds::Kind;
use serving::gates::FeatureGates;
use storage::Store;
use tokio::sync::watch;

use crate::addresses::ServiceAddresses;
use crate::served_kinds::CurrentKinds;
use crate::watch_cache::Cache;
use crate::{DeclarativeValidation, ReadMetrics, SeparateStore, TokenKey};

/// The state of the API: kinds, objects, authorization, admission.
pub struct ApiState {
    /// The names of the preset.
    pub names: Arc<Names>,
    /// The clock of the process.
    pub clock: Arc<dyn Clock>,
    /// The random number generator of the process.
    pub rng: Arc<dyn Rng>,
    /// The feature gates.
    pub gates: FeatureGates,
    /// The served kinds and their collections.
    pub kinds: CurrentKinds,
    /// The main store; the cache observes it. [`Items::store`](crate::Items::store) is that of a collection.
    pub store: Arc<dyn Store>,
    /// The watch cache, attached to the main store.
    pub cache: Arc<Cache>,
    /// The store of a resource that is not in the main store.
    pub separate_store: Option<Arc<SeparateStore>>,
    /// The allocator of addresses and node ports of Services; it observes the store.
    pub addresses: Arc<ServiceAddresses>,
    /// The client of authd.
    pub auth: Arc<Auth>,
    /// The admission plugins.
    pub admission: admission::Chain,
    /// Runs the declarative validation beside the hand-written validation, and compares their results.
    pub declarative_validation: DeclarativeValidation,
    /// Connections to nodes, pods, Services and aggregated APIs.
    pub forwarding: Arc<Forwarding>,
    /// The key that authenticates continue tokens, kept in the store.
    pub token_key: TokenKey,
    /// The metrics of lists and watches.
    pub read_metrics: ReadMetrics,
    /// The limits of request bodies and of results of patches (`--max-request-elements`,
    /// `--max-request-tree-bytes`).
    pub body_limits: Limits,
    /// The minimum duration of a watch for which the client sets no timeout (`--min-request-timeout`). The
    /// maximum is twice this duration.
    pub min_watch_timeout: Duration,
    /// Becomes true at shutdown; all watches then end.
    pub stopping: watch::Receiver<bool>,
}

impl ApiState {
    /// The store of the objects of a kind if it is not the main one.
    pub fn separate_store_of(&self, kind: &Kind) -> Option<&Arc<SeparateStore>> {
        self.separate_store.as_ref().filter(|separate| separate.has(kind))
    }
}
