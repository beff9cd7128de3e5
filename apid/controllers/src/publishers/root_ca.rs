//! The CA bundle `kube-root-ca.crt` in every namespace (requirement A-SA-26) and in token Secrets.

use std::path::PathBuf;
use std::sync::Arc;

use apimachinery::object::Map;
use apimachinery::status::Status;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use super::super::actor::{Actor, Target, ignore_race};
use super::super::queue::Queue;
use super::super::runner::{Reconcile, Requeue, Runner};
use super::super::stored;
use super::{put_config_map, read_file};
use verbs::Collection;

use crate::ControllerState;

/// Name of the ConfigMap. It is the same under both names presets.
const NAME: &str = "kube-root-ca.crt";
/// The key of the CA bundle in the ConfigMap and in token Secrets.
const KEY: &str = "ca.crt";

/// The publisher. Its keys are names of namespaces; None stands for all namespaces after a change of the file.
struct MapPublisher {
    actor: Actor,
    queue: Arc<Queue<Option<String>>>,
    namespaces: Arc<Collection>,
    maps: Arc<Collection>,
    file: PathBuf,
}

/// Publishes the CA bundle in `file` in each namespace until the process ends.
pub(crate) async fn publish_in_namespaces(state: Arc<ControllerState>, file: PathBuf) {
    let core = |resource| stored::core(&state.api_state, resource);
    let (Ok(namespaces), Ok(maps)) = (core("namespaces"), core("configmaps")) else { return };
    let runner = Runner::new(&state, "root_ca_cert_publisher")
        .watch(&namespaces.items, |event| {
            event.existing_name().filter(|_| !event.entry().is_terminating()).map(Some)
        })
        .watch_named(&maps.items, NAME, |event| Some(Some(event.entry().namespace().to_owned())))
        .watch_files(vec![file.clone()], None);
    let (actor, queue) = (state.controller("root-ca-cert-publisher"), runner.queue());
    runner.run(Arc::new(MapPublisher { actor, queue, namespaces, maps, file })).await;
}

impl Reconcile for MapPublisher {
    type Key = Option<String>;

    async fn reconcile(&self, namespace: &Option<String>) -> Result<Requeue, Status> {
        let Some(namespace) = namespace else {
            let namespaces = stored::all(&self.namespaces).await?;
            namespaces.iter().for_each(|namespace| self.queue.add(Some(namespace.name().to_owned())));
            return Ok(Requeue::No);
        };
        let item = stored::item(&self.namespaces, "", namespace).await?;
        if item.as_deref().and_then(stored::entry).is_some_and(|entry| !entry.is_terminating()) {
            let data = Map::from_iter([(KEY.to_owned(), read_file(&self.file)?.into())]);
            put_config_map(&self.actor, &self.maps, (namespace, NAME), data, true).await?;
        }
        Ok(Requeue::No)
    }
}

/// Adds the CA bundle to Secrets with a service-account token, because a client of the Secret needs the bundle
/// to verify the server.
///
/// The keys are namespace and name of a Secret; None stands for all Secrets after a change of the file.
struct SecretCompletion {
    actor: Actor,
    queue: Arc<Queue<Option<(String, String)>>>,
    secrets: Arc<Collection>,
    token_type: String,
    file: PathBuf,
}

/// Adds the CA bundle in `file` to the Secrets with tokens until the process ends.
pub(crate) async fn complete_secrets(state: Arc<ControllerState>, file: PathBuf) {
    let Ok(secrets) = stored::core(&state.api_state, "secrets") else { return };
    let token_type = state.api_state.names.label_key("service-account-token");
    let watched_type = token_type.clone();
    let runner = Runner::new(&state, "serviceaccount_tokens_secret")
        .watch(&secrets.items, move |event| {
            let secret = event.entry();
            let name = event.existing_name().filter(|_| secret.field("type") == watched_type);
            name.map(|name| Some((secret.namespace().to_owned(), name)))
        })
        .watch_files(vec![file.clone()], None);
    let (actor, queue) = (state.controller("tokens-controller"), runner.queue());
    runner.run(Arc::new(SecretCompletion { actor, queue, secrets, token_type, file })).await;
}

impl Reconcile for SecretCompletion {
    type Key = Option<(String, String)>;

    async fn reconcile(&self, key: &Self::Key) -> Result<Requeue, Status> {
        let Some((namespace, name)) = key else {
            for secret in stored::all(&self.secrets).await? {
                self.queue.add(Some((secret.namespace().to_owned(), secret.name().to_owned())));
            }
            return Ok(Requeue::No);
        };
        let Some(secret) = stored::get(&self.secrets, namespace, name).await? else {
            return Ok(Requeue::No);
        };
        let encoded = STANDARD.encode(read_file(&self.file)?);
        if secret.is_terminating()
            || secret.str_at(&["type"]) != Some(&self.token_type)
            || secret.str_at(&["data", "token"]).is_none()
            || secret.str_at(&["data", KEY]) == Some(encoded.as_str())
        {
            return Ok(Requeue::No);
        }
        let target = Target { collection: &self.secrets, namespace, name, subresource: "" };
        let metadata = json!({"uid": secret.uid(), "resourceVersion": secret.resource_version()});
        let patch = json!({"metadata": metadata, "data": {KEY: encoded}}).to_string();
        ignore_race(self.actor.merge(target, patch.as_bytes()).await)?;
        Ok(Requeue::No)
    }
}
