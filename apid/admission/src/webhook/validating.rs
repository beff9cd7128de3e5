//! ValidatingAdmissionWebhook: calls webhooks in parallel; each may reject the write.

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use apimachinery::object::Object;
use apimachinery::status::Status;
use futures_util::future::join_all;
use tokio::sync::Semaphore;

use super::dispatcher::Webhooks;
use super::hook::Hooks;
use crate::Attributes;
use crate::matching::WriteNamespace;
use crate::turn::Turn;

/// Maximum total size of the objects in the bodies of parallel calls for one write, in bytes. Further calls
/// wait until earlier calls end.
const MAX_BODY_BYTES: usize = 16 << 20;

/// Maximum number of parallel calls for one write, which bounds the memory of the calls.
const MAX_PARALLEL_CALLS: usize = 128;

impl Webhooks {
    /// Calls the validating webhooks that match a write.
    pub(super) async fn call_validating(
        &self,
        hooks: &Hooks,
        attributes: &Attributes<'_>,
        object: Option<&Object>,
    ) -> Result<(), Status> {
        let clock = &attributes.environment.clock;
        // A call acquires one permit for each byte of its objects, which bounds the memory of parallel calls.
        let bodies = Semaphore::new(MAX_BODY_BYTES);
        let mut calls = Vec::new();
        // The objects are converted and serialized once for each matched group and version.
        let mut objects_by_version = HashMap::new();
        let namespace = WriteNamespace::default();
        let mut turn = Turn::new(&**clock);
        for (index, hook) in hooks.candidates(&attributes.served.group_resource.resource) {
            turn.pause().await;
            let matched = hook.constraints.matches(attributes, object, &namespace).await?;
            let Some(matched) = matched else { continue };
            let (resource, version) = matched.resource_and_version(attributes);
            let objects =
                match objects_by_version.entry((resource.group_resource.group.clone(), version.to_owned())) {
                    Entry::Occupied(objects) => Arc::clone(objects.get()),
                    Entry::Vacant(entry) => {
                        let objects = self.objects(&matched, attributes, object.map(Cow::Borrowed))?;
                        Arc::clone(entry.insert(Arc::new(objects)))
                    }
                };
            calls.extend(self.prepare(index, hook, matched, attributes, objects).await?);
        }
        // kube-apiserver returns the failure that arrived first; apid returns the failure of the first failed
        // webhook in order.
        let mut result = Ok(());
        for part in calls.chunks(MAX_PARALLEL_CALLS) {
            let outcomes = part.iter().map(async |call| {
                let bytes = call.objects.text_bytes();
                let permits = u32::try_from(bytes.min(MAX_BODY_BYTES)).unwrap_or(u32::MAX);
                let _permit = bodies.acquire_many(permits).await.map_err(Status::internal);
                let started = clock.monotonic();
                let failure = self.call(call, attributes).await.err();
                self.conclude(call, attributes, failure, started)
            });
            let failures = join_all(outcomes).await.into_iter().flatten();
            result = failures.fold(result, |result, status| result.and(Err(status)));
        }
        result
    }
}
