//! Writes of admission plugins, which go through the verbs as the user `system:apiserver`.

use std::sync::{Arc, OnceLock, Weak};

use admission::{ObjectKind, Writer};
use apimachinery::object::Object;
use apimachinery::status::Status;
use async_trait::async_trait;

use super::actor::{Actor, Target};
use super::stored;

use crate::ControllerState;

/// Writer of the admission plugins.
///
/// The writer is created before the state of the API, which owns the plugins. [`AdmissionWrites::attach`]
/// passes the state of the controllers to the writer.
#[derive(Default)]
pub struct AdmissionWrites(OnceLock<Weak<ControllerState>>);

impl AdmissionWrites {
    /// Sets the state through which objects are written. Before this call, writes fail with 503.
    pub fn attach(&self, state: &Arc<ControllerState>) {
        let _ = self.0.set(Arc::downgrade(state));
    }

    fn actor(&self) -> Result<Actor, Status> {
        let state = self.0.get().and_then(Weak::upgrade);
        state.map(|state| state.apiserver()).ok_or_else(|| Status::unavailable("the server is not ready", 1))
    }
}

#[async_trait]
impl Writer for AdmissionWrites {
    async fn create(&self, kind: ObjectKind, object: Object) -> Result<(), Status> {
        let actor = self.actor()?;
        let namespace = object.namespace().to_owned();
        let collection = stored::of_kind(actor.api_state(), (kind.group, kind.kind))?;
        let target = Target { collection: &collection, namespace: &namespace, name: "", subresource: "" };
        actor.create(target, object).await.map(drop)
    }

    async fn update_status(&self, kind: ObjectKind, object: Object) -> Result<Arc<Object>, Status> {
        let actor = self.actor()?;
        let (namespace, name) = (object.namespace().to_owned(), object.name().to_owned());
        let collection = stored::of_kind(actor.api_state(), (kind.group, kind.kind))?;
        let target =
            Target { collection: &collection, namespace: &namespace, name: &name, subresource: "status" };
        let updated = actor.update(target, object).await?;
        updated.object.object().map(Arc::new)
    }
}
