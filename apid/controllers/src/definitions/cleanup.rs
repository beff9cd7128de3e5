//! Deletion of the custom objects of a terminating CustomResourceDefinition, then of the definition.
//!
//! # Contract
//!
//! The clean-up follows the terminating definitions. It deletes all objects, honours their finalizers, and
//! reports in the condition `Terminating`. The deletion begins when the kind accepts no new objects, and when
//! the commits of accepted objects have ended. When no object is left, the clean-up removes the finalizer of
//! apid from the definition. The definition is then removed unless it has other finalizers.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::object::Object;
use apimachinery::status::Status;
use apimachinery::time;
use extensions::definition::conditions::{self, Deletion};
use parking_lot::Mutex;

use super::DEFINITION;
use crate::ControllerState;
use crate::actor::{Actor, Target, is_normal};
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
struct Cleanup {
    actor: Actor,
    /// The names of the definitions whose clean-up is in progress, including those that wait for the next round.
    in_progress: Arc<Mutex<HashSet<String>>>,
}

/// Deletes the objects of terminating definitions until the process ends.
pub(super) async fn run(state: &ControllerState, actor: Actor, definitions: &Collection) {
    let in_progress = Arc::<Mutex<HashSet<String>>>::default();
    let started = Arc::clone(&in_progress);
    let runner = Runner::new(state, "crd_finalizer").workers(WORKERS).debounce(DEBOUNCE).watch(
        &definitions.items,
        move |event| {
            let name = event.existing_name().filter(|_| event.entry().is_terminating())?;
            // The reports of a clean-up in progress must not start its next round.
            started.lock().insert(name.clone()).then_some(name)
        },
    );
    runner.run(Arc::new(Cleanup { actor, in_progress })).await;
}

impl Reconcile for Cleanup {
    type Key = String;

    async fn reconcile(&self, name: &String) -> Result<Requeue, Status> {
        match self.run_round(name).await {
            Ok(true) => {
                self.in_progress.lock().remove(name);
                // The definition may have been created and deleted again during the round.
                let is_waiting = self.find_terminating(name).await?.is_some();
                if is_waiting {
                    self.in_progress.lock().insert(name.clone());
                }
                Ok(if is_waiting { Requeue::After(Duration::ZERO) } else { Requeue::No })
            }
            Ok(false) => Ok(Requeue::Poll),
            Err(status) => {
                if !is_normal(&status) {
                    tracing::warn!(definition = name, reason = %status, "deleting custom objects failed; retrying");
                }
                Ok(Requeue::Poll)
            }
        }
    }
}

impl Cleanup {
    /// Deletes the objects, and removes the finalizer when no object is left. Returns whether no work is
    /// left.
    async fn run_round(&self, name: &str) -> Result<bool, Status> {
        let api_state = self.actor.api_state();
        let definitions = stored::of_kind(api_state, DEFINITION)?;
        let finalizer = conditions::cleanup_finalizer(&api_state.names);
        let Some(definition) = self.find_terminating(name).await? else { return Ok(true) };
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
        let marked =
            served.filter(|resource| resource.is_terminating()).and_then(|resource| resource.definition());
        let is_marked = marked.is_some_and(|known| *known.uid == *definition.uid());
        if !is_marked {
            // The kind still accepts new objects.
            return Ok(false);
        }
        api_state.kinds.finish_creates().await;
        let definition = self.report(&definitions, definition, &Deletion::InProgress).await?;
        let options =
            DeleteOptions { propagation: Some(Propagation::Background), ..DeleteOptions::default() };
        let target = Target { collection: objects, namespace: "", name: "", subresource: "" };
        if let Err(status) = self.actor.delete_collection(target, &options, CONCURRENCY).await {
            let message = format!("could not issue all deletes: {}", status.message);
            self.report(&definitions, definition, &Deletion::Failed(message)).await?;
            return Err(status);
        }
        let snapshot = objects.items.snapshot().await.map_err(stored::unavailable)?;
        let remaining = snapshot.scope(&objects.kind.key_prefix, "").count();
        if remaining > 0 {
            return Ok(false);
        }
        let definition = self.report(&definitions, definition, &Deletion::Completed).await?;
        self.remove_finalizer(&definitions, definition, &finalizer).await
    }

    /// Returns a definition that needs the clean-up.
    async fn find_terminating(&self, name: &str) -> Result<Option<Object>, Status> {
        let api_state = self.actor.api_state();
        let finalizer = conditions::cleanup_finalizer(&api_state.names);
        let definition = stored::get(&*stored::of_kind(api_state, DEFINITION)?, "", name).await?;
        Ok(definition.filter(|definition| {
            definition.is_terminating() && definition.finalizers().any(|other| other == finalizer)
        }))
    }

    /// Writes the condition `Terminating`. Returns the definition after the write.
    async fn report(
        &self,
        definitions: &Collection,
        mut definition: Object,
        deletion: &Deletion,
    ) -> Result<Object, Status> {
        let now = time::time(self.actor.api_state().clock.now());
        if !conditions::set_condition(&mut definition, &conditions::terminating(deletion), &now) {
            return Ok(definition);
        }
        let name = definition.name().to_owned();
        let target = Target { collection: definitions, namespace: "", name: &name, subresource: "status" };
        self.actor.update(target, definition).await?.object.object()
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
        self.actor.update(target, definition).await.map(|_| true)
    }
}
