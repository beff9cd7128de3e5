//! Calls of the admission plugins by the verbs, and the objects that plugins may read.

mod backend;
mod decoded_objects;

pub use backend::AdmissionBackend;

use admission::{Attributes, Operation};
use serde_json::Value;

use super::Call;

impl<'a> Call<'a> {
    /// The attributes of a write for the admission plugins. `options` returns the request's options as an object.
    /// The caller adds the stored object.
    pub(super) fn admission(
        &'a self,
        operation: Operation,
        dry_run: bool,
        options: &'a (dyn Fn() -> Value + Sync),
    ) -> Attributes<'a> {
        Attributes {
            operation,
            resource: self.collection.kind.internal(),
            served: &self.collection.kind,
            version: self.version,
            subresource: self.subresource,
            namespace: self.namespace,
            name: self.name,
            old: None,
            user: self.authorized.user(),
            dry_run,
            options,
            has_generated_name: false,
            is_in_collection: self.authorized.attributes().verb == "deletecollection",
            deadline: self.deadline,
            recorder: self.recorder,
            environment: self.api_state.admission.environment(),
        }
    }
}

#[cfg(test)]
mod tests;
