//! Namespaces: the built-in ones exist, and a namespace that is being deleted is emptied and then goes.
//!
//! # Contract
//!
//! [`ensure_built_in`] runs before anything else writes. [`run`] sees every namespace that is terminating, also those of
//! an earlier process: it deletes the objects of every namespaced kind, waits while finalizers hold some and says so in the
//! namespace's conditions, and then takes the control plane's finalizer off, with which the namespace goes unless others
//! hold it.
//!
//! # Invariants
//!
//! INVARIANT (generic): no kind is named here but the namespace itself and, to go first, the pod; content is what the registry says is namespaced.

mod conditions;
mod ending;

use std::sync::Arc;
use std::time::Duration;

use apimachinery::object::Object;
use apimachinery::status::{Reason, Status};

use self::ending::Ending;
use super::actor::{Actor, Target};
use super::follow::{Seen, follow};
use super::stored;
use crate::plane::{Collection, Plane};

/// After a failure.
const RETRY: Duration = Duration::from_secs(2);

/// The namespaces that always exist.
fn built_in(plane: &Plane) -> [&'static str; 4] {
    let names = &plane.names;
    ["default", names.system_namespace, names.public_namespace, names.node_lease_namespace]
}

/// Creates the built-in namespaces that are missing.
///
/// # Errors
///
/// The store refused.
pub async fn ensure_built_in(plane: &Arc<Plane>) -> Result<(), Status> {
    let actor = Actor::apiserver(plane.clone());
    let create = built_in(plane).map(|name| create(&actor, name));
    futures_util::future::try_join_all(create).await.map(drop)
}

async fn create(actor: &Actor, name: &'static str) -> Result<(), Status> {
    let collection = collection(actor.plane())?;
    let key = collection.resource.key("", name);
    if collection.items.get(&key).await.is_ok_and(|(item, _)| item.is_some()) {
        return Ok(());
    }
    let mut object = Object::default();
    object.set_meta("name", name);
    match actor.create(Target { collection, namespace: "", name: "", subresource: "" }, object).await {
        Err(status) if status.reason != Reason::AlreadyExists => Err(status),
        _ => Ok(()),
    }
}

/// Creates a built-in namespace anew, however often that fails.
async fn restore(actor: &Actor, name: &'static str) {
    while let Err(status) = create(actor, name).await {
        tracing::warn!(namespace = name, reason = %status, "a built-in namespace could not be made");
        tokio::time::sleep(RETRY).await;
    }
}

/// The namespaces.
fn collection(plane: &Plane) -> Result<&Collection, Status> {
    stored::core(plane, "namespaces")
}

/// Follows namespaces, until the process ends.
pub(super) async fn run(plane: Arc<Plane>, own_account: bool) {
    let Ok(namespaces) = collection(&plane) else { return };
    let items = namespaces.items.clone();
    let actor = Actor::controller(plane.clone(), "namespace-controller", own_account);
    let ending = Arc::new(Ending::new(actor));
    let own = built_in(&plane);
    follow(items, move |seen| match seen {
        Seen::There(namespace) if namespace.is_terminating() => ending.clone().begin(namespace.name()),
        Seen::Gone(namespace) => {
            if let Some(&name) = own.iter().find(|own| **own == namespace.name()) {
                let actor = Actor::apiserver(plane.clone());
                tokio::spawn(async move { restore(&actor, name).await });
            }
        }
        Seen::There(_) => {}
    })
    .await;
}
