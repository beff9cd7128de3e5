//! The served kinds: their registry, and the collections of the watch cache that hold their objects.
//!
//! # Contract
//!
//! [`ServedKinds`] is an immutable list of all served kinds with handles to their live collections; the
//! objects of a collection change all the time. [`CurrentKinds`] has the current list. A request takes this
//! list at its start and uses it to its end. [`CurrentKinds::serve`] replaces the list when definitions
//! change. A replacement ends the watches of changed and removed kinds; unchanged kinds keep their resources,
//! collections and watches.
//!
//! # Invariants
//!
//! INVARIANT (no objects without a definition): a new custom object is committed only while its definition exists and
//! is not terminating. [`CurrentKinds::begin_create`] checks the definition after admission, which may take long.
//! [`CurrentKinds::finish_creates`] lets the deletion of a definition wait for the commits that began before.

use std::collections::BTreeMap;
use std::sync::Arc;

use apimachinery::names::Names;
use apimachinery::status::Status;
use arc_swap::ArcSwap;
use kinds::entry::Decoder;
use kinds::{CurrentRegistry, Kind, Registry};
use parking_lot::Mutex;
use storage::Revision;
use tokio::sync::{RwLock, RwLockReadGuard, watch};

use crate::conversion::{ConversionContext, ObjectConverter};
use crate::separate_store::Caches;
use crate::watch_cache::Items;

/// A stored kind and its objects, served in one of its versions.
pub struct Collection {
    /// The kind in the version of the requests; the verbs work in [`Kind::internal`] of this kind.
    pub kind: Arc<Kind>,
    /// The cached objects of the kind, as stored.
    pub items: Arc<Items>,
    /// Converts the objects of a custom kind between the storage version and the served version.
    pub converter: Option<Arc<ObjectConverter>>,
}

/// A snapshot of the served kinds. A change of the kinds replaces the snapshot.
pub struct ServedKinds {
    /// The registry of the kinds.
    pub registry: Arc<Registry>,
    /// The collections of each stored kind, by storage key prefix.
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

/// The watch caches and the conversion context, from which new collections are built.
struct CollectionSources {
    caches: Caches,
    conversion: ConversionContext,
}

impl ServedKinds {
    /// Builds the list of the kinds of a registry. Kinds with the same resources as in `before`, the previous
    /// list, keep their collections and cached objects.
    fn new(registry: Arc<Registry>, sources: &CollectionSources, before: Option<&ServedKinds>) -> Self {
        let collections: BTreeMap<String, KindCollections> = registry
            .stored()
            .map(|stored| {
                let key_prefix = &stored.key_prefix;
                let existing = before.and_then(|before| before.collections.get(key_prefix));
                let versions = match existing {
                    Some(existing) if existing.are_current(&registry, stored) => existing.clone(),
                    _ => KindCollections::new(&registry, stored, sources),
                };
                (key_prefix.clone(), versions)
            })
            .collect();
        ServedKinds { registry, collections }
    }

    /// Returns the collection of a kind in the version of `resource`; None if objects of the kind are not
    /// stored.
    pub fn collection(&self, resource: &Kind) -> Option<&Arc<Collection>> {
        let versions = self.collections.get(&resource.key_prefix)?;
        if !resource.is_other_version() {
            return Some(&versions.stored);
        }
        versions.others.iter().find(|collection| std::ptr::eq(&*collection.kind, resource))
    }

    /// All collections in their storage version, ordered by storage key.
    pub fn collections(&self) -> impl Iterator<Item = &Arc<Collection>> {
        self.collections.values().map(|versions| &versions.stored)
    }
}

impl KindCollections {
    /// Registers a kind with the watch cache. Removes the cached objects of an earlier definition of a custom
    /// kind.
    fn new(registry: &Registry, stored: &Arc<Kind>, sources: &CollectionSources) -> Self {
        if stored.is_custom() {
            sources.caches.of(&stored.key_prefix).unregister(&stored.key_prefix);
        }
        let items = sources.caches.of(&stored.key_prefix).resource(&stored.key_prefix, Decoder::new(stored));
        let versions: Arc<[Arc<Kind>]> = registry.versions_of(stored).cloned().collect();
        let collection = |served: &Arc<Kind>| {
            let converter =
                ObjectConverter::new(served, stored, &versions, &sources.conversion).map(Arc::new);
            Arc::new(Collection { kind: Arc::clone(served), items: Arc::clone(&items), converter })
        };
        let others = versions.iter().filter(|version| version.is_other_version());
        KindCollections { stored: collection(stored), others: others.map(collection).collect() }
    }

    /// Whether the collections serve exactly the resources that the registry has for the kind.
    fn are_current(&self, registry: &Registry, stored: &Arc<Kind>) -> bool {
        let others = registry.versions_of(stored).filter(|version| version.is_other_version());
        Arc::ptr_eq(&self.stored.kind, stored)
            && others.map(Arc::as_ptr).eq(self.others.iter().map(|other| Arc::as_ptr(&other.kind)))
    }
}

/// The current list of the served kinds, and its replacement.
pub struct CurrentKinds {
    sources: CollectionSources,
    /// The registry of the current list, shared with components that have no list.
    current_registry: Arc<CurrentRegistry>,
    current: ArcSwap<ServedKinds>,
    /// The lock that a replacement holds, so that replacements run one after the other.
    replacement_lock: Mutex<()>,
    /// The lock that commits of new custom objects hold for reading.
    create_lock: RwLock<()>,
    /// The number of replacements.
    replacement_count: watch::Sender<u64>,
    /// The revision of the definitions from which the current list was made.
    definitions_revision: watch::Sender<Revision>,
}

impl CurrentKinds {
    /// Serves the kinds of the current registry, whose objects are in `caches`.
    pub fn new(
        current_registry: Arc<CurrentRegistry>,
        caches: impl Into<Caches>,
        conversion: ConversionContext,
    ) -> Self {
        let sources = CollectionSources { caches: caches.into(), conversion };
        let kinds = ServedKinds::new(current_registry.get(), &sources, None);
        CurrentKinds {
            sources,
            current_registry,
            current: ArcSwap::from_pointee(kinds),
            replacement_lock: Mutex::default(),
            create_lock: RwLock::default(),
            replacement_count: watch::Sender::new(0),
            definitions_revision: watch::Sender::new(Revision(0)),
        }
    }

    /// Returns the served kinds. A request calls this function once, so that it sees one state of the kinds.
    pub fn get(&self) -> Arc<ServedKinds> {
        self.current.load_full()
    }

    /// Returns a receiver that is notified of each replacement of the served kinds.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.replacement_count.subscribe()
    }

    /// Replaces the custom kinds. Kinds with the same resources as before stay as they are; watches of all
    /// other custom kinds end.
    pub fn serve(&self, custom: impl IntoIterator<Item = Arc<Kind>>) {
        let _lock = self.replacement_lock.lock();
        let before = self.current.load_full();
        let registry = Arc::new(before.registry.with_custom(custom));
        let kinds = ServedKinds::new(Arc::clone(&registry), &self.sources, Some(&before));
        let removed = before.collections.keys().filter(|prefix| !kinds.collections.contains_key(*prefix));
        let removed: Vec<&String> = removed.collect();
        self.current_registry.set(registry);
        self.current.store(Arc::new(kinds));
        for prefix in removed {
            self.sources.caches.of(prefix).unregister(prefix);
        }
        self.replacement_count.send_modify(|count| *count += 1);
    }

    /// Records that the served kinds are those of the definitions at a revision.
    pub fn set_definitions_revision(&self, revision: Revision) {
        self.definitions_revision.send_modify(|current| *current = revision.max(*current));
    }

    /// Waits until the served kinds are those of all definitions in the watch cache. Cancel-safe; the caller limits the
    /// time.
    pub async fn wait_for_definitions(&self, names: &Names) {
        let (group, kind) = (names.group("apiextensions"), "CustomResourceDefinition");
        let kinds = self.get();
        let definitions = kinds.registry.find_kind(&group, kind).and_then(|kind| kinds.collection(kind));
        let Some(newest) = definitions.and_then(|definitions| definitions.items.last_change_now()) else {
            return;
        };
        let mut served = self.definitions_revision.subscribe();
        // Cannot fail, because `self` owns the sender.
        let _ = served.wait_for(|served| *served >= newest).await;
    }

    /// Begins the commit of a new object, which was admitted as an object of `resource`. The caller holds the guard
    /// until the commit ends; a built-in kind needs no guard.
    ///
    /// # Errors
    ///
    /// 404: the definition of the kind is gone. 403: the definition is terminating.
    pub async fn begin_create(
        &self,
        resource: &Kind,
        name: &str,
    ) -> Result<Option<RwLockReadGuard<'_, ()>>, Status> {
        let Some(definition) = resource.definition() else { return Ok(None) };
        let guard = self.create_lock.read().await;
        let current = self.current.load();
        let stored = current.collections.get(&resource.key_prefix).map(|versions| &versions.stored.kind);
        let is_same =
            |stored: &&Arc<Kind>| stored.definition().is_some_and(|stored| stored.uid == definition.uid);
        let stored = stored.filter(is_same).ok_or_else(Status::unknown_resource)?;
        if stored.is_terminating() {
            return Err(terminating_definition(resource, name));
        }
        Ok(Some(guard))
    }

    /// Waits for the end of the commits that [`CurrentKinds::begin_create`] began before this call.
    pub async fn finish_creates(&self) {
        drop(self.create_lock.write().await);
    }

    /// The registry of the served kinds.
    pub fn registry(&self) -> Arc<Registry> {
        Arc::clone(&self.current.load().registry)
    }

    /// Returns the collection of a kind in the version of `resource`; None if objects of the kind are not
    /// stored.
    pub fn collection(&self, resource: &Kind) -> Option<Arc<Collection>> {
        self.current.load().collection(resource).cloned()
    }

    /// All collections in their storage version, ordered by storage key.
    pub fn collections(&self) -> Vec<Arc<Collection>> {
        self.current.load().collections().cloned().collect()
    }
}

/// The Status of a create of a custom object whose definition is terminating.
pub(super) fn terminating_definition(resource: &Kind, name: &str) -> Status {
    let reason = "create not allowed while custom resource definition is terminating";
    Status::forbidden(&resource.group_resource, name, reason)
}
