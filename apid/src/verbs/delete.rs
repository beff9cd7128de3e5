//! Deleting an object, or beginning to.

use std::sync::Arc;

use admission::Operation;
use apimachinery::gvk::GroupResource;
use apimachinery::object::Object;
use apimachinery::status::{Details, Status};
use apimachinery::time;
use storage::{Error, Op};

use super::options::{DeleteOptions, Preconditions};
use super::shown::tree;
use super::{Call, Shown};
use crate::plane::Item;

/// The result of a delete.
#[derive(Clone, Debug)]
pub enum Deleted {
    /// The object is gone, and its kind answers with a Status.
    Gone(Box<Status>),
    /// The object as it is now (held by finalizers), or as it was when it went.
    Object(Shown),
}

/// Removes the object, or marks it when something holds it.
///
/// # Errors
///
/// 403 from admission, 404, 409 when a precondition fails.
pub async fn delete(call: &Call<'_>, options: &DeleteOptions) -> Result<Deleted, Status> {
    let resource = &call.collection.resource;
    let key = call.key();
    let missing = || Status::not_found(&resource.group_resource, call.name);
    loop {
        let (item, _) = call.collection.items.get(&key).await.map_err(|error| call.failure(error))?;
        let item = item.ok_or_else(missing)?;
        match delete_item(call, &item, options).await {
            Ok(deleted) => return Ok(deleted),
            Err(Failed::Moved) => {}
            Err(Failed::For(status)) => return Err(*status),
        }
    }
}

/// Why an item was not deleted.
pub(super) enum Failed {
    /// It is another one by now.
    Moved,
    /// The client learns it.
    For(Box<Status>),
}

impl From<Status> for Failed {
    fn from(status: Status) -> Self {
        Failed::For(Box::new(status))
    }
}

/// Deletes the object of the call as long as it is this item.
pub(super) async fn delete_item(
    call: &Call<'_>,
    item: &Arc<Item>,
    options: &DeleteOptions,
) -> Result<Deleted, Failed> {
    let resource = &call.collection.resource;
    let strategy = resource.kind.strategy;
    let old = tree(item, item.revision())?;
    check(call, &options.preconditions, &old)?;
    let admission = call.admission(Operation::Delete, options.dry_run, options.to_value(&call.plane.names));
    admission.mutate(None, Some(&old)).await?;
    admission.validate(None, Some(&old)).await?;

    let held = old.finalizers().next().is_some() || strategy.is_held(&old);
    if held && old.is_terminating() {
        return Ok(Deleted::Object(Shown::item(Arc::clone(item))));
    }
    let key = call.key();
    if held {
        let new = marked(call, old);
        if options.dry_run {
            return Ok(Deleted::Object(Shown::tree(new)));
        }
        let op = Op::Update(kinds::entry::encode(&new), item.revision());
        let committed = call.plane.store.commit(&key, op).await.map_err(|error| failed(call, error))?;
        return Ok(Deleted::Object(Shown::committed(call.collection, &key, new, committed.revision).await));
    }
    let revision = if options.dry_run {
        item.revision()
    } else {
        let committed = call.plane.store.commit(&key, Op::Delete(item.revision())).await;
        committed.map_err(|error| failed(call, error))?.revision
    };
    if strategy.delete_returns_object() {
        return Ok(Deleted::Object(Shown::Cached(Arc::clone(item), revision)));
    }
    Ok(Deleted::Gone(Box::new(Status::success(Details {
        name: call.name.to_owned(),
        group: resource.group_resource.group.clone(),
        kind: resource.group_resource.resource.clone(),
        uid: old.uid().to_owned(),
        ..Details::default()
    }))))
}

fn failed(call: &Call<'_>, error: Error) -> Failed {
    match error {
        Error::Conflict(_) | Error::NotFound(_) => Failed::Moved,
        error => Failed::For(Box::new(call.failure(error))),
    }
}

/// The object at the beginning of its deletion.
fn marked(call: &Call<'_>, old: Object) -> Object {
    let mut new = old;
    new.set_meta("deletionTimestamp", time::time(call.plane.clock.now()));
    new.set_meta("deletionGracePeriodSeconds", 0);
    if new.generation() > 0 {
        let next = new.generation() + 1;
        new.set_meta("generation", next);
    }
    call.collection.resource.kind.strategy.begin_deletion(&mut new);
    new
}

/// The conditions that the client set. A failure names the kind where other conflicts name the resource, as the
/// reference has it.
fn check(call: &Call<'_>, preconditions: &Preconditions, object: &Object) -> Result<(), Status> {
    let kind = &call.collection.resource.group_kind;
    let what = GroupResource { group: kind.group.clone(), resource: kind.kind.clone() };
    if let Some(uid) = preconditions.uid.as_deref().filter(|uid| *uid != object.uid()) {
        let why = format!(
            "the UID in the precondition ({uid}) does not match the UID in record ({}). \
             The object might have been deleted and then recreated",
            object.uid()
        );
        return Err(Status::conflict(&what, call.name, &why));
    }
    if let Some(version) =
        preconditions.resource_version.as_deref().filter(|v| *v != object.resource_version())
    {
        let why = format!(
            "the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record ({}). \
             The object might have been modified",
            object.resource_version()
        );
        return Err(Status::conflict(&what, call.name, &why));
    }
    Ok(())
}
