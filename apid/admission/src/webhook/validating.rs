//! ValidatingAdmissionWebhook: parallel calls, of which each may reject the write.

use std::sync::Arc;

use apimachinery::object::Object;
use apimachinery::status::Status;
use futures_util::future::join_all;

use super::dispatcher::{Dispatcher, Phase};
use super::hook::Hooks;
use crate::{Attributes, Environment, MaybeFuture, Operation, Plugin, PluginConfiguration};

/// The plugin ValidatingAdmissionWebhook.
pub(crate) struct ValidatingWebhooks(Dispatcher);

impl ValidatingWebhooks {
    pub(crate) fn new(
        environment: &Environment,
        configuration: Option<&PluginConfiguration>,
    ) -> Result<Self, String> {
        Dispatcher::new(Phase::Validating, environment, configuration).map(ValidatingWebhooks)
    }

    async fn dispatch(
        &self,
        hooks: &Hooks,
        attributes: &Attributes<'_>,
        object: Option<&Object>,
    ) -> Result<(), Status> {
        let mut invocations = Vec::new();
        for candidate in hooks.candidates(&attributes.served.group_resource.resource) {
            invocations.extend(self.0.invocation(candidate, attributes, object).await?);
        }
        let calls = invocations.iter().map(async |invocation| {
            let started = self.0.environment.clock.monotonic();
            let failure = self.0.call(invocation, attributes).await.err();
            self.0.conclude(invocation, attributes, failure, started)
        });
        // The reference returns the failure that came first; apid returns the failure of the first webhook.
        match join_all(calls).await.into_iter().flatten().next() {
            Some(status) => Err(status),
            None => Ok(()),
        }
    }
}

impl Plugin for ValidatingWebhooks {
    fn handles(&self, _operation: Operation) -> bool {
        true
    }

    fn validate<'a>(
        &'a self,
        attributes: &'a Attributes<'a>,
        object: Option<&'a Object>,
    ) -> MaybeFuture<'a, Result<(), Status>> {
        let run = async move |hooks: Result<Option<Arc<Hooks>>, Status>| match hooks? {
            Some(hooks) => self.dispatch(&hooks, attributes, object).await,
            None => Ok(()),
        };
        match self.0.hooks(attributes) {
            MaybeFuture::Ready(Ok(None)) => MaybeFuture::Ready(Ok(())),
            hooks => MaybeFuture::later(async move { run(hooks.get().await).await }),
        }
    }
}
