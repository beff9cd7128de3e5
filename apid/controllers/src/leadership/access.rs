//! Access to one Lease through the watch cache and the verbs.

use std::sync::Arc;

use apimachinery::object::Object;
use apimachinery::status::Status;
use tokio::sync::Notify;

use super::election::Leases;
use crate::actor::{Actor, Target};
use crate::reflector::reflect_named;
use crate::state::ControllerState;
use crate::stored;
use verbs::Collection;

/// One Lease of the system namespace.
pub(crate) struct LeaseAccess {
    /// The identity of apid itself: an election cannot depend on its own result.
    actor: Actor,
    collection: Arc<Collection>,
    namespace: &'static str,
    name: String,
}

impl LeaseAccess {
    /// Creates the access; None if Leases are not served.
    pub(crate) fn new(state: &Arc<ControllerState>, name: &str) -> Option<Self> {
        let collection = stored::of_kind(&state.api_state, ("coordination", "Lease")).ok()?;
        let namespace = state.api_state.names.system_namespace;
        Some(LeaseAccess { actor: state.apiserver(), collection, namespace, name: name.to_owned() })
    }

    /// Follows the changes of the Lease until the process ends; each change notifies.
    pub(super) fn follow_changes(&self) -> Arc<Notify> {
        let changed = Arc::<Notify>::default();
        let (observer, items, name) =
            (Arc::clone(&changed), Arc::clone(&self.collection.items), self.name.clone());
        tokio::spawn(async move { reflect_named(items, &name, move |_| observer.notify_one()).await });
        changed
    }

    fn target<'a>(&'a self, name: &'a str) -> Target<'a> {
        Target { collection: &self.collection, namespace: self.namespace, name, subresource: "" }
    }
}

impl Leases for LeaseAccess {
    async fn read(&self) -> Result<Option<Object>, Status> {
        stored::get_decodable(&self.collection, self.namespace, &self.name).await
    }

    async fn write(&self, mut lease: Object) -> Result<Object, Status> {
        let written = match lease.resource_version().is_empty() {
            true => {
                lease.set_meta("name", self.name.as_str());
                lease.set_meta("namespace", self.namespace);
                self.actor.create(self.target(""), lease).await?
            }
            false => self.actor.update(self.target(&self.name), lease).await?,
        };
        written.object.object()
    }
}
