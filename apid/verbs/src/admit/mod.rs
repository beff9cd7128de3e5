//! Calls of the admission plugins by the verbs, and the objects that plugins may read.

mod backend;
mod decoded_objects;
mod metrics;

pub use backend::AdmissionBackend;
use metrics::AdmissionDurations;

use std::sync::Arc;

use admission::{Attributes, Chain, Operation};
use apimachinery::clock::Clock;
use apimachinery::object::Object;
use apimachinery::status::Status;
use kinds::Resource;
use serde_json::Value;
use serving::metrics::Metrics;

use super::Call;

/// Registers the metrics of admission, and observes the durations of the plugins of a chain in them.
pub fn observe_admission(chain: &Chain, clock: &Arc<dyn Clock>, metrics: &Metrics) {
    let durations = AdmissionDurations::new(chain.names(), metrics);
    chain.observe_with(Arc::clone(clock), Arc::new(durations));
}

/// The admission request of a write.
pub(super) struct AdmissionRequest<'a> {
    call: &'a Call<'a>,
    operation: Operation,
    dry_run: bool,
    options: &'a (dyn Fn() -> Value + Sync),
    /// Whether the server generated the name of the object.
    pub(super) has_generated_name: bool,
    /// The resource of a create whose body changes another object, for example a Binding on its own path. Without it,
    /// admission sees the resource and subresource of the call.
    pub(super) body_resource: Option<&'a Resource>,
}

impl<'a> Call<'a> {
    /// Builds the admission request of a write. `options` returns the request's options as an object.
    pub(super) fn admission(
        &'a self,
        operation: Operation,
        dry_run: bool,
        options: &'a (dyn Fn() -> Value + Sync),
    ) -> AdmissionRequest<'a> {
        AdmissionRequest {
            call: self,
            operation,
            dry_run,
            options,
            has_generated_name: false,
            body_resource: None,
        }
    }
}

impl AdmissionRequest<'_> {
    /// Runs the mutating plugins on the object before validation.
    ///
    /// # Errors
    ///
    /// The rejection of the first plugin that rejects the write.
    pub(super) async fn mutate(&self, new: Option<&mut Object>, old: Option<&Object>) -> Result<(), Status> {
        // Discard the annotations of an earlier iteration of the compare-and-swap loop.
        self.call.notes.reset();
        self.call.api_state.admission.mutate(&self.attributes(old), new).await
    }

    /// Runs the validating plugins on the validated object.
    ///
    /// # Errors
    ///
    /// The rejection of the first plugin that rejects the write.
    pub(super) async fn validate(&self, new: Option<&Object>, old: Option<&Object>) -> Result<(), Status> {
        self.call.api_state.admission.validate(&self.attributes(old), new).await
    }

    fn attributes<'b>(&'b self, old: Option<&'b Object>) -> Attributes<'b> {
        let call = self.call;
        let (resource, served, subresource) = match self.body_resource {
            Some(resource) => (resource, resource, ""),
            None => (&*call.collection.resource, &*call.collection.served, call.subresource),
        };
        Attributes {
            operation: self.operation,
            resource,
            served,
            version: call.version,
            subresource,
            namespace: call.namespace,
            name: call.name,
            old,
            user: call.authorized.user(),
            dry_run: self.dry_run,
            options: self.options,
            reinvoked: false,
            has_generated_name: self.has_generated_name,
            is_in_collection: call.authorized.attributes().verb == "deletecollection",
            deadline: call.deadline,
            notes: call.notes,
        }
    }
}

#[cfg(test)]
mod tests;
