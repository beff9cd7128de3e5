//! Interfaces for plugins: reading and writing other objects, and authorization.
//! The apid process implements them.

use std::sync::Arc;

use apimachinery::attributes::Attributes as RequestAttributes;
use apimachinery::decision::Decision;
use apimachinery::gvk::GroupResource;
use apimachinery::object::{Object, Value};
use apimachinery::status::Status;
use apimachinery::user::UserInfo;
use async_trait::async_trait;
use kinds::Kind;

/// A kind without its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ObjectKind {
    /// Group stem: `""`, `storage`, `scheduling` (see `Names::group`).
    pub group: &'static str,
    /// Kind name: `StorageClass`.
    pub kind: &'static str,
}

impl ObjectKind {
    /// A kind by its group stem and its name.
    pub const fn new(group: &'static str, kind: &'static str) -> Self {
        ObjectKind { group, kind }
    }

    /// The kind of the stored objects of a resource; None for a custom kind.
    pub fn of(resource: &Kind) -> Option<Self> {
        resource.stored().row().map(|row| ObjectKind::new(row.group, row.kind))
    }

    /// The kind Namespace.
    pub const NAMESPACE: Self = ObjectKind::new("", "Namespace");
    /// The kind Pod.
    pub const POD: Self = ObjectKind::new("", "Pod");
}

/// An object, None if it does not exist, or an error if the lookup failed.
pub type LookupResult = Result<Option<Arc<Object>>, Status>;

/// The objects of a list, or an error if the read failed.
pub type ListResult = Result<Vec<Arc<Object>>, Status>;

/// A stored object of a long list. The object is decoded when a plugin needs it, so that a list takes little memory.
pub struct ListedObject {
    /// Namespace of the object; `""` for a cluster-scoped object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// Revision of the last write of the object.
    pub revision: u64,
    decode: Box<dyn Fn() -> Result<Arc<Object>, Status> + Send + Sync>,
}

impl ListedObject {
    /// Creates the object of a list; `decode` reads the object in its storage version.
    pub fn new(
        namespace: impl Into<String>,
        name: impl Into<String>,
        revision: u64,
        decode: impl Fn() -> Result<Arc<Object>, Status> + Send + Sync + 'static,
    ) -> Self {
        ListedObject { namespace: namespace.into(), name: name.into(), revision, decode: Box::new(decode) }
    }

    /// Decodes the object.
    ///
    /// # Errors
    ///
    /// 500: the stored object cannot be decoded.
    pub fn decode(&self) -> Result<Arc<Object>, Status> {
        (self.decode)()
    }
}

impl From<Arc<Object>> for ListedObject {
    fn from(object: Arc<Object>) -> Self {
        let (namespace, name) = (object.namespace().to_owned(), object.name().to_owned());
        let revision = object.resource_version().parse().unwrap_or_default();
        ListedObject::new(namespace, name, revision, move || Ok(Arc::clone(&object)))
    }
}

/// Reads other objects. The implementation decodes an object once and shares it.
///
/// Plugins call the methods of `dyn Reader`, which wait only until the watch cache holds a kind.
#[async_trait]
pub trait Reader: Send + Sync + 'static {
    /// Reads an object from the watch cache; None until the cache holds the kind.
    fn cached(&self, kind: ObjectKind, namespace: &str, name: &str) -> Option<LookupResult>;

    /// Lists a kind in a namespace from the watch cache; None until the cache holds the kind.
    fn cached_list(&self, kind: ObjectKind, namespace: &str) -> Option<ListResult>;

    /// Lists all objects of a kind from the watch cache in key order, without decoding them; None until the cache holds
    /// the kind.
    fn cached_items(&self, kind: ObjectKind) -> Option<Result<Vec<ListedObject>, Status>>;

    /// Waits until the watch cache holds a kind.
    ///
    /// # Errors
    ///
    /// 503: the store cannot be read.
    async fn load(&self, kind: ObjectKind) -> Result<(), Status>;

    /// Number that grows with each change of an object of a kind; None before the first read of the kind.
    /// The number includes every write that this process has acknowledged.
    fn last_change(&self, kind: ObjectKind) -> Option<u64>;

    /// Reads the current object from the store, with every acknowledged write.
    ///
    /// The cache may already have a write that is not acknowledged yet. Use this method for decisions that
    /// stale data would make wrong; it costs a store read.
    async fn get_fresh(&self, kind: ObjectKind, namespace: &str, name: &str) -> LookupResult;

    /// Reads an object of a custom kind in its storage version.
    async fn get_custom(&self, resource: &Kind, namespace: &str, name: &str) -> LookupResult;

    /// Lists the objects of a served resource, even of a custom kind, that a label selector selects, in their
    /// storage version.
    async fn select(
        &self,
        resource: &Kind,
        namespace: &str,
        selector: &Value,
    ) -> Result<Vec<ListedObject>, Status>;
}

impl dyn Reader {
    /// Reads an object from the watch cache, which includes every write that this process has acknowledged.
    /// `namespace` is `""` for cluster-scoped kinds.
    ///
    /// # Errors
    ///
    /// 503: the kind cannot be loaded.
    pub async fn get(&self, kind: ObjectKind, namespace: &str, name: &str) -> LookupResult {
        if let Some(found) = self.cached(kind, namespace, name) {
            return found;
        }
        self.load(kind).await?;
        self.cached(kind, namespace, name).unwrap_or_else(|| Err(not_loaded(kind)))
    }

    /// Lists a kind in a namespace (`""`: all) in key order, from the cache like `get`.
    ///
    /// # Errors
    ///
    /// 503: the kind cannot be loaded.
    pub async fn list(&self, kind: ObjectKind, namespace: &str) -> ListResult {
        if let Some(listed) = self.cached_list(kind, namespace) {
            return listed;
        }
        self.load(kind).await?;
        self.cached_list(kind, namespace).unwrap_or_else(|| Err(not_loaded(kind)))
    }

    /// Lists all objects of a kind in key order, from the cache like `get`, without decoding them.
    ///
    /// # Errors
    ///
    /// 503: the kind cannot be loaded.
    pub async fn items(&self, kind: ObjectKind) -> Result<Vec<ListedObject>, Status> {
        if let Some(listed) = self.cached_items(kind) {
            return listed;
        }
        self.load(kind).await?;
        self.cached_items(kind).unwrap_or_else(|| Err(not_loaded(kind)))
    }

    /// Reads the namespace of a write from the cache, like `get`.
    ///
    /// # Errors
    ///
    /// 500: the namespace does not exist.
    pub async fn namespace(&self, name: &str) -> Result<Arc<Object>, Status> {
        let found = self.get(ObjectKind::NAMESPACE, "", name).await?;
        found.ok_or_else(|| Status::internal(format!("failed to lookup namespace {name:?}")))
    }

    /// Reads an object from the cache, and from the store if the cache lacks it: the cache may not have a new
    /// object yet.
    ///
    /// # Errors
    ///
    /// 503: the store cannot be read.
    pub async fn get_current(&self, kind: ObjectKind, namespace: &str, name: &str) -> LookupResult {
        match self.get(kind, namespace, name).await? {
            Some(found) => Ok(Some(found)),
            None => self.get_fresh(kind, namespace, name).await,
        }
    }

    /// Reads an object of a served resource, even of a custom kind, in its storage version.
    ///
    /// # Errors
    ///
    /// 503: the kind cannot be loaded.
    pub async fn get_of(&self, resource: &Kind, namespace: &str, name: &str) -> LookupResult {
        match ObjectKind::of(resource) {
            Some(kind) => self.get(kind, namespace, name).await,
            None => self.get_custom(resource, namespace, name).await,
        }
    }
}

/// 404 for a namespace.
pub(crate) fn namespace_not_found(name: &str) -> Status {
    Status::not_found(&GroupResource { group: String::new(), resource: "namespaces".to_owned() }, name)
}

fn not_loaded(kind: ObjectKind) -> Status {
    Status::unavailable(format!("the watch cache does not hold objects of kind {}", kind.kind), 1)
}

/// Writes other objects as apid itself, through the ordinary verbs with audit.
#[async_trait]
pub trait Writer: Send + Sync + 'static {
    /// Creates an object; kind and apiVersion are optional.
    async fn create(&self, kind: ObjectKind, object: Object) -> Result<(), Status>;

    /// Replaces the status of an object. A conflicting resourceVersion is 409.
    async fn update_status(&self, kind: ObjectKind, object: Object) -> Result<Arc<Object>, Status>;
}

/// Authorizes additional actions of users.
#[async_trait]
pub trait Authorizer: Send + Sync + 'static {
    /// Decides whether a user may perform an action other than the write itself.
    /// On an error the plugin denies the action.
    async fn decide(&self, user: &Arc<UserInfo>, request: RequestAttributes) -> Result<Decision, Status>;
}
