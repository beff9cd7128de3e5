//! Where the verbs ask admission, and what admission may read.

use std::sync::Arc;

use admission::{Attributes, Eventual, NamespaceState, Operation, Reader};
use apimachinery::object::Object;
use apimachinery::status::Status;
use kinds::Registry;
use kinds::entry::Decoder;
use serde_json::Value;

use super::Call;
use super::shown::entry;
use crate::plane::{Cache, Items};

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
        self.call.notes.take_warnings();
        self.call.notes.take_annotations();
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
            notes: call.notes,
        }
    }
}

/// What admission knows of namespaces: the watch cache.
pub struct Namespaces(Option<Arc<Items>>);

impl Namespaces {
    /// Of the registry's namespaces.
    pub fn new(registry: &Registry, cache: &Cache) -> Self {
        let resource = registry.find_kind("", "Namespace");
        Namespaces(resource.map(|resource| cache.resource(&resource.key_prefix, Decoder::new(resource))))
    }
}

impl Reader for Namespaces {
    fn namespace<'a>(&'a self, name: &'a str) -> Eventual<'a, Result<Option<NamespaceState>, Status>> {
        let Some(items) = &self.0 else { return Eventual::Now(Ok(None)) };
        Eventual::later(async move {
            let (item, _) = items
                .get(&format!("{}{name}", items.prefix()))
                .await
                .map_err(|error| Status::unavailable(format!("storage is unavailable: {error}"), 1))?;
            let Some(item) = item else { return Ok(None) };
            let terminating = entry(&item)?.is_terminating();
            Ok(Some(if terminating { NamespaceState::Terminating } else { NamespaceState::Active }))
        })
    }
}
