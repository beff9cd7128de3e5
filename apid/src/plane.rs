//! The shared state of the process that handlers, verbs and loops get.
//!
//! # Contract
//!
//! A [`Plane`] is made once, when the store is open and the registry known, and then only read. Everything that moves is
//! behind its parts: the store, the watch cache, authorization, the audit log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::{Chance, Clock};
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
use crate::http::{Messages, RequestMetrics};
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

/// A stored kind and its objects, as one of its versions.
pub struct Collection {
    /// The kind as it is stored, under the preset's names.
    pub resource: Arc<Resource>,
    /// The kind as clients see it: the same, or another version of it.
    pub served: Arc<Resource>,
    /// Its objects.
    pub items: Arc<Items>,
}

/// What a plane is made of.
pub struct Parts {
    /// Names of the preset.
    pub names: Arc<Names>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Chance.
    pub chance: Arc<dyn Chance>,
    /// The kinds served.
    pub registry: Arc<Registry>,
    /// The store, which the cache observes.
    pub store: Arc<dyn Store>,
    /// The cache, attached to the store.
    pub cache: Arc<Cache>,
    /// Seals the tokens of lists: the key of the store.
    pub token_key: TokenKey,
    /// Identities and decisions.
    pub auth: Arc<Auth>,
    /// The admission plugins.
    pub admission: admission::Chain,
    /// The audit log.
    pub audit: AuditLog,
    /// Feature gates.
    pub gates: FeatureGates,
    /// Health checks of `/livez`, `/readyz` and `/healthz`.
    pub health: Health,
    /// Metrics of the process.
    pub metrics: Arc<serving::metrics::Metrics>,
    /// The `host:port` that discovery shows to clients.
    pub server_address: String,
    /// Turns true when the process stops: watches end then.
    pub stopping: watch::Receiver<bool>,
    /// How long a request other than a watch may take (`--request-timeout`).
    pub request_timeout: Duration,
    /// Objects that a delete of a collection deletes at a time (`--delete-collection-workers`).
    pub delete_workers: usize,
    /// The least time after which a watch ends by itself (`--min-request-timeout`); at most twice that.
    pub min_watch_timeout: Duration,
    /// The limits of a body that a client sends, and of the result of a patch (`--max-request-elements`,
    /// `--max-request-tree-bytes`).
    pub body_limits: Limits,
}

/// The checks of the health endpoints.
pub struct Health {
    /// Whether the process should be restarted.
    pub livez: Checks,
    /// Whether it can serve.
    pub readyz: Checks,
    /// The older endpoint.
    pub healthz: Checks,
}

/// The shared state.
pub struct Plane {
    parts: Parts,
    /// Discovery documents.
    pub discovery: Discovery,
    /// OpenAPI documents, made when they are asked for.
    pub openapi: Arc<OpenApi>,
    /// Counters of requests.
    pub request_metrics: RequestMetrics,
    /// Counters of lists and watches.
    pub read_metrics: ReadMetrics,
    /// Protobuf messages of objects.
    pub messages: Messages,
    collections: BTreeMap<String, Collection>,
    /// The same objects in other versions.
    versions: Vec<Collection>,
}

impl Plane {
    /// From its parts.
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
        parts.audit.count_in(&parts.metrics);
        Plane {
            parts,
            discovery,
            openapi,
            request_metrics,
            read_metrics,
            messages: Messages::default(),
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

    /// All collections as they are stored, ordered by storage key.
    pub fn collections(&self) -> impl Iterator<Item = &Collection> {
        self.collections.values()
    }
}

impl std::ops::Deref for Plane {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.parts
    }
}
