//! The CA bundle `kube-root-ca.crt` in every namespace (requirement A-SA-26) and in token Secrets.

use std::path::PathBuf;
use std::sync::Arc;

use apimachinery::object::Map;
use apimachinery::status::Status;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use tokio::sync::mpsc;

use super::super::actor::{Actor, Target, ignore_race};
use super::super::reflector::{ObjectEvent, reflect, reflect_named};
use super::super::retries::RetryQueue;
use super::super::stored;
use super::{RETRY, put_config_map, read_file, send_on_change};
use verbs::{ApiState, Collection};

use crate::ControllerState;

/// Name of the ConfigMap. It is the same under both names presets.
const NAME: &str = "kube-root-ca.crt";
/// The key of the CA bundle in the ConfigMap and in token Secrets.
const KEY: &str = "ca.crt";

/// A unit of work of the publisher.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Task {
    /// All namespaces and Secrets, at the start and after a change of the file.
    All,
    /// The ConfigMap of the namespace with this name.
    Namespace(String),
    /// The Secret with this namespace and name, which may contain a token.
    Secret(String, String),
}

/// The objects that get the CA bundle.
#[derive(Clone, Copy, Debug)]
pub(super) struct Targets {
    /// The ConfigMap of each namespace.
    pub(super) maps: bool,
    /// Secrets with a service-account token.
    pub(super) secrets: bool,
}

struct Publisher<'p> {
    api_state: &'p ApiState,
    namespaces: &'p Collection,
    maps: &'p Collection,
    secrets: &'p Collection,
    /// Identity that writes the ConfigMaps.
    publisher_actor: Actor,
    /// Identity that writes the Secrets.
    tokens_actor: Actor,
    file: PathBuf,
    targets: Targets,
}

/// Publishes the CA bundle in `file` until the process ends.
pub(super) async fn run(state: Arc<ControllerState>, file: PathBuf, targets: Targets) {
    let api_state = &*state.api_state;
    let core = |resource| stored::core(api_state, resource);
    let (Ok(namespaces), Ok(maps), Ok(secrets)) = (core("namespaces"), core("configmaps"), core("secrets"))
    else {
        return;
    };
    let (task_sender, tasks) = mpsc::unbounded_channel();
    let _watch = send_on_change(vec![file.clone()], task_sender.clone(), Task::All);
    let requeue_sender = task_sender.clone();
    let send_task = |task_sender: &mpsc::UnboundedSender<Task>, task| drop(task_sender.send(task));
    let (namespace_sender, map_sender, secret_sender) =
        (task_sender.clone(), task_sender.clone(), task_sender);
    let follow_namespaces = reflect(namespaces.items.clone(), move |event| {
        if let ObjectEvent::Exists(namespace) = event
            && targets.maps
            && !namespace.is_terminating()
        {
            send_task(&namespace_sender, Task::Namespace(namespace.name().to_owned()));
        }
    });
    let follow_maps = reflect_named(maps.items.clone(), NAME, move |event| {
        let (ObjectEvent::Exists(map) | ObjectEvent::Deleted(map)) = event;
        if targets.maps {
            send_task(&map_sender, Task::Namespace(map.namespace().to_owned()));
        }
    });
    let token_type = api_state.names.label_key("service-account-token");
    let follow_secrets = reflect(secrets.items.clone(), move |event| {
        if let ObjectEvent::Exists(secret) = event
            && targets.secrets
            && secret.field("type") == token_type
        {
            send_task(&secret_sender, Task::Secret(secret.namespace().to_owned(), secret.name().to_owned()));
        }
    });
    let publisher = Publisher {
        api_state,
        namespaces: &namespaces,
        maps: &maps,
        secrets: &secrets,
        publisher_actor: state.controller("root-ca-cert-publisher"),
        tokens_actor: state.controller("tokens-controller"),
        file,
        targets,
    };
    let work = async {
        let mut queue = RetryQueue::new(tasks, RETRY);
        while let Some(task) = queue.next().await {
            match publisher.perform(&task, &requeue_sender).await {
                Ok(()) => queue.forget_failures(&task),
                Err(status) => {
                    tracing::warn!(?task, reason = %status, "publishing the root CA failed; retrying");
                    queue.retry(task);
                }
            }
        }
    };
    tokio::join!(follow_namespaces, follow_maps, follow_secrets, work);
}

impl Publisher<'_> {
    /// Runs a task. `Task::All` queues a task for each namespace and Secret, so a failure does not block the
    /// other tasks.
    async fn perform(&self, task: &Task, queue: &mpsc::UnboundedSender<Task>) -> Result<(), Status> {
        let ca_bundle = read_file(&self.file)?;
        match task {
            Task::Namespace(namespace) => self.publish_in_namespace(namespace, &ca_bundle).await,
            Task::Secret(namespace, name) => self.add_to_secret(namespace, name, &ca_bundle).await,
            Task::All => {
                if self.targets.maps {
                    for namespace in stored::all(self.namespaces).await? {
                        let _ = queue.send(Task::Namespace(namespace.name().to_owned()));
                    }
                }
                if self.targets.secrets {
                    for secret in stored::all(self.secrets).await? {
                        let (namespace, name) = (secret.namespace().to_owned(), secret.name().to_owned());
                        let _ = queue.send(Task::Secret(namespace, name));
                    }
                }
                Ok(())
            }
        }
    }

    async fn publish_in_namespace(&self, namespace: &str, ca_bundle: &str) -> Result<(), Status> {
        let namespace_item = stored::item(self.namespaces, "", namespace).await?;
        let is_active =
            namespace_item.as_deref().and_then(stored::entry).is_some_and(|entry| !entry.is_terminating());
        if !is_active {
            return Ok(());
        }
        let data = Map::from_iter([(KEY.to_owned(), ca_bundle.into())]);
        put_config_map(&self.publisher_actor, self.maps, (namespace, NAME), data, true).await
    }

    /// Adds the CA bundle to a Secret with a service-account token, because a client of the Secret needs the
    /// bundle to verify the server.
    async fn add_to_secret(&self, namespace: &str, name: &str, ca_bundle: &str) -> Result<(), Status> {
        let Some(secret) = stored::get(self.secrets, namespace, name).await? else { return Ok(()) };
        let encoded = STANDARD.encode(ca_bundle);
        let is_token =
            secret.str_at(&["type"]) == Some(&self.api_state.names.label_key("service-account-token"));
        let has_token = secret.str_at(&["data", "token"]).is_some();
        if secret.is_terminating()
            || !is_token
            || !has_token
            || secret.str_at(&["data", KEY]) == Some(encoded.as_str())
        {
            return Ok(());
        }
        let target = Target { collection: self.secrets, namespace, name, subresource: "" };
        let patch = json!({"metadata": {"uid": secret.uid()}, "data": {KEY: encoded}}).to_string();
        ignore_race(self.tokens_actor.merge(target, patch.as_bytes()).await)
    }
}
