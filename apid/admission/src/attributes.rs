//! Attributes of a write, the input of admission plugins.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use apimachinery::object::{Object, Value};
use apimachinery::status::Status;
use apimachinery::user::UserInfo;
use kinds::Kind;
use parking_lot::Mutex;
use storage::Held;

use crate::{Environment, ObjectKind};

/// Admission operation of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Creation of an object or a review.
    Create,
    /// Update or patch, also of a subresource.
    Update,
    /// Deletion; deletion of a collection has one operation per object.
    Delete,
    /// Connection to a subresource.
    Connect,
}

impl Operation {
    /// All operations.
    pub(crate) const ALL: [Operation; 4] =
        [Operation::Create, Operation::Update, Operation::Delete, Operation::Connect];

    /// Returns the value of this operation. The order of `values` is that of the declaration.
    pub(crate) fn value_in<T>(self, values: &[T; 4]) -> &T {
        let [create, update, delete, connect] = values;
        match self {
            Operation::Create => create,
            Operation::Update => update,
            Operation::Delete => delete,
            Operation::Connect => connect,
        }
    }

    /// Name of the operation for webhooks and policies.
    pub fn as_str(self) -> &'static str {
        match self {
            Operation::Create => "CREATE",
            Operation::Update => "UPDATE",
            Operation::Delete => "DELETE",
            Operation::Connect => "CONNECT",
        }
    }
}

/// Attributes of a write. The object is a separate argument, because plugins change it.
#[derive(Clone, Copy)]
pub struct Attributes<'a> {
    /// Admission operation.
    pub operation: Operation,
    /// Resource of the URL path in the version of the objects that plugins get. This is the storage version of
    /// a built-in kind, and the version of the URL path of a custom kind.
    pub resource: &'a Kind,
    /// Resource of the URL path, in the version of the URL path.
    pub served: &'a Kind,
    /// Version of the URL path.
    pub version: &'a str,
    /// Subresource of the URL path, or `""`.
    pub subresource: &'a str,
    /// Namespace, `""` for cluster-scoped resources.
    pub namespace: &'a str,
    /// Object name; `""` before name generation.
    pub name: &'a str,
    /// Whether the server generated the name. Mutating webhooks and policies do not see a generated name.
    pub has_generated_name: bool,
    /// Whether the deletion is part of the deletion of a collection. Webhooks and policies then see no name.
    pub is_in_collection: bool,
    /// Monotonic time at which the request ends; None without a limit. Calls of webhooks end at this time.
    pub deadline: Option<std::time::Duration>,
    /// Stored object of an update or deletion.
    pub old: Option<&'a Object>,
    /// User of the request.
    pub user: &'a Arc<UserInfo>,
    /// Whether the write is a dry run, in which plugins must not have side effects.
    pub dry_run: bool,
    /// Returns the options of the request as an object.
    ///
    /// The object is a `CreateOptions`, `UpdateOptions` or `DeleteOptions`, null for a connection. Only webhooks
    /// and policies read it, so most writes do not create it.
    pub options: &'a (dyn Fn() -> Value + Sync),
    /// Records warnings and audit annotations.
    pub recorder: &'a Recorder,
    /// Dependencies of plugins; see [`Chain::environment`](crate::Chain::environment).
    pub environment: &'a Environment,
}

impl<'a> Attributes<'a> {
    /// Name for webhooks and policies in the validating phase; `""` within the deletion of a collection.
    pub fn request_name(&self) -> &'a str {
        if self.is_in_collection { "" } else { self.name }
    }

    /// Namespace for webhooks and policies. Requests for a Namespace are in the namespace of that name.
    pub fn request_namespace(&self) -> &'a str {
        if self.namespace.is_empty() && self.is_of(ObjectKind::NAMESPACE) {
            self.name
        } else {
            self.namespace
        }
    }

    /// Whether the write has this kind, with any subresource.
    pub fn is_of(&self, kind: ObjectKind) -> bool {
        self.resource.stem() == Some(kind.group) && self.resource.name() == kind.kind
    }

    /// Returns the Status with code 403 and the message `configmaps "x" is forbidden: <reason>`.
    pub fn forbidden(&self, reason: &str) -> Status {
        Status::forbidden(&self.resource.group_resource, self.name, reason)
    }
}

/// Records the output of a request besides its result: warnings, audit annotations and the audit object reference.
///
/// The default has no audit event, so it records no object reference; see [`Recorder::new`].
#[derive(Debug, Default)]
pub struct Recorder {
    /// Whether the request has an audit event.
    has_audit_event: bool,
    /// Whether the audit event contains the object of the request.
    records_request_object: bool,
    /// Warnings for the client.
    warnings: Mutex<Vec<String>>,
    /// Annotations of the audit event.
    annotations: Mutex<Vec<(String, String)>>,
    /// Guards that live until the end of the write.
    guards: Mutex<Vec<Box<dyn Any + Send>>>,
    /// Whether an earlier attempt of the write had guards.
    has_dropped_guards: AtomicBool,
    /// Keys that the write requires at their revisions.
    held: Mutex<Vec<Held>>,
    /// A key that the write and each repetition of it require.
    always_held: Option<Held>,
    /// Object reference of the audit event.
    reference: Mutex<ObjectReference>,
    /// Object of the request for the audit event, as JSON.
    request_object: Mutex<Option<Vec<u8>>>,
}

/// Parts of the audit object reference that the URL path does not contain; unknown fields are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectReference {
    /// Object name.
    pub name: String,
    /// Object uid.
    pub uid: String,
    /// The resourceVersion in the request.
    pub resource_version: String,
}

impl ObjectReference {
    /// Maximum length of a field in bytes. A longer value is not a valid name or uid, and `""` replaces it,
    /// so that audit events stay small.
    const MAX: usize = 1024;

    fn new(object: &Object) -> Self {
        let bounded = |text: &str| if text.len() <= Self::MAX { text.to_owned() } else { String::new() };
        ObjectReference {
            name: bounded(object.name()),
            uid: bounded(object.uid()),
            resource_version: bounded(object.resource_version()),
        }
    }
}

impl Recorder {
    /// Creates the recorder of a request.
    ///
    /// The recorder keeps the object reference only if the request has an audit event.
    pub fn new(has_audit_event: bool) -> Self {
        Recorder { has_audit_event, ..Recorder::default() }
    }

    /// Creates the recorder of a write by the server itself, which requires a key at its revision.
    pub fn holding(held: Option<Held>) -> Self {
        Recorder { always_held: held, ..Recorder::default() }
    }

    /// Sets whether the audit event contains the object of the request.
    #[must_use]
    pub fn recording_request_object(self, is_recorded: bool) -> Self {
        Recorder { records_request_object: is_recorded, ..self }
    }

    /// Whether the audit event contains the object of the request.
    pub fn records_request_object(&self) -> bool {
        self.records_request_object
    }

    /// Sets the object of the request for the audit event, as JSON.
    pub fn set_request_object(&self, json: Vec<u8>) {
        *self.request_object.lock() = Some(json);
    }

    /// Takes the object of the request for the audit event.
    pub fn take_request_object(&self) -> Option<Vec<u8>> {
        self.request_object.lock().take()
    }

    /// Adds a warning for the client. Empty and repeated texts are ignored.
    pub fn warn(&self, text: impl Into<String>) {
        let text = text.into();
        let mut warnings = self.warnings.lock();
        if !text.is_empty() && !warnings.contains(&text) {
            warnings.push(text);
        }
    }

    /// Adds warnings for the client; see [`Recorder::warn`].
    pub fn warn_all(&self, texts: impl IntoIterator<Item = String>) {
        texts.into_iter().for_each(|text| self.warn(text));
    }

    /// Adds an annotation to the audit event.
    pub fn annotate(&self, key: impl Into<String>, value: impl Into<String>) {
        self.annotations.lock().push((key.into(), value.into()));
    }

    /// Keeps a guard until the write succeeds, fails or is retried. Dropping the guard informs the plugin.
    pub fn keep(&self, value: impl Any + Send) {
        self.guards.lock().push(Box::new(value));
    }

    /// Whether an earlier attempt of the write had guards, see [`Recorder::keep`].
    pub fn has_dropped_guards(&self) -> bool {
        self.has_dropped_guards.load(Ordering::Relaxed)
    }

    /// Makes the write require a key at its revision.
    pub fn hold(&self, held: Held) {
        self.held.lock().push(held);
    }

    /// The keys that the write requires at their revisions.
    pub fn held(&self) -> Vec<Held> {
        self.held.lock().iter().chain(&self.always_held).cloned().collect()
    }

    /// Sets the object reference of the audit event, if there is one. The caller passes the decoded request
    /// body, and after a creation the created object.
    pub fn set_reference(&self, object: &Object) {
        if self.has_audit_event {
            *self.reference.lock() = ObjectReference::new(object);
        }
    }

    /// Takes the object reference of the audit event.
    pub fn take_reference(&self) -> ObjectReference {
        std::mem::take(&mut *self.reference.lock())
    }

    /// Removes the records of an earlier attempt of the same write, except its warnings: the client gets the
    /// warnings of all attempts, as in kube-apiserver.
    pub fn reset(&self) {
        self.annotations.lock().clear();
        self.held.lock().clear();
        let guards = std::mem::take(&mut *self.guards.lock());
        self.has_dropped_guards.fetch_or(!guards.is_empty(), Ordering::Relaxed);
        drop(guards);
    }

    /// Takes the warnings in insertion order.
    pub fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut *self.warnings.lock())
    }

    /// Takes the annotations in insertion order.
    pub fn take_annotations(&self) -> Vec<(String, String)> {
        std::mem::take(&mut *self.annotations.lock())
    }
}
