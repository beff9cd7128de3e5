//! Interfaces for plugins: reading and writing other objects, and authorization.
//! The apid process implements them.

use std::sync::Arc;

use apimachinery::attributes::Attributes as RequestAttributes;
use apimachinery::decision::Decision;
use apimachinery::gvk::GroupResource;
use apimachinery::object::{Object, Value};
use apimachinery::status::Status;
use apimachinery::user::UserInfo;
use kinds::{KindRef, Resource, labels};

use crate::MaybeFuture;

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
    pub fn of(resource: &Resource) -> Option<Self> {
        match &resource.stored().kind {
            KindRef::BuiltIn(kind) => Some(ObjectKind::new(kind.group, kind.kind)),
            KindRef::Custom(_) => None,
        }
    }

    /// The kind Namespace.
    pub const NAMESPACE: Self = ObjectKind::new("", "Namespace");
    /// The kind Pod.
    pub const POD: Self = ObjectKind::new("", "Pod");
}

/// An object, None if it does not exist, or an error if the lookup failed.
pub type LookupResult = Result<Option<Arc<Object>>, Status>;

/// The result of a read of an object.
pub type Lookup<'a> = MaybeFuture<'a, LookupResult>;

/// The result of a read of many objects: the objects, or an error if the read failed.
pub type Listing<'a> = MaybeFuture<'a, Result<Vec<Arc<Object>>, Status>>;

/// Reads other objects. The implementation decodes an object once and shares it.
pub trait Reader: Send + Sync + 'static {
    /// Reads an object from the watch cache, which includes every write that this process has acknowledged.
    /// After the first read of the kind, the result is [`MaybeFuture::Ready`] without storage access.
    /// `namespace` is `""` for cluster-scoped kinds.
    fn get<'a>(&'a self, kind: ObjectKind, namespace: &'a str, name: &'a str) -> Lookup<'a>;

    /// Reads the namespace of a write from the cache, like [`Reader::get`]; 500 if the namespace does not
    /// exist.
    fn namespace<'a>(&'a self, name: &'a str) -> MaybeFuture<'a, Result<Arc<Object>, Status>> {
        self.get(ObjectKind::NAMESPACE, "", name).map(move |found| {
            found?.ok_or_else(|| Status::internal(format!("failed to lookup namespace {name:?}")))
        })
    }

    /// Lists a kind in a namespace (`""`: all) in key order, from the cache like [`Reader::get`].
    fn list<'a>(&'a self, kind: ObjectKind, namespace: &'a str) -> Listing<'a>;

    /// Reads an object of a served resource, also of a custom kind, in its storage version; see
    /// [`Reader::get`].
    fn get_of<'a>(&'a self, resource: &'a Resource, namespace: &'a str, name: &'a str) -> Lookup<'a> {
        match ObjectKind::of(resource) {
            Some(kind) => self.get(kind, namespace, name),
            None => MaybeFuture::Ready(Err(unknown(resource))),
        }
    }

    /// Lists the objects of a served resource, also of a custom kind, that a label selector selects, in their
    /// storage version; see [`Reader::list`].
    fn select_of<'a>(
        &'a self,
        resource: &'a Resource,
        namespace: &'a str,
        selector: &'a Value,
    ) -> Listing<'a> {
        let Some(kind) = ObjectKind::of(resource) else {
            return MaybeFuture::Ready(Err(unknown(resource)));
        };
        let labels = |object: &Object| object.at(&["metadata", "labels"]).cloned().unwrap_or(Value::Null);
        self.list(kind, namespace).map(move |objects| {
            let mut objects = objects?;
            objects.retain(|object| labels::matches(selector, &labels(object)));
            Ok(objects)
        })
    }

    /// Number that grows with each change of an object of a kind; None before the first read of the kind.
    /// The number includes every write that this process has acknowledged.
    fn last_change(&self, kind: ObjectKind) -> Option<u64>;

    /// Reads the current object from the store, with every acknowledged write.
    ///
    /// The cache may already have a write that is not acknowledged yet. Use this method for decisions that
    /// stale data would make wrong; it costs a store read.
    fn get_fresh<'a>(&'a self, kind: ObjectKind, namespace: &'a str, name: &'a str) -> Lookup<'a>;

    /// Reads an object from the cache, and from the store if the cache lacks it: the cache may not have a new object yet.
    fn get_current<'a>(&'a self, kind: ObjectKind, namespace: &'a str, name: &'a str) -> Lookup<'a> {
        match self.get(kind, namespace, name) {
            MaybeFuture::Ready(Ok(None)) => self.get_fresh(kind, namespace, name),
            MaybeFuture::Ready(cached) => MaybeFuture::Ready(cached),
            MaybeFuture::Pending(cached) => MaybeFuture::later(async move {
                match cached.await? {
                    Some(found) => Ok(Some(found)),
                    None => self.get_fresh(kind, namespace, name).get().await,
                }
            }),
        }
    }
}

/// 404 for a namespace.
pub(crate) fn namespace_not_found(name: &str) -> Status {
    Status::not_found(&GroupResource { group: String::new(), resource: "namespaces".to_owned() }, name)
}

fn unknown(resource: &Resource) -> Status {
    Status::internal(format!("objects of {} are not served", resource.group_resource))
}

/// Writes other objects as apid itself, through the ordinary verbs with audit.
pub trait Writer: Send + Sync + 'static {
    /// Creates an object; kind and apiVersion are optional.
    fn create<'a>(&'a self, kind: ObjectKind, object: Object) -> MaybeFuture<'a, Result<(), Status>>;

    /// Replaces the status of an object. A conflicting resourceVersion is 409.
    fn update_status<'a>(
        &'a self,
        kind: ObjectKind,
        object: Object,
    ) -> MaybeFuture<'a, Result<Arc<Object>, Status>>;
}

/// Authorizes additional actions of users.
pub trait Authorizer: Send + Sync + 'static {
    /// Decides whether a user may perform an action other than the write itself.
    /// On an error the plugin denies the action.
    fn decide<'a>(
        &'a self,
        user: &'a Arc<UserInfo>,
        request: RequestAttributes,
    ) -> MaybeFuture<'a, Result<Decision, Status>>;
}
