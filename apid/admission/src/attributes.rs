//! What plugins are told of a write.

use std::any::Any;
use std::sync::Arc;

use apimachinery::object::{Object, Value};
use apimachinery::status::Status;
use apimachinery::user::UserInfo;
use kinds::Resource;
use parking_lot::Mutex;

use crate::ObjectKind;

/// What a write does to its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A new object, or a review.
    Create,
    /// An update or patch, also of a subresource.
    Update,
    /// A deletion; of a collection one for each object.
    Delete,
    /// A connection to a subresource.
    Connect,
}

impl Operation {
    /// All of them.
    pub(crate) const ALL: [Operation; 4] =
        [Operation::Create, Operation::Update, Operation::Delete, Operation::Connect];

    /// The word of webhooks and policies.
    pub fn as_str(self) -> &'static str {
        match self {
            Operation::Create => "CREATE",
            Operation::Update => "UPDATE",
            Operation::Delete => "DELETE",
            Operation::Connect => "CONNECT",
        }
    }
}

/// A write. The object itself is passed beside it, since plugins change it.
#[derive(Clone, Copy)]
pub struct Attributes<'a> {
    /// What it does.
    pub operation: Operation,
    /// The resource of the path.
    pub resource: &'a Resource,
    /// The version of the path.
    pub version: &'a str,
    /// The subresource of the path, or `""`.
    pub subresource: &'a str,
    /// The namespace, `""` for cluster-scoped resources.
    pub namespace: &'a str,
    /// The name; `""` while it has not been generated.
    pub name: &'a str,
    /// The stored object that is updated or deleted.
    pub old: Option<&'a Object>,
    /// Who writes.
    pub user: &'a Arc<UserInfo>,
    /// Nothing will be stored: plugins have no side effects.
    pub dry_run: bool,
    /// The options of the request: `CreateOptions`, `UpdateOptions`, `PatchOptions` or `DeleteOptions`.
    pub options: &'a Value,
    /// Plugins after this one changed the object, and this is its second look at it (webhooks and policies ask for it).
    pub reinvoked: bool,
    /// What plugins have to say beside yes and no.
    pub notes: &'a Notes,
}

impl Attributes<'_> {
    /// Whether the write is one of this kind, whatever the subresource.
    pub fn is_of(&self, kind: ObjectKind) -> bool {
        self.resource.kind.group == kind.group && self.resource.kind.kind == kind.kind
    }

    /// 403: `configmaps "x" is forbidden: <why>`.
    pub fn forbidden(&self, why: &str) -> Status {
        Status::forbidden(&self.resource.group_resource, self.name, why)
    }
}

/// Warnings and annotations of plugins, and the object reference of the audit event.
#[derive(Debug, Default)]
pub struct Notes {
    /// Warnings for the client.
    warnings: Mutex<Vec<String>>,
    /// Annotations of the audit event.
    annotations: Mutex<Vec<(String, String)>>,
    /// What lasts until the write is over.
    kept: Mutex<Vec<Box<dyn Any + Send>>>,
    /// The object of the audit event.
    reference: Mutex<ObjectReference>,
}

/// The object of a request, as far as its path does not tell; fields are empty while they are not known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectReference {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// The version that the request carries.
    pub resource_version: String,
}

impl ObjectReference {
    /// Bytes of a field that is kept: longer ones are no name and no uid, and would make events of any size.
    const MAX: usize = 1024;

    fn new(object: &Object) -> Self {
        let kept = |text: &str| if text.len() <= Self::MAX { text.to_owned() } else { String::new() };
        ObjectReference {
            name: kept(object.name()),
            uid: kept(object.uid()),
            resource_version: kept(object.resource_version()),
        }
    }
}

impl Notes {
    /// Warns the client.
    pub fn warn(&self, text: impl Into<String>) {
        self.warnings.lock().push(text.into());
    }

    /// Adds an annotation to the audit event.
    pub fn annotate(&self, key: impl Into<String>, value: impl Into<String>) {
        self.annotations.lock().push((key.into(), value.into()));
    }

    /// Keeps a value until the write is over, whatever came of it, or is tried anew: its drop tells the plugin.
    pub fn keep(&self, value: impl Any + Send) {
        self.kept.lock().push(Box::new(value));
    }

    /// Sets the object of the audit event: the one in the request, then the one that was created.
    pub fn set_reference(&self, object: &Object) {
        *self.reference.lock() = ObjectReference::new(object);
    }

    /// The object of the audit event.
    pub fn take_reference(&self) -> ObjectReference {
        std::mem::take(&mut *self.reference.lock())
    }

    /// Forgets what an earlier try of the same write left.
    pub fn begin_anew(&self) {
        self.warnings.lock().clear();
        self.annotations.lock().clear();
        let kept = std::mem::take(&mut *self.kept.lock());
        drop(kept);
    }

    /// The warnings, in the order they came.
    pub fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut *self.warnings.lock())
    }

    /// The annotations, in the order they came.
    pub fn take_annotations(&self) -> Vec<(String, String)> {
        std::mem::take(&mut *self.annotations.lock())
    }
}
