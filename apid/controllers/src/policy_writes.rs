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
use verbs::deletion::options::{DeleteOptions, Preconditions};

use crate::ControllerState;

/// Name of the controller of authd that restores the default policy, as the user `system:apiserver`.
///
/// In Kubernetes the default policy is restored by the API server, not by the controller manager.
const BOOTSTRAP: &str = "bootstrap-policy";

/// Name of the controller of authd that fills token Secrets.
const TOKENS: &str = "tokens-controller";
/// The key of the token in the data of a Secret.
const TOKEN: &str = "token";

/// Writes the objects that the controllers of authd request.
pub struct PolicyWrites {
    state: Arc<ControllerState>,
}

impl PolicyWrites {
    /// Creates the writer.
    pub fn new(state: Arc<ControllerState>) -> Self {
        PolicyWrites { state }
    }

    /// Returns the identity of a controller of authd. The controllers run beside each apid.
    fn actor(&self, controller: &str) -> Actor {
        match controller {
            BOOTSTRAP => self.state.apiserver(),
            _ => self.state.controller(controller).of_each_server(),
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

    async fn write(&self, controller: &str, write: &ObjectWrite) -> Result<(), Status> {
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
            Verb::Delete => actor.delete(target, &delete_options(&body(write)?)).await.map(drop),
            Verb::Patch if controller == TOKENS => fill_secret(&actor, target, body(write)?).await,
            Verb::Patch => actor.merge(target, &write.body).await.map(drop),
            Verb::Apply => apply(&actor, target, body(write)?).await,
        }
    }
}

/// Patches a token Secret. A patch with a token applies only to a Secret without a token: each authd of several apids fills
/// a new Secret, and a token is valid only while the Secret contains this token.
async fn fill_secret(actor: &Actor, target: Target<'_>, mut patch: Object) -> Result<(), Status> {
    if patch.at(&["data", TOKEN]).is_some() {
        let resource = &target.collection.kind.internal().group_resource;
        let secret = stored::get(target.collection, target.namespace, target.name).await?;
        let secret = secret.ok_or_else(|| Status::not_found(resource, target.name))?;
        if secret.at(&["data", TOKEN]).is_some() {
            return Err(Status::conflict(resource, target.name, "the Secret has a token already"));
        }
        patch.set_meta("resourceVersion", secret.resource_version());
    }
    let bytes = patch.into_value().to_string();
    actor.merge(target, bytes.as_bytes()).await.map(drop)
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

/// Returns the options of a deletion, whose body has the preconditions: the mirror of authd may be older than the object.
fn delete_options(body: &Object) -> DeleteOptions {
    let value = |field: &str| body.str_at(&[field]).map(str::to_owned);
    let preconditions = Preconditions { uid: value("uid"), resource_version: value("resourceVersion") };
    DeleteOptions { preconditions, ..DeleteOptions::default() }
}

fn body(write: &ObjectWrite) -> Result<Object, Status> {
    let decoded = codec::json::decode(&write.body, Limits::BODY)
        .map_err(|error| Status::bad_request(error.to_string()))?;
    Object::from_value(decoded.value).map_err(|_| Status::bad_request("the body is not an object"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deletion_has_the_preconditions_of_its_body() {
        let write = |text: &str| ObjectWrite { body: text.as_bytes().to_vec(), ..ObjectWrite::default() };
        for (text, uid, resource_version) in [
            (r#"{"resourceVersion":"7","uid":"u"}"#, Some("u"), Some("7")),
            (r#"{"resourceVersion":"7"}"#, None, Some("7")),
        ] {
            let Preconditions { uid: found, resource_version: version } =
                delete_options(&body(&write(text)).unwrap()).preconditions;
            assert_eq!((found.as_deref(), version.as_deref()), (uid, resource_version), "{text}");
        }
        assert!(body(&write("")).is_err(), "a deletion without preconditions is refused");
    }
}
