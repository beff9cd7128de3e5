//! Namespace controller: creates the built-in namespaces, and empties and removes terminating namespaces.
//!
//! # Contract
//!
//! [`ensure_built_in`] runs before any other write. [`run`] handles every terminating namespace, including
//! those whose deletion began before a restart. It deletes the objects of every namespaced kind, even those of
//! other servers behind APIServices, waits for their finalizers, and reports them in the namespace's conditions.
//! Then it removes the finalizer of apid, and the namespace is removed unless other finalizers block it.
//!
//! # Invariants
//!
//! INVARIANT (generic): the code names no kinds except Namespace and Pod; pods are deleted first. The
//! registry defines which kinds are namespaced.

mod conditions;
mod deletion;
mod remote;

use std::sync::Arc;

use apimachinery::object::Object;
use apimachinery::status::{Reason, Status};

use self::deletion::NamespaceDeletion;
use super::actor::{Actor, Target};
use super::reflector::ObjectEvent;
use super::runner::{Reconcile, Requeue, Runner};
use super::stored;
use verbs::deletion::options::{DeleteOptions, Propagation};
use verbs::{ApiState, Collection};

use crate::ControllerState;

/// Returns the names of the built-in namespaces.
fn built_in_namespaces(api_state: &ApiState) -> [&'static str; 4] {
    let names = &api_state.names;
    ["default", names.system_namespace, names.public_namespace, names.node_lease_namespace]
}

/// Creates missing built-in namespaces.
///
/// # Errors
///
/// A namespace cannot be created.
pub async fn ensure_built_in(state: &Arc<ControllerState>) -> Result<(), Status> {
    let actor = state.apiserver();
    let creations = built_in_namespaces(&state.api_state).map(|name| create_if_missing(&actor, name));
    futures_util::future::try_join_all(creations).await.map(drop)
}

/// Creates a built-in namespace unless it exists.
async fn create_if_missing(actor: &Actor, name: &'static str) -> Result<(), Status> {
    let collection = collection(actor.api_state())?;
    if stored::item(&collection, "", name).await.is_ok_and(|item| item.is_some()) {
        return Ok(());
    }
    let mut object = Object::default();
    object.set_meta("name", name);
    let target = Target { collection: &collection, namespace: "", name: "", subresource: "" };
    match actor.create(target, object).await {
        Err(status) if status.reason != Reason::AlreadyExists => Err(status),
        _ => Ok(()),
    }
}

/// Returns the collection of namespaces.
fn collection(api_state: &ApiState) -> Result<Arc<Collection>, Status> {
    stored::core(api_state, "namespaces")
}

/// Number of namespaces that are processed concurrently.
const WORKERS: usize = 8;

/// A unit of work of the controller, on the namespace with this name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Work {
    /// Empty the terminating namespace and remove the finalizer of apid.
    Empty(String),
    /// Delete objects that were stored while the namespace was being deleted. The number tells deletions of the
    /// same name apart.
    Sweep(String, u64),
    /// Create the built-in namespace again.
    Restore(&'static str),
}

/// The controller of namespaces.
struct NamespaceController {
    /// Identity that creates built-in namespaces.
    apiserver: Actor,
    deletion: Arc<NamespaceDeletion>,
}

/// Empties terminating namespaces and recreates deleted built-in namespaces, until the process ends.
pub(super) async fn run(state: Arc<ControllerState>) {
    let Ok(namespaces) = collection(&state.api_state) else { return };
    let runner = Runner::new(&state, "namespace").workers(WORKERS);
    let deletion = Arc::new(NamespaceDeletion::new(state.controller("namespace-controller"), runner.queue()));
    let built_in_names = built_in_namespaces(&state.api_state);
    let observer = Arc::clone(&deletion);
    let runner = runner.watch(&namespaces.items, move |event| match event {
        ObjectEvent::Exists(namespace) => {
            let is_new = namespace.is_terminating() && !observer.is_in_progress(namespace.name());
            is_new.then(|| Work::Empty(namespace.name().to_owned()))
        }
        ObjectEvent::Deleted(namespace) => {
            built_in_names.into_iter().find(|name| *name == namespace.name()).map(Work::Restore)
        }
    });
    // A former leader may have ended between the deletion of a built-in namespace and its restoration.
    let restored = built_in_names.into_iter().map(Work::Restore);
    let runner = restored.fold(runner, Runner::start_with);
    let apiserver = state.apiserver().of_leader();
    runner.run(Arc::new(NamespaceController { apiserver, deletion })).await;
}

impl Reconcile for NamespaceController {
    type Key = Work;

    async fn reconcile(&self, work: &Work) -> Result<Requeue, Status> {
        match work {
            Work::Empty(name) => return self.deletion.empty(name).await,
            Work::Sweep(name, _) => self.deletion.sweep(name).await?,
            Work::Restore(name) => create_if_missing(&self.apiserver, name).await?,
        }
        Ok(Requeue::No)
    }
}

/// Returns delete options with background propagation.
fn background_options() -> DeleteOptions {
    DeleteOptions { propagation: Some(Propagation::Background), ..DeleteOptions::default() }
}
