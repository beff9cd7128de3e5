//! Deletion of the objects of a namespace that other servers store: the resources of APIServices with a Service.
//!
//! # Reference
//!
//! The namespace controller of Kubernetes. Each namespaced resource with the verb `delete` is emptied with
//! `deletecollection`, or object by object if the server does not have that verb. Then the remaining objects are
//! counted. A server whose resources are not known blocks the deletion of every namespace, because the server may
//! store objects there. The controller sends `deletecollection` without a list before: a server may be unable to list.
//!
//! # Limits
//!
//! A slow server delays a round for a limited time: a few resources are emptied at a time, each with a deadline. A list
//! ends after [`MAX_LISTED`] objects. The next round continues.

use std::sync::Arc;
use std::time::Duration;

use aggregation::{DiscoveredResources, ObjectMetadata, RemoteApi, RemoteResource, is_unsupported};
use apimachinery::status::{Reason, Status};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::background_options;
use super::conditions::RoundOutcome;
use crate::actor::{Actor, RemoteTarget};

/// Number of objects of a resource that are deleted concurrently.
const OBJECT_CONCURRENCY: usize = 16;
/// Number of resources that are emptied concurrently.
const RESOURCE_CONCURRENCY: usize = 8;
/// Maximum time of a round for one resource.
const RESOURCE_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of objects of a resource that a round lists, deletes one by one and counts.
const MAX_LISTED: usize = 10_000;

/// The objects of a resource that remain in a namespace, and the reason.
struct DeletionResult {
    remaining: Vec<ObjectMetadata>,
    failure: Option<String>,
}

/// Deletes the objects of a namespace that other servers store, and adds what remains to the outcome.
pub(super) async fn delete_content(
    actor: &Actor,
    discovered: &DiscoveredResources,
    namespace: &str,
    outcome: &mut RoundOutcome,
) {
    let is_deletable = |resource: &&RemoteResource| resource.is_namespaced && resource.has_verb("delete");
    let resources: Vec<&RemoteResource> = discovered.resources.iter().filter(is_deletable).collect();
    // The futures are collected first, because the compiler rejects the closure across the await.
    let rounds: Vec<_> = resources.iter().map(|resource| empty(actor, resource, namespace)).collect();
    let emptied: Vec<DeletionResult> = stream::iter(rounds).buffered(RESOURCE_CONCURRENCY).collect().await;
    for (resource, DeletionResult { remaining, failure }) in resources.into_iter().zip(emptied) {
        outcome.failures.extend(failure);
        if !remaining.is_empty() {
            outcome.remaining.insert(resource.group_resource(), remaining.len());
        }
        for finalizer in remaining.into_iter().flat_map(|object| object.finalizers) {
            *outcome.finalizers.entry(finalizer).or_default() += 1;
        }
    }
}

/// Returns `GROUP/VERSION` of each API version whose resources are not known.
pub(super) fn undiscovered(unknown: &[Arc<RemoteApi>]) -> Vec<String> {
    unknown.iter().map(|api| format!("{}/{}", api.group, api.version)).collect()
}

/// Deletes the objects of a resource in a namespace.
async fn empty(actor: &Actor, resource: &RemoteResource, namespace: &str) -> DeletionResult {
    let round = delete_all(actor, resource, namespace);
    match within(RESOURCE_TIMEOUT, &resource.group_resource(), round).await {
        Ok(remaining) => {
            let has_finalizer = |object: &ObjectMetadata| !object.finalizers.is_empty();
            let is_unexpected = !remaining.is_empty() && !remaining.iter().any(has_finalizer);
            let RemoteApi { group, version, .. } = &*resource.api;
            let message = || {
                format!(
                    "unexpected items still remain in namespace: {namespace} for gvr: {group}/{version}, Resource={}",
                    resource.name
                )
            };
            DeletionResult { failure: is_unexpected.then(message), remaining }
        }
        Err(status) => DeletionResult { remaining: Vec::new(), failure: Some(status.message) },
    }
}

/// Ends a round for a resource at its deadline.
async fn within<T>(
    time: Duration,
    resource: &str,
    round: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    let timeout = |_elapsed| {
        let message = format!(
            "the server did not complete the deletion of {resource} within {} s; the next round continues",
            time.as_secs()
        );
        Err(Status::failure(Reason::Timeout, message))
    };
    tokio::time::timeout(time, round).await.unwrap_or_else(timeout)
}

/// Deletes the objects of a resource in a namespace. Returns those that remain, at most [`MAX_LISTED`].
async fn delete_all(
    actor: &Actor,
    resource: &RemoteResource,
    namespace: &str,
) -> Result<Vec<ObjectMetadata>, Status> {
    if !delete_collection(actor, resource, namespace).await? {
        let existing = list(actor, resource, namespace).await?.unwrap_or_default();
        if existing.is_empty() {
            return Ok(existing);
        }
        let delete = |object: ObjectMetadata| async move {
            let target = RemoteTarget { resource, namespace, name: &object.name };
            match actor.delete_remote(target, &background_options()).await {
                Err(status) if !is_unsupported(&status) => Err(status),
                _ => Ok(()),
            }
        };
        let objects = stream::iter(existing).map(Ok);
        objects.try_for_each_concurrent(OBJECT_CONCURRENCY, delete).await?;
    }
    // Objects that cannot be listed cannot be counted.
    Ok(list(actor, resource, namespace).await?.unwrap_or_default())
}

/// Deletes the objects of a resource with one request. Returns false if the server does not have that verb.
async fn delete_collection(
    actor: &Actor,
    resource: &RemoteResource,
    namespace: &str,
) -> Result<bool, Status> {
    if !resource.has_verb("deletecollection") {
        return Ok(false);
    }
    let target = RemoteTarget { resource, namespace, name: "" };
    match actor.delete_remote(target, &background_options()).await {
        Ok(()) => Ok(true),
        Err(status) if is_unsupported(&status) => Ok(false),
        Err(status) => Err(status),
    }
}

/// Returns the first objects of a resource in a namespace; None if the server cannot list them.
async fn list(
    actor: &Actor,
    resource: &RemoteResource,
    namespace: &str,
) -> Result<Option<Vec<ObjectMetadata>>, Status> {
    if !resource.has_verb("list") {
        return Ok(None);
    }
    match resource.list(actor.user(), namespace, MAX_LISTED).await {
        Ok(objects) => Ok(Some(objects)),
        Err(status) if is_unsupported(&status) => Ok(None),
        Err(status) => Err(status),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn server_that_hangs_ends_its_round_at_the_deadline() {
        let hangs = std::future::pending::<Result<(), Status>>();
        let status = within(Duration::from_millis(1), "flavors.e.com", hangs).await.unwrap_err();
        let message =
            "the server did not complete the deletion of flavors.e.com within 0 s; the next round continues";
        assert_eq!((status.code, status.message.as_str()), (504, message));
        let ends = std::future::ready(Ok(1));
        assert_eq!(within(Duration::from_secs(60), "flavors.e.com", ends).await.unwrap(), 1);
    }
}
