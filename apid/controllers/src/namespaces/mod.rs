//! Namespace controller: creates the built-in namespaces, and empties and removes terminating namespaces.
//!
//! # Contract
//!
//! [`ensure_built_in`] runs before any other write. [`run`] handles every terminating namespace, including
//! those whose deletion began before a restart. It deletes the objects of every namespaced kind, waits for
//! their finalizers, and reports them in the namespace's conditions. Then it removes the finalizer of apid,
//! and the namespace is removed unless other finalizers block it.
//!
//! # Invariants
//!
//! INVARIANT (generic): the code names no kinds except Namespace and Pod; pods are deleted first. The
//! registry defines which kinds are namespaced.

mod conditions;
mod deletion;

use std::sync::Arc;
use std::time::Duration;

use apimachinery::object::Object;
use apimachinery::status::{Reason, Status};

use self::deletion::NamespaceDeletion;
use super::actor::{Actor, Target};
use super::reflector::{ObjectEvent, reflect};
use super::stored;
use verbs::{ApiState, Collection};

use crate::ControllerState;

/// Pause before the creation of a built-in namespace is repeated.
const RETRY: Duration = Duration::from_secs(2);

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

/// Recreates a built-in namespace, and retries until the creation succeeds.
async fn restore(actor: &Actor, name: &'static str) {
    while let Err(status) = create_if_missing(actor, name).await {
        tracing::warn!(namespace = name, reason = %status, "creating a built-in namespace failed; retrying");
        tokio::time::sleep(RETRY).await;
    }
}

/// Returns the collection of namespaces.
fn collection(api_state: &ApiState) -> Result<Arc<Collection>, Status> {
    stored::core(api_state, "namespaces")
}

/// Empties terminating namespaces and recreates deleted built-in namespaces, until the process ends.
pub(super) async fn run(state: Arc<ControllerState>) {
    let Ok(namespaces) = collection(&state.api_state) else { return };
    let items = namespaces.items.clone();
    let actor = state.controller("namespace-controller");
    let deletion = Arc::new(NamespaceDeletion::new(actor));
    let built_in_names = built_in_namespaces(&state.api_state);
    reflect(items, move |event| match event {
        ObjectEvent::Exists(namespace) if namespace.is_terminating() => {
            deletion.clone().begin(namespace.name())
        }
        ObjectEvent::Deleted(namespace) => {
            if let Some(&name) = built_in_names.iter().find(|name| **name == namespace.name()) {
                let actor = state.apiserver();
                tokio::spawn(async move { restore(&actor, name).await });
            }
        }
        ObjectEvent::Exists(_) => {}
    })
    .await;
}
