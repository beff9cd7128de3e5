//! Deletion of the custom objects of a terminating CustomResourceDefinition, then of the definition.
//!
//! # Contract
//!
//! [`Cleanup::begin`] starts a task for a terminating definition. The task deletes all objects, honours their
//! finalizers, and reports in the condition `Terminating`. When no object is left, the task removes the
//! finalizer of apid from the definition. The definition is then removed unless it has other finalizers.
//! After a restart, the definition controller starts the task again.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::object::Object;
use apimachinery::status::Status;
use apimachinery::time;
use extensions::definition::conditions::{self, Deletion};
use parking_lot::Mutex;

use super::DEFINITION;
use crate::actor::{Actor, Target, is_race};
use crate::stored;
use verbs::Collection;
use verbs::deletion::options::{DeleteOptions, Propagation};

/// Number of objects that are deleted concurrently; concurrent deletions share the fsyncs of the store.
const CONCURRENCY: usize = 128;
/// Pause after the first round of deletions. The pause doubles after each round, up to [`MAX_PAUSE`].
const MIN_PAUSE: Duration = Duration::from_millis(50);
/// Longest pause between two rounds of deletions.
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// The tasks that delete the objects of terminating definitions.
pub(super) struct Cleanup {
    actor: Actor,
    /// The names of the definitions whose objects a task is deleting.
    busy: Mutex<HashSet<String>>,
}

impl Cleanup {
    /// Creates an empty set of tasks. All tasks write as `actor`.
    pub(super) fn new(actor: Actor) -> Self {
        Cleanup { actor, busy: Mutex::default() }
    }

    /// Starts a task that deletes the objects of a definition, unless such a task is running.
    pub(super) fn begin(self: Arc<Self>, name: &str) {
        if !self.busy.lock().insert(name.to_owned()) {
            return;
        }
        let name = name.to_owned();
        tokio::spawn(async move {
            let mut pause = MIN_PAUSE;
            loop {
                match self.run_round(&name).await {
                    Ok(true) => break,
                    Ok(false) => {}
                    Err(status) if is_race(&status) => {}
                    Err(status) => {
                        tracing::warn!(definition = name, reason = %status, "deleting custom objects failed; retrying");
                    }
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(MAX_PAUSE);
            }
            self.busy.lock().remove(&name);
        });
    }

    /// Deletes the objects, and removes the finalizer when no object is left. Returns whether no work is
    /// left.
    async fn run_round(&self, name: &str) -> Result<bool, Status> {
        let api_state = self.actor.api_state();
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
