//! The delete verb: removes an object, or marks it as terminating.

use std::borrow::Cow;
use std::sync::Arc;

use admission::{Attributes, Operation};
use apimachinery::gvk::GroupResource;
use apimachinery::object::Object;
use apimachinery::status::{Details, Status};
use apimachinery::time;
use kinds::entry::Decoder;
use kinds::eviction;
use storage::{Error, Op, Revision};

use super::deletion::options::{DeleteOptions, Preconditions};
use super::deletion::{DeletionStep, is_waiting, step, unreadable};
use super::response_object::tree;
use super::{Call, ResponseObject};
use crate::Item;
use crate::VerbFuture;

/// The result of a successful delete.
#[derive(Clone, Debug)]
pub enum DeleteResult {
    /// The object was removed; the response for its kind is a Status.
    Status(Box<Status>),
    /// The object was removed; the response is its last state.
    Object(ResponseObject),
    /// The object is terminating: finalizers or the grace period keep it.
    Terminating(ResponseObject),
}

/// Removes the object, or marks it as terminating when finalizers or a grace period keep it.
///
/// # Errors
///
/// 403 from admission or for an object that the kind protects, 404, 409 when a precondition fails.
pub fn delete<'a>(call: &'a Call<'a>, options: &'a DeleteOptions) -> VerbFuture<'a, DeleteResult> {
    Box::pin(async move {
        let not_found = || Status::not_found(&call.collection.kind.group_resource, call.name);
        if let Some(reason) = call.collection.kind.internal().strategy().deletion_refusal(call.name) {
            return Err(Status::forbidden(&call.collection.kind.group_resource, call.name, reason));
        }
        let deletes_unreadable = unreadable::authorize_unsafe_delete(call, options).await?;
        let result = loop {
            let item = call.item().await?.ok_or_else(not_found)?;
            let mut result = delete_item(call, &item, options).await;
            if deletes_unreadable && matches!(result, Err(DeleteError::Unreadable(_))) {
                result = delete_unreadable(call, options).await;
            }
            match result {
                Ok(result) => break result,
                Err(DeleteError::Changed) => {}
                Err(DeleteError::Unreadable(status) | DeleteError::Status(status)) => return Err(*status),
            }
        };
        warn_default_propagation(call, options);
        if deletes_unreadable {
            unreadable::annotate(call);
        }
        Ok(result)
    })
}

/// Adds the warning of some kinds about their default propagation, if the client did not specify a policy.
pub(super) fn warn_default_propagation(call: &Call<'_>, options: &DeleteOptions) {
    let warning = call.collection.kind.internal().rules.default_propagation_warning;
    if let Some(warning) = warning.filter(|_| !options.has_propagation()) {
        call.recorder.warn(warning);
    }
}

/// The reason why an item was not deleted.
pub(super) enum DeleteError {
    /// The object has changed since the item was read.
    Changed,
    /// The stored bytes cannot be decoded.
    Unreadable(Box<Status>),
    /// Any other failure, as the Status for the client.
    Status(Box<Status>),
}

impl From<Status> for DeleteError {
    fn from(status: Status) -> Self {
        DeleteError::Status(Box::new(status))
    }
}

/// Deletes the object of the call if it is still at the revision of this item.
async fn delete_item(
    call: &Call<'_>,
    item: &Arc<Item>,
    options: &DeleteOptions,
) -> Result<DeleteResult, DeleteError> {
    let planned = plan_deletion(call, item, options).await?;
    commit_deletion(call, item, planned, options).await
}

/// Removes an object that cannot be decoded. Its finalizers and preconditions cannot be checked.
///
/// The cached item can be unreadable only because a key was not available when it was read. The store itself decides:
/// an object that can be decoded now is deleted as any other.
async fn delete_unreadable(call: &Call<'_>, options: &DeleteOptions) -> Result<DeleteResult, DeleteError> {
    let key = call.key();
    let not_found = || Status::not_found(&call.collection.kind.group_resource, call.name);
    let row = call.store()?.get(&key, None).await.map_err(|error| call.failure(error))?;
    let decoder = Arc::new(Decoder::new(call.collection.kind.internal()));
    let mut item = Item::detached(row.ok_or_else(not_found)?, &decoder);
    if let Some(converter) = call.collection.converter.as_ref().filter(|_| item.entry().is_ok()) {
        item = converter.item(&item).await?;
    }
    match delete_item(call, &item, options).await {
        Err(DeleteError::Unreadable(_)) => {}
        ordinary => return ordinary,
    }
    remove(call, &key, item.revision()).await?.ok_or_else(not_found)?;
    tracing::warn!(key, "deleted an object that cannot be decoded");
    Ok(success_status(call, ""))
}

/// The admitted deletion of an item.
pub(super) struct PlannedDeletion {
    uid: String,
    step: DeletionStep,
}

/// Checks the preconditions, runs admission and decides the next step of the deletion of an item.
///
/// As in kube-apiserver, admission does not run if the request does not change a deletion that is under way.
pub(super) async fn plan_deletion(
    call: &Call<'_>,
    item: &Arc<Item>,
    options: &DeleteOptions,
) -> Result<PlannedDeletion, DeleteError> {
    let kind = call.collection.kind.internal();
    if let Some(status) = call.untransformable(item) {
        return Err(DeleteError::Unreadable(Box::new(status)));
    }
    let old = tree(item, item.revision()).map_err(|status| DeleteError::Unreadable(Box::new(status)))?;
    check_preconditions(call, &options.preconditions, &old)?;
    if is_waiting(&old, options, kind) {
        return Ok(PlannedDeletion { uid: old.uid().to_owned(), step: DeletionStep::Wait });
    }
    let build_options = || options.to_value(&call.api_state.names);
    let attributes = call.admission(Operation::Delete, options.dry_run, &build_options);
    let attributes = Attributes { old: Some(&old), ..attributes };
    call.api_state.admission.mutate(&attributes, None).await?;
    call.api_state.admission.validate(&attributes, None).await?;
    Ok(plan_step(call, &old, options))
}

/// Decides the next step of the admitted deletion of an object.
fn plan_step(call: &Call<'_>, old: &Object, options: &DeleteOptions) -> PlannedDeletion {
    let kind = call.collection.kind.internal();
    let object_with_finalizer =
        with_deletion_finalizer(old, kind.strategy().deletion_finalizer(&call.api_state.names));
    let step = step(&object_with_finalizer, options, kind, call.api_state.clock.now());
    PlannedDeletion { uid: old.uid().to_owned(), step }
}

/// Deletes the pod of an admitted eviction. The pod first gets the condition `DisruptionTarget`, except in a
/// dry run.
///
/// As in kube-apiserver, admission decides about the eviction and is not asked about the deletion of the pod.
///
/// # Errors
///
/// 404, 409 when a precondition fails.
pub(super) async fn delete_evicted(call: &Call<'_>, options: &DeleteOptions) -> Result<(), Status> {
    let mut preconditions = options.preconditions.clone();
    loop {
        let item = call.get_or_404().await?;
        let mut pod = tree(&item, item.revision())?;
        check_preconditions(call, &preconditions, &pod)?;
        let now = time::time(call.api_state.clock.now());
        let result = if !options.dry_run && eviction::record_disruption(&mut pod, &now) {
            store(call, &call.key(), &pod, item.revision()).await.map(|revision| {
                let version = preconditions.resource_version.take();
                preconditions.resource_version = version.map(|_| revision.to_string());
                false
            })
        } else {
            let planned = plan_step(call, &pod, options);
            commit_deletion(call, &item, planned, options).await.map(|_| true)
        };
        match result {
            Ok(true) => return Ok(()),
            Ok(false) | Err(DeleteError::Changed) => {}
            Err(DeleteError::Unreadable(status) | DeleteError::Status(status)) => return Err(*status),
        }
    }
}

/// Carries out the planned step if the object is still at the revision of the item.
pub(super) async fn commit_deletion(
    call: &Call<'_>,
    item: &Arc<Item>,
    PlannedDeletion { uid, step }: PlannedDeletion,
    options: &DeleteOptions,
) -> Result<DeleteResult, DeleteError> {
    let key = call.key();
    match step {
        DeletionStep::Wait => Ok(DeleteResult::Terminating(ResponseObject::from_item(Arc::clone(item)))),
        DeletionStep::Mark(new) | DeletionStep::MarkAndRemove(new) if options.dry_run => {
            Ok(DeleteResult::Terminating(ResponseObject::from_tree(new)))
        }
        DeletionStep::Remove if options.dry_run => {
            Ok(removal_result(call, &uid, ResponseObject::Cached(Arc::clone(item), item.revision())))
        }
        DeletionStep::Mark(new) => {
            let revision = store(call, &key, &new, item.revision()).await?;
            Ok(DeleteResult::Terminating(
                ResponseObject::for_commit(call.collection, &key, new, revision).await,
            ))
        }
        DeletionStep::MarkAndRemove(mut new) => {
            let marked = store(call, &key, &new, item.revision()).await?;
            // Another request may have removed the object meanwhile, which has the same result.
            let revision = remove(call, &key, marked).await?.unwrap_or(marked);
            new.set_meta("resourceVersion", revision.to_string());
            Ok(removal_result(call, &uid, ResponseObject::from_tree(new)))
        }
        DeletionStep::Remove => {
            let revision = remove(call, &key, item.revision()).await?.ok_or(DeleteError::Changed)?;
            Ok(removal_result(call, &uid, ResponseObject::Cached(Arc::clone(item), revision)))
        }
    }
}

/// Adds the deletion finalizer of the kind, unless the object is terminating or has the finalizer.
fn with_deletion_finalizer(old: &Object, finalizer: Option<String>) -> Cow<'_, Object> {
    let Some(finalizer) = finalizer else { return Cow::Borrowed(old) };
    if old.is_terminating() || old.finalizers().any(|present| present == finalizer) {
        return Cow::Borrowed(old);
    }
    let mut object_with_finalizer = old.clone();
    let finalizers: Vec<String> = old.finalizers().map(str::to_owned).chain([finalizer]).collect();
    object_with_finalizer.set_meta("finalizers", finalizers);
    Cow::Owned(object_with_finalizer)
}

async fn store(
    call: &Call<'_>,
    key: &str,
    new: &Object,
    revision: Revision,
) -> Result<Revision, DeleteError> {
    let op = Op::Update(call.encode(new).await?, revision);
    let committed = call.commit(key, op, &mut None, Vec::new()).await;
    committed.map(|committed| committed.revision).map_err(|error| delete_failure(call, error))
}

/// Removes the object at a revision. Returns None if it does not exist any more.
async fn remove(call: &Call<'_>, key: &str, revision: Revision) -> Result<Option<Revision>, DeleteError> {
    match call.commit(key, Op::Delete(revision), &mut None, Vec::new()).await {
        Ok(committed) => Ok(Some(committed.revision)),
        Err(Error::NotFound(_)) => Ok(None),
        Err(error) => Err(delete_failure(call, error)),
    }
}

fn delete_failure(call: &Call<'_>, error: Error) -> DeleteError {
    match error {
        Error::Conflict(_) | Error::NotFound(_) => DeleteError::Changed,
        error => DeleteError::Status(Box::new(call.failure(error))),
    }
}

/// Builds the response for a removed object: its last state, or a Status, depending on the kind.
fn removal_result(call: &Call<'_>, uid: &str, object: ResponseObject) -> DeleteResult {
    if call.collection.kind.internal().rules.delete_returns_object {
        return DeleteResult::Object(object);
    }
    success_status(call, uid)
}

fn success_status(call: &Call<'_>, uid: &str) -> DeleteResult {
    let group_resource = &call.collection.kind.group_resource;
    DeleteResult::Status(Box::new(Status::success(Details {
        name: call.name.to_owned(),
        group: group_resource.group.clone(),
        kind: group_resource.resource.clone(),
        uid: uid.to_owned(),
        ..Details::default()
    })))
}

/// Checks the preconditions of the client.
///
/// As in kube-apiserver, the 409 names the kind instead of the resource. Only for an object with pending
/// finalizers outside the metadata, such as `spec.finalizers` of a namespace, the 409 contains the resource.
fn check_preconditions(
    call: &Call<'_>,
    preconditions: &Preconditions,
    object: &Object,
) -> Result<(), Status> {
    let resource = &call.collection.kind;
    let has_own_finalizers = resource.strategy().has_pending_finalizers(object);
    let conflict = |field: &str, expected: &str, found: &str, likely_cause: &str| {
        if has_own_finalizers {
            let field = field.trim_start_matches("the ");
            let reason = format!(
                "Precondition failed: {field} in precondition: {expected}, {field} in object meta: {found}"
            );
            return Status::conflict(&resource.group_resource, call.name, &reason);
        }
        let kind = &resource.group_kind;
        let group_resource = GroupResource { group: kind.group.clone(), resource: kind.kind.clone() };
        let reason = format!(
            "{field} in the precondition ({expected}) does not match {field} in record ({found}). \
             The object might have been {likely_cause}"
        );
        Status::conflict(&group_resource, call.name, &reason)
    };
    if let Some(uid) = preconditions.uid.as_deref().filter(|uid| *uid != object.uid()) {
        return Err(conflict("the UID", uid, object.uid(), "deleted and then recreated"));
    }
    let version = preconditions.resource_version.as_deref();
    if let Some(version) = version.filter(|version| *version != object.resource_version()) {
        return Err(conflict("the ResourceVersion", version, object.resource_version(), "modified"));
    }
    Ok(())
}
