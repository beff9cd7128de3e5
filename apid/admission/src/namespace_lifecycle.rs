//! NamespaceLifecycle: rejects writes to missing namespaces and creations in terminating namespaces.
//! The plugin also rejects the deletion of system namespaces.
//!
//! # Reference
//!
//! Requirements D-NAME-19, D-NAME-20. Deletions are allowed, so that the namespace controller can empty a
//! namespace. A LocalSubjectAccessReview is allowed, because its response must not reveal whether the
//! namespace exists.

use std::sync::Arc;

use apimachinery::object::Object;
use apimachinery::status::{Cause, Status};
use kinds::Storage;

use crate::reader::namespace_not_found;
use crate::{
    Admission, Attributes, BuildPlugin, Environment, Interest, ObjectKind, Operation, Plugin, Reader,
};

pub(crate) struct NamespaceLifecycle {
    reader: Arc<dyn Reader>,
    /// Names of the system namespaces.
    undeletable: [&'static str; 3],
}

impl BuildPlugin for NamespaceLifecycle {
    fn new(environment: &Environment) -> Self {
        let names = &environment.names;
        NamespaceLifecycle {
            reader: Arc::clone(&environment.reader),
            undeletable: ["default", names.system_namespace, names.public_namespace],
        }
    }
}

impl Plugin for NamespaceLifecycle {
    fn interest(&self) -> Interest {
        Interest::ALL_RESOURCES.on(&[Operation::Create, Operation::Update, Operation::Delete])
    }

    fn mutate<'a>(&'a self, attributes: &'a Attributes<'a>, _: Option<&'a mut Object>) -> Admission<'a> {
        let is_namespace = attributes.is_of(ObjectKind::NAMESPACE);
        if attributes.operation == Operation::Delete {
            let is_rejected = is_namespace && self.undeletable.contains(&attributes.name);
            let rejection = || attributes.forbidden("this namespace may not be deleted");
            return Admission::Ready(if is_rejected { Err(rejection()) } else { Ok(()) });
        }
        let is_review = attributes.resource.kind.storage() == Storage::Review;
        if attributes.namespace.is_empty() || is_namespace || is_review {
            return Admission::Ready(Ok(()));
        }
        let namespace = self.reader.get_current(ObjectKind::NAMESPACE, "", attributes.namespace);
        namespace.map(move |namespace| check_namespace(attributes, namespace?.as_deref()))
    }
}

fn check_namespace(attributes: &Attributes<'_>, stored: Option<&Object>) -> Result<(), Status> {
    let namespace = attributes.namespace;
    match (stored, attributes.operation) {
        (None, _) => Err(namespace_not_found(namespace)),
        (Some(stored), Operation::Create) if stored.is_terminating() => {
            let message = format!(
                "unable to create new content in namespace {namespace} because it is being terminated"
            );
            let mut status = attributes.forbidden(&message);
            if let Some(details) = &mut status.details {
                details.causes.push(Cause {
                    reason: "NamespaceTerminating".to_owned(),
                    message: format!("namespace {namespace} is being terminated"),
                    field: "metadata.namespace".to_owned(),
                });
            }
            Err(status)
        }
        (Some(_), _) => Ok(()),
    }
}
