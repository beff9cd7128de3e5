//! Deletion of the custom objects of a terminating CustomResourceDefinition, then of the definition.
//!
//! # Contract
//!
//! The clean-up follows the terminating definitions. It deletes all objects, honours their finalizers, and
//! reports in the condition `Terminating`. The deletion begins when the kind accepts no new objects, and when
//! the commits of accepted objects have ended. When no object is left, the clean-up removes the finalizer of
//! apid from the definition. The definition is then removed unless it has other finalizers.

use std::sync::Arc;
use std::time::Duration;

use apimachinery::object::Object;
use apimachinery::status::Status;
use apimachinery::time;
use extensions::definition::conditions::{self, Deletion};
use kinds::KindRef;

use super::DEFINITION;
use crate::ControllerState;
use crate::actor::{Actor, Target};
use crate::runner::{Reconcile, Requeue, Runner};
use crate::stored;
use verbs::Collection;
use verbs::deletion::options::{DeleteOptions, Propagation};

/// Number of objects that are deleted concurrently; concurrent deletions share the fsyncs of the store.
const CONCURRENCY: usize = 128;
/// Number of definitions whose objects are deleted concurrently.
const WORKERS: usize = 8;
/// Debounce interval, in which the definition controller marks the kind of a terminating definition.
const DEBOUNCE: Duration = Duration::from_millis(10);

/// The controller; its keys are names of definitions.
struct Cleanup(Actor);

/// Deletes the objects of terminating definitions until the process ends.
pub(super) async fn run(state: &ControllerState, actor: Actor, definitions: &Collection) {
    let runner = Runner::new(state, "crd_finalizer")
        .workers(WORKERS)
        .debounce(DEBOUNCE)
        .watch(&definitions.items, |event| event.existing_name().filter(|_| event.entry().is_terminating()));
    runner.run(Arc::new(Cleanup(actor))).await;
}

impl Reconcile for Cleanup {
    type Key = String;

    async fn reconcile(&self, name: &String) -> Result<Requeue, Status> {
        let is_complete = self.run_round(name).await?;
        Ok(if is_complete { Requeue::No } else { Requeue::Poll })
    }
}

impl Cleanup {
    /// Deletes the objects, and removes the finalizer when no object is left. Returns whether no work is
    /// left.
    async fn run_round(&self, name: &str) -> Result<bool, Status> {
        let api_state = self.0.api_state();
        let definitions = stored::of_kind(api_state, DEFINITION)?;
        let finalizer = conditions::cleanup_finalizer(&api_state.names);
        let Some(definition) = stored::get(&definitions, "", name).await? else { return Ok(true) };
        let needs_cleanup =
            definition.is_terminating() && definition.finalizers().any(|other| other == finalizer);
        if !needs_cleanup {
            return Ok(true);
        }
        let kinds = api_state.kinds.get();
        let group = definition.str_at(&["spec", "group"]).unwrap_or("");
        let plural = definition.str_at(&["spec", "names", "plural"]).unwrap_or("");
        // The accepted names may not be stored yet, although the kind is served and has objects.
        let served = kinds.registry.all_custom().find(|resource| {
            resource.group_resource.group == group && resource.group_resource.resource == plural
        });
        let Some(objects) = served.and_then(|resource| kinds.collection(resource.stored())) else {
            if conditions::is_established(&definition) {
                // The kind is established but not served yet, so its objects cannot be deleted in this round.
                return Ok(false);
            }
            let definition = self.report(&definitions, definition, &Deletion::NeverEstablished).await?;
            return self.remove_finalizer(&definitions, definition, &finalizer).await;
        };
        let is_marked = served.is_some_and(|resource| match &resource.kind {
            KindRef::Custom(kind) => {
                resource.kind.is_terminating() && *kind.definition_uid == *definition.uid()
            }
            KindRef::BuiltIn(_) => false,
        });
        if !is_marked {
            // The kind still accepts new objects.
            return Ok(false);
        }
        api_state.kinds.finish_creates().await;
        let definition = self.report(&definitions, definition, &Deletion::InProgress).await?;
        let options =
            DeleteOptions { propagation: Some(Propagation::Background), ..DeleteOptions::default() };
        let target = Target { collection: objects, namespace: "", name: "", subresource: "" };
        if let Err(status) = self.0.delete_collection(target, &options, CONCURRENCY).await {
            let message = format!("could not issue all deletes: {}", status.message);
            self.report(&definitions, definition, &Deletion::Failed(message)).await?;
            return Err(status);
        }
        let snapshot = objects.items.snapshot().await.map_err(stored::unavailable)?;
        let remaining = snapshot.scope(&objects.resource.key_prefix, "").count();
        if remaining > 0 {
            return Ok(false);
        }
        let definition = self.report(&definitions, definition, &Deletion::Completed).await?;
        self.remove_finalizer(&definitions, definition, &finalizer).await
    }

    /// Writes the condition `Terminating`. Returns the definition after the write.
    async fn report(
        &self,
        definitions: &Collection,
        mut definition: Object,
        deletion: &Deletion,
    ) -> Result<Object, Status> {
        let now = time::time(self.0.api_state().clock.now());
        if !conditions::set_condition(&mut definition, &conditions::terminating(deletion), &now) {
            return Ok(definition);
        }
        let name = definition.name().to_owned();
        let target = Target { collection: definitions, namespace: "", name: &name, subresource: "status" };
        self.0.update(target, definition).await?.object.object()
    }

    async fn remove_finalizer(
        &self,
        definitions: &Collection,
        mut definition: Object,
        finalizer: &str,
    ) -> Result<bool, Status> {
        definition.remove_finalizer(finalizer);
        let name = definition.name().to_owned();
        let target = Target { collection: definitions, namespace: "", name: &name, subresource: "" };
        self.0.update(target, definition).await.map(|_| true)
    }
}
