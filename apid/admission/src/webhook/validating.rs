//! ValidatingAdmissionWebhook: calls webhooks in parallel; each may reject the write.

use std::borrow::Cow;

use apimachinery::object::Object;
use apimachinery::status::Status;
use futures_util::future::join_all;
use tokio::sync::Semaphore;

use super::dispatcher::Dispatcher;
use super::hook::Hooks;
use super::serialized_objects::SerializedObjectsCache;
use crate::turn::Turn;
use crate::{
    Admission, Attributes, ConfigurePlugin, Environment, Interest, Operation, Phase, Plugin,
    PluginConfiguration, PluginConfigurationError,
};

/// Maximum total size of the objects in the bodies of parallel calls for one write, in bytes. Further calls
/// wait until earlier calls end.
const MAX_BODY_BYTES: usize = 16 << 20;

/// Maximum number of parallel calls for one write, which bounds the memory of the calls.
const MAX_PARALLEL_CALLS: usize = 128;

/// The plugin ValidatingAdmissionWebhook.
pub(crate) struct ValidatingWebhooks(Dispatcher);

impl ConfigurePlugin for ValidatingWebhooks {
    fn new(
        environment: &Environment,
        configuration: Option<&PluginConfiguration>,
    ) -> Result<Self, PluginConfigurationError> {
        Dispatcher::new(Phase::Validating, environment, configuration).map(ValidatingWebhooks)
    }
}

impl ValidatingWebhooks {
    async fn dispatch(
        &self,
        hooks: &Hooks,
        attributes: &Attributes<'_>,
        object: Option<&Object>,
    ) -> Result<(), Status> {
        // A call acquires one permit for each byte of its objects, which bounds the memory of parallel calls.
        let bodies = Semaphore::new(MAX_BODY_BYTES);
        let mut calls = Vec::new();
        let mut cache = SerializedObjectsCache::default();
        let mut turn = Turn::new(&*self.0.environment.clock);
        for candidate in hooks.candidates(&attributes.served.group_resource.resource) {
            turn.pause().await;
            let constraints = &candidate.1.constraints;
            let matched = self.0.matcher.matches(constraints, attributes, object).await?;
            let Some(matched) = matched else { continue };
            let build = || self.0.objects(&matched, attributes, object.map(Cow::Borrowed));
            let objects = cache.get_or_build(&matched, attributes, build)?;
            calls.extend(self.0.prepare(candidate, matched, attributes, objects).await?);
        }
        // kube-apiserver returns the failure that arrived first; apid returns the failure of the first failed
        // webhook in order.
        let mut result = Ok(());
        for part in calls.chunks(MAX_PARALLEL_CALLS) {
            let outcomes = part.iter().map(async |call| {
                let bytes = call.objects.text_bytes();
                let permits = u32::try_from(bytes.min(MAX_BODY_BYTES)).unwrap_or(u32::MAX);
                let _permit = bodies.acquire_many(permits).await.map_err(Status::internal);
                let started = self.0.environment.clock.monotonic();
                let failure = self.0.call(call, attributes).await.err();
                self.0.conclude(call, attributes, failure, started)
            });
            let failures = join_all(outcomes).await.into_iter().flatten();
            result = failures.fold(result, |result, status| result.and(Err(status)));
        }
        result
    }
}

impl Plugin for ValidatingWebhooks {
    fn interest(&self) -> Interest {
        Interest::ALL_RESOURCES.on(&Operation::ALL)
    }

    fn validate<'a>(&'a self, attributes: &'a Attributes<'a>, object: Option<&'a Object>) -> Admission<'a> {
        let hooks = self.0.hooks(attributes);
        hooks.if_some(move |hooks| async move { self.dispatch(&hooks, attributes, object).await })
    }
}
