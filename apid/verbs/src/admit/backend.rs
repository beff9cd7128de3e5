//! Access of admission plugins to other objects (from the watch cache) and to authorization.
//!
//! # Invariants
//!
//! INVARIANT (reads do not wait): once the watch cache holds a built-in kind, reads and lists of the kind do not
//! wait. Both cache the objects that they decode, except those of long lists.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, OnceLock, Weak};

use admission::{Authorizer, ListResult, ListedObject, LookupResult, ObjectKind, Reader};
use apimachinery::attributes::Attributes;
use apimachinery::decision::Decision;
use apimachinery::object::{Object, Value};
use apimachinery::status::Status;
use apimachinery::user::UserInfo;
use async_trait::async_trait;
use kinds::entry::Decoder;
use kinds::{Kind, Registry, labels};

use super::decoded_objects::DecodedObjects;
use crate::response_object::{entry, tree};
use crate::{ApiState, Caches, Item, Items};

/// Maximum number of objects in a list whose decoded objects are cached.
///
/// The objects of longer lists are decoded for each call.
const CACHED_LIST_MAX: usize = 64;

/// Reader and authorizer of the admission plugins.
///
/// The backend is created before the state of the API, which owns the plugins. [`AdmissionBackend::attach`]
/// gives this state to the backend.
pub struct AdmissionBackend {
    kinds: BTreeMap<(&'static str, &'static str), Objects>,
    decoded: Arc<DecodedObjects>,
    api_state: OnceLock<Weak<ApiState>>,
}

/// The objects of a kind.
struct Objects {
    resource: Arc<Kind>,
    items: Arc<Items>,
    decoded: Arc<DecodedObjects>,
}

impl AdmissionBackend {
    /// Creates the reader over the cached objects of every built-in stored kind.
    pub fn new(registry: &Registry, caches: impl Into<Caches>) -> Self {
        let caches = caches.into();
        let decoded = Arc::<DecodedObjects>::default();
        let objects = |resource: &Arc<Kind>| Objects {
            resource: Arc::clone(resource),
            items: caches.of(&resource.key_prefix).resource(&resource.key_prefix, Decoder::new(resource)),
            decoded: Arc::clone(&decoded),
        };
        let stored = registry.stored();
        let kinds = stored.filter_map(|kind| {
            let row = kind.row()?;
            Some(((row.group, row.kind), objects(kind)))
        });
        let kinds = kinds.collect();
        AdmissionBackend { kinds, decoded, api_state: OnceLock::new() }
    }

    /// Sets the state whose authorizer and custom kinds are used. Before this call, decisions and reads of custom kinds
    /// fail with 503.
    pub fn attach(&self, api_state: &Arc<ApiState>) {
        let _ = self.api_state.set(Arc::downgrade(api_state));
    }

    fn api_state(&self) -> Result<Arc<ApiState>, Status> {
        let api_state = self.api_state.get().and_then(Weak::upgrade);
        api_state.ok_or_else(|| Status::unavailable("the server is not ready", 1))
    }

    fn objects(&self, kind: ObjectKind) -> Result<&Objects, Status> {
        let objects = self.kinds.get(&(kind.group, kind.kind));
        objects.ok_or_else(|| Status::internal(format!("objects of kind {} are not served", kind.kind)))
    }

    /// Returns the objects of a custom kind by its current definition.
    ///
    /// # Errors
    ///
    /// 500: the kind is not served. 503: no state is attached.
    fn custom_objects(&self, resource: &Kind) -> Result<Objects, Status> {
        let collection = self.api_state()?.kinds.collection(resource.stored()).ok_or_else(|| {
            Status::internal(format!("objects of {} are not served", resource.group_resource))
        })?;
        Ok(Objects {
            resource: Arc::clone(collection.kind.internal()),
            items: Arc::clone(&collection.items),
            decoded: Arc::clone(&self.decoded),
        })
    }
}

fn unavailable(error: storage::Error) -> Status {
    Status::unavailable(format!("storage is unavailable: {error}"), 1)
}

thread_local! {
    /// Buffer in which each thread builds storage keys, so that a read allocates no key.
    static KEY: RefCell<String> = const { RefCell::new(String::new()) };
}

impl Objects {
    /// Calls `read` with the key of an object; for an empty `name`, with the key prefix of the namespace or
    /// kind.
    fn with_key<R>(&self, namespace: &str, name: &str, read: impl FnOnce(&str) -> R) -> R {
        KEY.with_borrow_mut(|key| {
            key.clear();
            key.push_str(&self.resource.key_prefix);
            if self.resource.namespaced && !namespace.is_empty() {
                let _ = write!(key, "{namespace}/");
            }
            key.push_str(name);
            read(key)
        })
    }

    fn decode(&self, item: &Item) -> Result<Arc<Object>, Status> {
        decode(item, Some(&self.decoded))
    }

    /// Decodes the objects under the key prefix `scope`.
    fn decode_all(&self, snapshot: &crate::Snapshot, scope: &str) -> ListResult {
        if snapshot.is_empty() {
            return Ok(Vec::new());
        }
        let items = selected_items(snapshot, scope, None);
        let cache = (items.len() <= CACHED_LIST_MAX).then_some(&*self.decoded);
        items.iter().map(|item| decode(item, cache)).collect()
    }

    /// Reads an object; waits until the watch cache holds the kind.
    async fn get(&self, namespace: &str, name: &str) -> LookupResult {
        let key = self.resource.key(namespace, name);
        let (item, _) = self.items.get(&key).await.map_err(unavailable)?;
        item.map(|item| self.decode(&item)).transpose()
    }

    /// Lists the objects that a label selector selects; waits until the watch cache holds the kind.
    async fn select(&self, namespace: &str, selector: &Value) -> Result<Vec<ListedObject>, Status> {
        let snapshot = self.items.snapshot().await.map_err(unavailable)?;
        let items = self.with_key(namespace, "", |scope| selected_items(&snapshot, scope, Some(selector)));
        Ok(self.listed(items))
    }

    /// Items as objects that a plugin decodes when it needs them.
    fn listed(&self, items: Vec<Arc<Item>>) -> Vec<ListedObject> {
        let cache = (items.len() <= CACHED_LIST_MAX).then_some(&self.decoded);
        let listed = items.into_iter().map(|item| {
            let path = item.key().strip_prefix(&*self.resource.key_prefix).unwrap_or_default();
            let (namespace, name) = path.rsplit_once('/').unwrap_or(("", path));
            let (namespace, name, cache) = (namespace.to_owned(), name.to_owned(), cache.cloned());
            ListedObject::new(namespace, name, item.revision().0, move || decode(&item, cache.as_deref()))
        });
        listed.collect()
    }
}

/// Decodes an item, through the cache of decoded objects if there is one.
fn decode(item: &Item, cache: Option<&DecodedObjects>) -> Result<Arc<Object>, Status> {
    if let Some(object) = cache.and_then(|cache| cache.get(item)) {
        return Ok(object);
    }
    let object = Arc::new(tree(item, item.revision())?);
    if let Some(cache) = cache {
        cache.insert(item, &object);
    }
    Ok(object)
}

/// The items under the key prefix `scope`; with a selector, only those whose labels match.
fn selected_items(snapshot: &crate::Snapshot, scope: &str, selector: Option<&Value>) -> Vec<Arc<Item>> {
    let is_included = |item: &&Arc<Item>| selector.is_none_or(|selector| is_selected(selector, item));
    snapshot.scope(scope, "").filter(is_included).cloned().collect()
}

/// Whether a label selector selects an item. An item that cannot be decoded is selected, so its error is reported.
fn is_selected(selector: &Value, item: &Item) -> bool {
    let Ok(entry) = entry(item) else { return true };
    let labels = entry.labels().map(|(key, value)| (key.to_owned(), Value::from(value))).collect();
    labels::matches(selector, &Value::Object(labels))
}

#[async_trait]
impl Reader for AdmissionBackend {
    fn cached(&self, kind: ObjectKind, namespace: &str, name: &str) -> Option<LookupResult> {
        let objects = match self.objects(kind) {
            Ok(objects) => objects,
            Err(status) => return Some(Err(status)),
        };
        let found = objects.with_key(namespace, name, |key| objects.items.get_now(key))?;
        Some(found.map(|item| objects.decode(&item)).transpose())
    }

    fn cached_list(&self, kind: ObjectKind, namespace: &str) -> Option<ListResult> {
        let objects = match self.objects(kind) {
            Ok(objects) => objects,
            Err(status) => return Some(Err(status)),
        };
        let snapshot = objects.items.snapshot_now()?;
        Some(objects.with_key(namespace, "", |scope| objects.decode_all(&snapshot, scope)))
    }

    fn cached_items(&self, kind: ObjectKind) -> Option<Result<Vec<ListedObject>, Status>> {
        let objects = match self.objects(kind) {
            Ok(objects) => objects,
            Err(status) => return Some(Err(status)),
        };
        let snapshot = objects.items.snapshot_now()?;
        Some(Ok(objects.listed(objects.with_key("", "", |scope| selected_items(&snapshot, scope, None)))))
    }

    async fn load(&self, kind: ObjectKind) -> Result<(), Status> {
        self.objects(kind)?.items.snapshot().await.map(drop).map_err(unavailable)
    }

    fn last_change(&self, kind: ObjectKind) -> Option<u64> {
        Some(self.objects(kind).ok()?.items.last_change_now()?.0)
    }

    async fn get_fresh(&self, kind: ObjectKind, namespace: &str, name: &str) -> LookupResult {
        let objects = self.objects(kind)?;
        let key = objects.resource.key(namespace, name);
        let store = objects.items.store().map_err(unavailable)?;
        let row = store.get(&key, None).await.map_err(unavailable)?;
        let Some(row) = row else { return Ok(None) };
        let object = kinds::entry::decode(&row.value, row.revision).map_err(|error| {
            tracing::error!(%key, %error, "stored object cannot be decoded; admission fails with 500");
            Status::internal("a stored object cannot be read")
        })?;
        Ok(Some(Arc::new(object)))
    }

    async fn get_custom(&self, resource: &Kind, namespace: &str, name: &str) -> LookupResult {
        self.custom_objects(resource)?.get(namespace, name).await
    }

    async fn select(
        &self,
        resource: &Kind,
        namespace: &str,
        selector: &Value,
    ) -> Result<Vec<ListedObject>, Status> {
        match ObjectKind::of(resource) {
            Some(kind) => self.objects(kind)?.select(namespace, selector).await,
            None => self.custom_objects(resource)?.select(namespace, selector).await,
        }
    }
}

#[async_trait]
impl Authorizer for AdmissionBackend {
    async fn decide(&self, user: &Arc<UserInfo>, attributes: Attributes) -> Result<Decision, Status> {
        self.api_state()?.auth.decision(user, attributes).await
    }
}
