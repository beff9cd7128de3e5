//! Where the verbs ask admission, and what admission may read.

mod decoded;
mod surroundings;

pub use surroundings::Surroundings;

use admission::{Attributes, Operation};
use apimachinery::object::Object;
use apimachinery::status::Status;
use serde_json::Value;

use super::Call;

/// A write on its way through admission.
pub(super) struct Admission<'a> {
    call: &'a Call<'a>,
    operation: Operation,
    dry_run: bool,
    options: Value,
}

impl<'a> Call<'a> {
    /// A write that the plugins are asked about. `options` are the request's, as an object.
    pub(super) fn admission(&'a self, operation: Operation, dry_run: bool, options: Value) -> Admission<'a> {
        Admission { call: self, operation, dry_run, options }
    }
}

impl Admission<'_> {
    /// Lets the plugins change the object before it is validated.
    ///
    /// # Errors
    ///
    /// The first refusal.
    pub(super) async fn mutate(&self, new: Option<&mut Object>, old: Option<&Object>) -> Result<(), Status> {
        // What an earlier turn of a loop had to say is said again.
        self.call.notes.begin_anew();
        self.call.plane.admission.mutate(&self.attributes(old), new).await
    }

    /// Asks the plugins about the validated object.
    ///
    /// # Errors
    ///
    /// The first refusal.
    pub(super) async fn validate(&self, new: Option<&Object>, old: Option<&Object>) -> Result<(), Status> {
        self.call.plane.admission.validate(&self.attributes(old), new).await
    }

    fn attributes<'b>(&'b self, old: Option<&'b Object>) -> Attributes<'b> {
        let call = self.call;
        Attributes {
            operation: self.operation,
            resource: &call.collection.resource,
            version: call.version,
            subresource: call.subresource,
            namespace: call.namespace,
            name: call.name,
            old,
            user: call.by.user(),
            dry_run: self.dry_run,
            options: &self.options,
            reinvoked: false,
            notes: call.notes,
        }
    }
}

#[cfg(test)]
mod tests;
