//! The shared state of the server, for handlers, verbs and background loops.
//!
//! # Contract
//!
//! A [`ServerState`] is constructed once, when the store is open and the registry known, and is read-only from
//! then on. Mutable state is inside its parts: the store, the watch cache, authorization, the audit log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::{Clock, Rng};
use apimachinery::codec::Limits;
use apimachinery::names::Names;
use kinds::entry::Decoder;
use kinds::{Registry, Resource};
use serving::gates::FeatureGates;
use serving::health::Checks;
use storage::Store;
use tokio::sync::watch;

use crate::audit::AuditLog;
use crate::auth::Auth;
use crate::discovery::Discovery;
use crate::discovery::openapi::OpenApi;
use crate::http::{MessageCache, RequestMetrics};
use crate::verbs::{ReadMetrics, TokenKey};

/// The watch cache of this process.
pub type Cache = storage::cache::Cache<Decoder>;
/// The cached objects of one resource.
pub type Items = storage::cache::Resource<Decoder>;
/// A cached object.
pub type Item = storage::cache::Item<Decoder>;
/// A change of one object.
pub type Event = storage::cache::Event<Decoder>;
/// All objects of a resource at one revision.
pub type Snapshot = storage::cache::Snapshot<Decoder>;
/// All objects of a resource at one revision, for a reader that may be slow.
pub type Pin = storage::cache::Pin<Decoder>;
/// The changes of a scope.
pub type Watcher = storage::cache::Watcher<Decoder>;

/// A stored kind and its objects, served in one of its versions.
pub struct Collection {
    /// The kind in its storage version, under the preset's names.
    pub resource: Arc<Resource>,
    /// The kind in the served version: the storage version, or another one.
    pub served: Arc<Resource>,
    /// Its objects.
    pub items: Arc<Items>,
}

/// The parts of a [`ServerState`].
pub struct Parts {
    /// The names of the preset.
    pub names: Arc<Names>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The random number generator.
    pub rng: Arc<dyn Rng>,
    /// The served kinds.
    pub registry: Arc<Registry>,
    /// The store; the cache observes it.
    pub store: Arc<dyn Store>,
    /// The watch cache, attached to the store.
    pub cache: Arc<Cache>,
    /// The key that authenticates continue tokens, kept in the store.
    pub token_key: TokenKey,
    /// The client of authd.
    pub auth: Arc<Auth>,
    /// The admission plugins.
    pub admission: admission::Chain,
    /// The audit log.
    pub audit: AuditLog,
    /// The feature gates.
    pub gates: FeatureGates,
    /// The checks of `/livez`, `/readyz` and `/healthz`.
    pub health: Health,
    /// The metrics of the process.
    pub metrics: Arc<serving::metrics::Metrics>,
    /// The `host:port` of this server in discovery documents.
    pub server_address: String,
    /// Becomes true at shutdown: watches end then.
    pub stopping: watch::Receiver<bool>,
    /// The timeout of requests other than watches (`--request-timeout`).
    pub request_timeout: Duration,
    /// Concurrent deletes of a delete-collection request (`--delete-collection-workers`).
    pub delete_workers: usize,
    /// The minimum duration of a watch (`--min-request-timeout`); the maximum is twice that.
    pub min_watch_timeout: Duration,
    /// The limits of request bodies and of results of patches (`--max-request-elements`,
    /// `--max-request-tree-bytes`).
    pub body_limits: Limits,
}

/// The checks of the health endpoints.
pub struct Health {
    /// Whether the process must be restarted.
    pub livez: Checks,
    /// Whether the process can serve.
    pub readyz: Checks,
    /// The older endpoint.
    pub healthz: Checks,
}

/// The shared state.
pub struct ServerState {
    parts: Parts,
    /// The discovery documents.
    pub discovery: Discovery,
    /// The OpenAPI documents, generated on demand.
    pub openapi: Arc<OpenApi>,
    /// The metrics of requests.
    pub request_metrics: RequestMetrics,
    /// The metrics of lists and watches.
    pub read_metrics: ReadMetrics,
    /// The Protobuf messages of objects.
    pub messages: MessageCache,
    collections: BTreeMap<String, Collection>,
    /// The same objects in versions other than the storage version.
    versions: Vec<Collection>,
}

impl ServerState {
    /// Constructs the state from its parts.
    pub fn new(parts: Parts) -> Self {
        let collection = |resource: &Arc<Resource>, served: &Arc<Resource>| Collection {
            resource: Arc::clone(resource),
            served: Arc::clone(served),
            items: parts.cache.resource(&resource.key_prefix, Decoder::new(resource)),
        };
        let registry = &parts.registry;
        let collections = registry.stored().map(|r| (r.key_prefix.clone(), collection(r, r))).collect();
        let converted = registry.resources().iter().filter(|served| served.is_converted());
        let versions = converted
            .filter_map(|served| Some(collection(registry.of_key(&served.key_prefix)?, served)))
            .collect();
        let discovery = Discovery::new(&parts.registry, &parts.names, &parts.server_address);
        let openapi = Arc::new(OpenApi::new(Arc::clone(&parts.registry), Arc::clone(&parts.names)));
        let request_metrics = RequestMetrics::new(&parts.metrics);
        let read_metrics = ReadMetrics::new(&parts.metrics);
        parts.audit.register_metrics(&parts.metrics);
        ServerState {
            parts,
            discovery,
            openapi,
            request_metrics,
            read_metrics,
            messages: MessageCache::default(),
            collections,
            versions,
        }
    }

    /// The collection of a kind whose objects are stored.
    pub fn collection(&self, resource: &Resource) -> Option<&Collection> {
        if resource.is_converted() {
            return self.versions.iter().find(|collection| std::ptr::eq(&*collection.served, resource));
        }
        self.collections.get(&resource.key_prefix)
    }

    /// All collections in their storage version, ordered by storage key.
    pub fn collections(&self) -> impl Iterator<Item = &Collection> {
        self.collections.values()
    }
}

impl std::ops::Deref for ServerState {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.parts
    }
}
