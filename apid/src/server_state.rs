//! The shared state of the server, for handlers, verbs and background loops.
//!
//! # Contract
//!
//! A [`ServerState`] is constructed once, when the store is open and the built-in registry known, and is
//! read-only from then on. Mutable state is inside its parts: the store, the watch cache, authorization, the
//! audit log, and the served kinds.
//!
//! [`ServedKinds`] is an immutable list of all served kinds with their documents and with handles to their
//! live collections; the objects of a collection change all the time. A request takes the current list at its
//! start and uses this list to its end. [`ServerState::serve`] replaces the list when definitions change. A
//! replacement ends the watches of changed and removed kinds; unchanged kinds keep their resources,
//! collections and watches.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use apimachinery::clock::{Clock, Rng};
use apimachinery::codec::Limits;
use apimachinery::names::Names;
use arc_swap::ArcSwap;
use kinds::entry::Decoder;
use kinds::{CurrentRegistry, Registry, Resource};
use parking_lot::Mutex;
use serving::compatibility::CompatibilityVersions;
use serving::gates::{FeatureGates, Gate};
use serving::health::Checks;
use storage::Store;
use tokio::sync::{Semaphore, watch};

use crate::addresses::ServiceAddresses;
use crate::audit::AuditLog;
use crate::auth::Auth;
use crate::conversion::{ConversionClient, ConversionContext, ConversionMetrics, ObjectConverter};
use crate::discovery::Discovery;
use crate::discovery::openapi::OpenApi;
use crate::http::{MessageCache, RequestMetrics};
use crate::verbs::{self, DeclarativeValidation, ReadMetrics, TokenKey, Validator};

/// The watch cache of this process.
pub type Cache = storage::cache::Cache<Decoder>;
/// The cached objects of one resource.
pub type Items = storage::cache::Resource<Decoder>;
/// A cached object.
pub type Item = storage::cache::Item<Decoder>;
/// A watch event of the cache: a change of one object.
pub type Event = storage::cache::Event<Decoder>;
/// All objects of a resource at one revision.
pub type Snapshot = storage::cache::Snapshot<Decoder>;
/// A snapshot that the cache can revoke to free memory, for a reader that may be slow.
pub type Pin = storage::cache::Pin<Decoder>;
/// A watcher of the changes under a key prefix.
pub type Watcher = storage::cache::Watcher<Decoder>;

/// A stored kind and its objects, served in one of its versions.
pub struct Collection {
    /// The kind in the version that the verbs use: the storage version of a built-in kind, the served version
    /// of a custom kind.
    pub resource: Arc<Resource>,
    /// The kind in the version in which this collection is served to clients.
    pub served: Arc<Resource>,
    /// The cached objects of the kind, as stored.
    pub items: Arc<Items>,
    /// Converts the objects of a custom kind between the storage version and the served version.
    pub converter: Option<Arc<ObjectConverter>>,
}

/// The parts from which [`ServerState::new`] builds the state.
pub struct Parts {
    /// The names of the preset.
    pub names: Arc<Names>,
    /// The clock of the process.
    pub clock: Arc<dyn Clock>,
    /// The random number generator of the process.
    pub rng: Arc<dyn Rng>,
    /// The registry of the served kinds, shared with components that have no [`ServerState`]. At first, it
    /// contains only the built-in kinds.
    pub current_registry: Arc<CurrentRegistry>,
    /// The store; the cache observes it.
    pub store: Arc<dyn Store>,
    /// The watch cache, attached to the store.
    pub cache: Arc<Cache>,
    /// The allocator of addresses and node ports of Services; it observes the store.
    pub addresses: Arc<ServiceAddresses>,
    /// The key that authenticates continue tokens, kept in the store.
    pub token_key: TokenKey,
    /// The client of authd.
    pub auth: Arc<Auth>,
    /// The admission plugins.
    pub admission: admission::Chain,
    /// The client of conversion webhooks.
    pub conversion_client: Arc<dyn ConversionClient>,
    /// The metrics of conversion webhooks.
    pub conversion_metrics: Arc<ConversionMetrics>,
    /// The audit log.
    pub audit: AuditLog,
    /// The feature gates.
    pub gates: FeatureGates,
    /// The emulated release and the oldest compatible release.
    pub compatibility_versions: CompatibilityVersions,
    /// The validation of objects by the declarative tags of their types.
    pub validator: Validator,
    /// The checks of `/livez`, `/readyz` and `/healthz`.
    pub health: Health,
    /// The metrics of the process.
    pub metrics: Arc<serving::metrics::Metrics>,
    /// The `host:port` of this server in discovery documents.
    pub server_address: String,
    /// Becomes true at shutdown; all watches then end.
    pub stopping: watch::Receiver<bool>,
    /// The timeout of requests other than watches (`--request-timeout`).
    pub request_timeout: Duration,
    /// Number of objects that one deletecollection request deletes concurrently
    /// (`--delete-collection-workers`).
    pub delete_workers: usize,
    /// The minimum duration of a watch for which the client sets no timeout (`--min-request-timeout`). The
    /// maximum is twice this duration.
    pub min_watch_timeout: Duration,
    /// The limits of request bodies and of results of patches (`--max-request-elements`,
    /// `--max-request-tree-bytes`).
    pub body_limits: Limits,
}

/// The checks of the health endpoints.
pub struct Health {
    /// `/livez`: a failure means that the process must be restarted.
    pub livez: Checks,
    /// `/readyz`: whether the process can serve requests.
    pub readyz: Checks,
    /// `/healthz`, the older endpoint of kube-apiserver.
    pub healthz: Checks,
}

/// A snapshot of the served kinds. A change of the kinds replaces the snapshot.
pub struct ServedKinds {
    /// The registry of the kinds.
    pub registry: Arc<Registry>,
    /// The OpenAPI documents, generated on demand.
    pub openapi: Arc<OpenApi>,
    names: Arc<Names>,
    server_address: String,
    has_storage_version_hashes: bool,
    /// The discovery documents, generated on first use.
    discovery: OnceLock<Discovery>,
    collections: BTreeMap<String, KindCollections>,
}

/// The collections of a stored kind in all versions. Clones share the collections.
#[derive(Clone)]
struct KindCollections {
    /// The collection that serves the storage version.
    stored: Arc<Collection>,
    /// The collections that serve the versions other than the storage version.
    others: Vec<Arc<Collection>>,
}

impl ServedKinds {
    /// Builds the list of the kinds of a registry. Kinds with the same resources as in `before`, the previous
    /// list, keep their collections and cached objects.
    fn new(registry: Arc<Registry>, openapi: OpenApi, parts: &Parts, before: Option<&ServedKinds>) -> Self {
        let collections: BTreeMap<String, KindCollections> = registry
            .stored()
            .map(|stored| {
                let key_prefix = &stored.key_prefix;
                let existing = before.and_then(|before| before.collections.get(key_prefix));
                let versions = match existing {
                    Some(existing) if existing.are_current(&registry, stored) => existing.clone(),
                    _ => KindCollections::new(&registry, stored, parts),
                };
                (key_prefix.clone(), versions)
            })
            .collect();
        ServedKinds {
            registry,
            openapi: Arc::new(openapi),
            names: Arc::clone(&parts.names),
            server_address: parts.server_address.clone(),
            has_storage_version_hashes: parts.gates.enabled(Gate::StorageVersionHash),
            discovery: OnceLock::new(),
            collections,
        }
    }

    /// The discovery documents.
    pub fn discovery(&self) -> &Discovery {
        self.discovery.get_or_init(|| {
            Discovery::new(&self.registry, &self.names, &self.server_address, self.has_storage_version_hashes)
        })
    }

    /// Returns the collection of a kind in the version of `resource`; None if objects of the kind are not
    /// stored.
    pub fn collection(&self, resource: &Resource) -> Option<&Arc<Collection>> {
        let versions = self.collections.get(&resource.key_prefix)?;
        if !resource.is_other_version() {
            return Some(&versions.stored);
        }
        versions.others.iter().find(|collection| std::ptr::eq(&*collection.served, resource))
    }

    /// All collections in their storage version, ordered by storage key.
    pub fn collections(&self) -> impl Iterator<Item = &Arc<Collection>> {
        self.collections.values().map(|versions| &versions.stored)
    }
}

impl KindCollections {
    /// Registers a kind with the watch cache. Removes the cached objects of an earlier definition of a custom
    /// kind.
    fn new(registry: &Registry, stored: &Arc<Resource>, parts: &Parts) -> Self {
        if stored.is_custom() {
            parts.cache.unregister(&stored.key_prefix);
        }
        let items = parts.cache.resource(&stored.key_prefix, Decoder::new(stored));
        let context = ConversionContext {
            names: Arc::clone(&parts.names),
            rng: Arc::clone(&parts.rng),
            client: Arc::clone(&parts.conversion_client),
            clock: Arc::clone(&parts.clock),
            metrics: Arc::clone(&parts.conversion_metrics),
        };
        let versions: Arc<[Arc<Resource>]> = registry.versions_of(stored).cloned().collect();
        let collection = |served: &Arc<Resource>| {
            let converter = ObjectConverter::new(served, stored, &versions, &context).map(Arc::new);
            let resource = if converter.is_some() { served } else { stored };
            let (resource, served, items) = (Arc::clone(resource), Arc::clone(served), Arc::clone(&items));
            Arc::new(Collection { resource, served, items, converter })
        };
        let others = versions.iter().filter(|version| version.is_other_version());
        KindCollections { stored: collection(stored), others: others.map(collection).collect() }
    }

    /// Whether the collections serve exactly the resources that the registry has for the kind.
    fn are_current(&self, registry: &Registry, stored: &Arc<Resource>) -> bool {
        let others = registry.versions_of(stored).filter(|version| version.is_other_version());
        Arc::ptr_eq(&self.stored.served, stored)
            && others.map(Arc::as_ptr).eq(self.others.iter().map(|other| Arc::as_ptr(&other.served)))
    }
}

/// The state that handlers, verbs and background tasks share.
pub struct ServerState {
    parts: Parts,
    kinds: ArcSwap<ServedKinds>,
    /// The lock that a replacement of the served kinds holds, so that replacements run one after the other.
    replacement_lock: Mutex<()>,
    /// The number of replacements of the served kinds.
    replacement_count: watch::Sender<u64>,
    /// The metrics of requests.
    pub request_metrics: RequestMetrics,
    /// The metrics of lists and watches.
    pub read_metrics: ReadMetrics,
    /// Runs the declarative validation beside the hand-written validation, and compares their results.
    pub declarative_validation: DeclarativeValidation,
    /// Cache of the Protobuf encodings of objects in the watch cache.
    pub messages: MessageCache,
    /// The semaphore with one permit, because only one backup may run at a time.
    pub backups: Arc<Semaphore>,
}

impl ServerState {
    /// Constructs the state from its parts.
    pub fn new(parts: Parts) -> Self {
        let registry = parts.current_registry.get();
        let openapi = OpenApi::new(Arc::clone(&registry), Arc::clone(&parts.names));
        let kinds = ServedKinds::new(registry, openapi, &parts, None);
        let request_metrics = RequestMetrics::new(&parts.metrics);
        let read_metrics = ReadMetrics::new(&parts.metrics);
        let validator = Arc::clone(&parts.validator);
        let declarative_validation = DeclarativeValidation::new(&parts.gates, validator, &parts.metrics);
        parts.audit.register_metrics(&parts.metrics);
        verbs::observe_admission(&parts.admission, &parts.clock, &parts.metrics);
        ServerState {
            parts,
            kinds: ArcSwap::from_pointee(kinds),
            replacement_lock: Mutex::default(),
            replacement_count: watch::Sender::new(0),
            request_metrics,
            declarative_validation,
            read_metrics,
            messages: MessageCache::default(),
            backups: Arc::new(Semaphore::new(1)),
        }
    }

    /// Returns the served kinds. A request calls this function once, so that it sees one state of the kinds.
    pub fn kinds(&self) -> Arc<ServedKinds> {
        self.kinds.load_full()
    }

    /// Returns a receiver that is notified of each replacement of the served kinds.
    pub fn kinds_changes(&self) -> watch::Receiver<u64> {
        self.replacement_count.subscribe()
    }

    /// Replaces the custom kinds. Kinds with the same resources as before stay as they are; watches of all
    /// other custom kinds end.
    pub fn serve(&self, custom: impl IntoIterator<Item = Arc<Resource>>) {
        let _lock = self.replacement_lock.lock();
        let before = self.kinds.load_full();
        let registry = Arc::new(before.registry.with_custom(custom));
        let openapi = before.openapi.with_registry(Arc::clone(&registry));
        let kinds = ServedKinds::new(Arc::clone(&registry), openapi, &self.parts, Some(&before));
        let removed = before.collections.keys().filter(|prefix| !kinds.collections.contains_key(*prefix));
        let removed: Vec<&String> = removed.collect();
        self.parts.current_registry.set(registry);
        self.kinds.store(Arc::new(kinds));
        for prefix in removed {
            self.parts.cache.unregister(prefix);
        }
        self.replacement_count.send_modify(|count| *count += 1);
    }

    /// The registry of the served kinds.
    pub fn registry(&self) -> Arc<Registry> {
        Arc::clone(&self.kinds.load().registry)
    }

    /// Returns the collection of a kind in the version of `resource`; None if objects of the kind are not
    /// stored.
    pub fn collection(&self, resource: &Resource) -> Option<Arc<Collection>> {
        self.kinds.load().collection(resource).cloned()
    }

    /// All collections in their storage version, ordered by storage key.
    pub fn collections(&self) -> Vec<Arc<Collection>> {
        self.kinds.load().collections().cloned().collect()
    }
}

impl std::ops::Deref for ServerState {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.parts
    }
}
