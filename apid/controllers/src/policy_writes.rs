//! Writes on behalf of authd: default policy, aggregated cluster roles, token Secrets, `cluster-info`.

use std::sync::Arc;

use apimachinery::codec::{self, Limits};
use apimachinery::object::Object;
use apimachinery::status::Status;
use async_trait::async_trait;
use authproto::auth::{ObjectWrite, object_write::Verb};
use storage::Revision;

use super::actor::{Actor, Target};
use super::stored;
use authclient::PolicyWriter;
use verbs::Collection;
use verbs::deletion::options::DeleteOptions;

use crate::ControllerState;

/// Name of the controller of authd that restores the default policy, as the user `system:apiserver`.
///
/// In Kubernetes the default policy is restored by the API server, not by the controller manager.
const BOOTSTRAP: &str = "bootstrap-policy";

/// Writes the objects that the controllers of authd request.
pub struct PolicyWrites {
    state: Arc<ControllerState>,
}

impl PolicyWrites {
    /// Creates the writer.
    pub fn new(state: Arc<ControllerState>) -> Self {
        PolicyWrites { state }
    }

    fn actor(&self, controller: &str) -> Actor {
        match controller {
            BOOTSTRAP => self.state.apiserver(),
            _ => self.state.controller(controller),
        }
    }

    fn collection(&self, write: &ObjectWrite) -> Result<Arc<Collection>, Status> {
        let kinds = self.state.api_state.kinds.get();
        let resource = kinds.registry.find_stored(&write.group, &write.version, &write.resource);
        resource.and_then(|resource| kinds.collection(resource).cloned()).ok_or_else(Status::unknown_resource)
    }
}

#[async_trait]
impl PolicyWriter for PolicyWrites {
    async fn wait_for(&self, revision: Revision) {
        self.state.api_state.cache.wait_for(revision).await;
    }

    async fn write(&self, controller: &str, _system: bool, write: &ObjectWrite) -> Result<(), Status> {
        let actor = self.actor(controller);
        let collection = self.collection(write)?;
        let target = Target {
            collection: &collection,
            namespace: &write.namespace,
            name: &write.name,
            subresource: "",
        };
        match write.verb() {
            Verb::Create => actor.create(Target { name: "", ..target }, body(write)?).await.map(drop),
            Verb::Update => actor.update(target, body(write)?).await.map(drop),
            Verb::Delete => actor.delete(target, &DeleteOptions::default()).await.map(drop),
            Verb::Patch => actor.merge(target, &write.body).await.map(drop),
            Verb::Apply => apply(&actor, target, body(write)?).await,
        }
    }
}

/// Applies a configuration to an existing object. The uid in the configuration prevents the creation of an
/// object that is deleted meanwhile.
async fn apply(actor: &Actor, target: Target<'_>, mut configuration: Object) -> Result<(), Status> {
    let existing = stored::get(target.collection, target.namespace, target.name).await?;
    let resource = &target.collection.kind.internal().group_resource;
    let existing = existing.ok_or_else(|| Status::not_found(resource, target.name))?;
    configuration.set_meta("uid", existing.uid());
    let bytes = configuration.into_value().to_string();
    actor.apply(target, bytes.as_bytes()).await.map(drop)
}

fn body(write: &ObjectWrite) -> Result<Object, Status> {
    let decoded = codec::json::decode(&write.body, Limits::BODY)
        .map_err(|error| Status::bad_request(error.to_string()))?;
    Object::from_value(decoded.value).map_err(|_| Status::bad_request("the body is not an object"))
}
