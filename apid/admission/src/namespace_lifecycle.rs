//! NamespaceLifecycle: rejects writes to missing namespaces and creations in terminating namespaces.
//! The plugin also rejects the deletion of system namespaces.
//!
//! # Reference
//!
//! Requirements D-NAME-19, D-NAME-20. Deletions are allowed, so that the namespace controller can empty a
//! namespace. A LocalSubjectAccessReview is allowed, because its response must not reveal whether the
//! namespace exists.

use apimachinery::gvk::GroupResource;
use apimachinery::object::Object;
use apimachinery::status::{Cause, Status};
use kinds::Storage;

use crate::reader::namespace_not_found;
use crate::{Attributes, Interest, ObjectKind, Operation, Plugin};

pub(crate) struct NamespaceLifecycle;

impl Plugin for NamespaceLifecycle {
    const INTEREST: Interest =
        Interest::ALL_RESOURCES.on(&[Operation::Create, Operation::Update, Operation::Delete]);

    async fn mutate(&self, attributes: &Attributes<'_>, _: Option<&mut Object>) -> Result<(), Status> {
        let is_namespace = attributes.is_of(ObjectKind::NAMESPACE);
        if attributes.operation == Operation::Delete {
            let names = &attributes.environment.names;
            let undeletable = ["default", names.system_namespace, names.public_namespace];
            return match is_namespace && undeletable.contains(&attributes.name) {
                true => Err(attributes.forbidden("this namespace may not be deleted")),
                false => Ok(()),
            };
        }
        let is_review = attributes.resource.storage == Storage::Review;
        if attributes.namespace.is_empty() || is_namespace || is_review {
            return Ok(());
        }
        let reader = &attributes.environment.reader;
        let namespace = reader.get_current(ObjectKind::NAMESPACE, "", attributes.namespace).await?;
        check_namespace(attributes, namespace.as_deref())
    }
}

fn check_namespace(attributes: &Attributes<'_>, stored: Option<&Object>) -> Result<(), Status> {
    let namespace = attributes.namespace;
    match (stored, attributes.operation) {
        (None, _) => Err(namespace_not_found(namespace)),
        (Some(stored), Operation::Create) if stored.is_terminating() => {
            Err(terminating_namespace(&attributes.resource.group_resource, attributes.name, namespace))
        }
        (Some(_), _) => Ok(()),
    }
}

/// The Status of the creation of an object in a terminating namespace.
pub fn terminating_namespace(resource: &GroupResource, name: &str, namespace: &str) -> Status {
    let message =
        format!("unable to create new content in namespace {namespace} because it is being terminated");
    let mut status = Status::forbidden(resource, name, &message);
    if let Some(details) = &mut status.details {
        details.causes.push(Cause {
            reason: "NamespaceTerminating".to_owned(),
            message: format!("namespace {namespace} is being terminated"),
            field: "metadata.namespace".to_owned(),
        });
    }
    status
}
