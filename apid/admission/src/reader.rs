//! What plugins may know of other objects, do to them, and ask about users. The process implements all three.

use std::sync::Arc;

use apimachinery::attributes::Attributes as Question;
use apimachinery::decision::Decision;
use apimachinery::object::Object;
use apimachinery::status::Status;
use apimachinery::user::UserInfo;

use crate::Eventual;

/// A kind of objects, whatever its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ObjectKind {
    /// Stem of its group: `""`, `storage`, `scheduling` (see `Names::group`).
    pub group: &'static str,
    /// `StorageClass`.
    pub kind: &'static str,
}

impl ObjectKind {
    /// A kind of a group.
    pub const fn new(group: &'static str, kind: &'static str) -> Self {
        ObjectKind { group, kind }
    }

    /// Namespaces.
    pub const NAMESPACE: Self = ObjectKind::new("", "Namespace");
    /// Pods.
    pub const POD: Self = ObjectKind::new("", "Pod");
}

/// An object, or that there is none, or why that cannot be known.
pub type Found = Result<Option<Arc<Object>>, Status>;

/// Reads other objects. Objects are decoded once and shared.
pub trait Reader: Send + Sync + 'static {
    /// An object as this process knows it: the watch cache, which shows every write that this process answered. Answers
    /// [`Eventual::Now`] once the kind has been read before, without touching storage. `namespace` is `""` for
    /// cluster-scoped kinds.
    fn get<'a>(&'a self, kind: ObjectKind, namespace: &'a str, name: &'a str) -> Eventual<'a, Found>;

    /// The namespace of a write, as [`Reader::get`] knows it: an error when there is none.
    fn namespace<'a>(&'a self, name: &'a str) -> Eventual<'a, Result<Arc<Object>, Status>> {
        self.get(ObjectKind::NAMESPACE, "", name).map(move |found| {
            found?.ok_or_else(|| Status::internal(format!("failed to lookup namespace {name:?}")))
        })
    }

    /// All objects of a kind in a namespace (`""`: everywhere), ordered by key, as [`Reader::get`] knows them.
    fn list<'a>(
        &'a self,
        kind: ObjectKind,
        namespace: &'a str,
    ) -> Eventual<'a, Result<Vec<Arc<Object>>, Status>>;

    /// An object as the store has it now, also when another process wrote it. For decisions that a stale answer would
    /// make wrong; it costs a read of the store.
    fn get_fresh<'a>(&'a self, kind: ObjectKind, namespace: &'a str, name: &'a str) -> Eventual<'a, Found>;
}

/// Writes other objects in the name of the server itself, through the ordinary verbs with their audit.
pub trait Writer: Send + Sync + 'static {
    /// Creates an object; its kind and apiVersion may be left out.
    fn create<'a>(&'a self, kind: ObjectKind, object: Object) -> Eventual<'a, Result<(), Status>>;

    /// Replaces the status of an object, which says by its resourceVersion what it was made from: 409 when that is not
    /// what is stored.
    fn update_status<'a>(
        &'a self,
        kind: ObjectKind,
        object: Object,
    ) -> Eventual<'a, Result<Arc<Object>, Status>>;
}

/// Says what users may do.
pub trait Authorizer: Send + Sync + 'static {
    /// Whether a user may do something else than the write itself. An error when nobody can say: then nothing is allowed.
    fn decide<'a>(
        &'a self,
        user: &'a Arc<UserInfo>,
        question: Question,
    ) -> Eventual<'a, Result<Decision, Status>>;
}
