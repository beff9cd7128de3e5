//! The CA bundle `kube-root-ca.crt` in every namespace (requirement A-SA-26) and in token Secrets.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use apimachinery::object::Map;
use apimachinery::status::Status;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use tokio::sync::mpsc;

use super::super::actor::{Actor, Target};
use super::super::reflector::{ObjectEvent, reflect};
use super::super::stored;
use super::{RETRY, put, send_on_change, text};
use crate::server_state::{Collection, ServerState};

/// The name of the ConfigMap under every preset, and its key.
const NAME: &str = "kube-root-ca.crt";
const KEY: &str = "ca.crt";

/// A unit of work.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Task {
    /// Everything, after a change of the file.
    All,
    /// The ConfigMap of a namespace.
    Namespace(String),
    /// A Secret that may contain a token.
    Secret(String, String),
}

struct Publisher<'p> {
    server_state: &'p ServerState,
    namespaces: &'p Collection,
    maps: &'p Collection,
    secrets: &'p Collection,
    /// Writer of the ConfigMaps.
    publisher: Actor,
    /// Writer of the Secrets.
    tokens: Actor,
    file: PathBuf,
}

/// Publishes the content of a file until the process ends.
pub(super) async fn run(server_state: Arc<ServerState>, own_accounts: bool, file: PathBuf) {
    let core = |resource| stored::core(&server_state, resource);
    let (Ok(namespaces), Ok(maps), Ok(secrets)) = (core("namespaces"), core("configmaps"), core("secrets"))
    else {
        return;
    };
    let (wanted, mut queue) = mpsc::unbounded_channel();
    let _watch = send_on_change(vec![file.clone()], wanted.clone(), Task::All);
    let again = wanted.clone();
    let tell = |wanted: &mpsc::UnboundedSender<Task>, task| drop(wanted.send(task));
    let (of_namespaces, of_maps, of_secrets) = (wanted.clone(), wanted.clone(), wanted);
    let follow_namespaces = reflect(namespaces.items.clone(), move |seen| {
        if let ObjectEvent::Exists(namespace) = seen
            && !namespace.is_terminating()
        {
            tell(&of_namespaces, Task::Namespace(namespace.name().to_owned()));
        }
    });
    let follow_maps = reflect(maps.items.clone(), move |seen| {
        let (ObjectEvent::Exists(map) | ObjectEvent::Deleted(map)) = seen;
        if map.name() == NAME {
            tell(&of_maps, Task::Namespace(map.namespace().to_owned()));
        }
    });
    let kind = server_state.names.label_key("service-account-token");
    let follow_secrets = reflect(secrets.items.clone(), move |seen| {
        if let ObjectEvent::Exists(secret) = seen
            && secret.field("type") == kind
        {
            tell(&of_secrets, Task::Secret(secret.namespace().to_owned(), secret.name().to_owned()));
        }
    });
    let publisher = Publisher {
        server_state: &server_state,
        namespaces: &namespaces,
        maps: &maps,
        secrets: &secrets,
        publisher: Actor::controller(server_state.clone(), "root-ca-cert-publisher", own_accounts),
        tokens: Actor::controller(server_state.clone(), "tokens-controller", own_accounts),
        file,
    };
    let work = async {
        // Each failed task has at most one retry timer, however often it is requested meanwhile.
        let (retry, mut failed) = mpsc::unbounded_channel();
        let mut waiting = HashSet::new();
        loop {
            let task = tokio::select! {
                Some(task) = failed.recv() => {
                    waiting.remove(&task);
                    task
                }
                task = queue.recv() => match task {
                    Some(task) => task,
                    None => return,
                },
            };
            if let Err(status) = publisher.perform(&task, &again).await {
                tracing::warn!(?task, reason = %status, "publishing the root CA failed; retrying");
                if waiting.insert(task.clone()) {
                    let retry = retry.clone();
                    tokio::spawn(async move {
                        tokio::time::sleep(RETRY).await;
                        let _ = retry.send(task);
                    });
                }
            }
        }
    };
    tokio::join!(follow_namespaces, follow_maps, follow_secrets, work);
}

impl Publisher<'_> {
    /// Runs a task. `Task::All` queues all parts separately, so that a failing part does not block the
    /// others.
    async fn perform(&self, task: &Task, queue: &mpsc::UnboundedSender<Task>) -> Result<(), Status> {
        let authority = text(&self.file)?;
        match task {
            Task::Namespace(namespace) => self.namespace(namespace, &authority).await,
            Task::Secret(namespace, name) => self.secret(namespace, name, &authority).await,
            Task::All => {
                let scope = |collection: &Collection| collection.items.prefix().to_string();
                for namespace in stored::objects(self.namespaces, &scope(self.namespaces)).await? {
                    let _ = queue.send(Task::Namespace(namespace.name().to_owned()));
                }
                for secret in stored::objects(self.secrets, &scope(self.secrets)).await? {
                    let _ = queue.send(Task::Secret(secret.namespace().to_owned(), secret.name().to_owned()));
                }
                Ok(())
            }
        }
    }

    async fn namespace(&self, namespace: &str, authority: &str) -> Result<(), Status> {
        let home = self.namespaces.items.get(&self.namespaces.resource.key("", namespace)).await;
        let (home, _) = home.map_err(stored::unavailable)?;
        let stays = home.as_deref().and_then(stored::entry).is_some_and(|entry| !entry.is_terminating());
        if !stays {
            return Ok(());
        }
        let data = Map::from_iter([(KEY.to_owned(), authority.into())]);
        put(&self.publisher, self.maps, (namespace, NAME), data, true).await
    }

    /// Adds the CA bundle to a Secret that has a token; clients use both together.
    async fn secret(&self, namespace: &str, name: &str, authority: &str) -> Result<(), Status> {
        let item = self.secrets.items.get(&self.secrets.resource.key(namespace, name)).await;
        let (item, _) = item.map_err(stored::unavailable)?;
        let Some(secret) = item.as_deref().and_then(stored::object) else { return Ok(()) };
        let encoded = STANDARD.encode(authority);
        let is_token =
            secret.str_at(&["type"]) == Some(&self.server_state.names.label_key("service-account-token"));
        let filled = secret.str_at(&["data", "token"]).is_some();
        if secret.is_terminating()
            || !is_token
            || !filled
            || secret.str_at(&["data", KEY]) == Some(encoded.as_str())
        {
            return Ok(());
        }
        let target = Target { collection: self.secrets, namespace, name, subresource: "" };
        let patch = json!({"metadata": {"uid": secret.uid()}, "data": {KEY: encoded}}).to_string();
        match self.tokens.merge(target, patch.as_bytes()).await {
            Err(status) if !matches!(status.code, 404 | 409) => Err(status),
            _ => Ok(()),
        }
    }
}
