//! Namespaces: the built-in ones exist, and a namespace that is being deleted is emptied and then goes.
//!
//! # Contract
//!
//! [`ensure_built_in`] runs before anything else writes. [`run`] sees every namespace that is terminating, also those of
//! an earlier process: it deletes the objects of every namespaced kind, waits while finalizers hold some, and then takes
//! the control plane's finalizer off, with which the namespace goes unless others hold it.
//!
//! # Invariants
//!
//! INVARIANT (generic): no kind is named here but the namespace itself; content is what the registry says is namespaced.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::object::Object;
use apimachinery::status::{Reason, Status};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::actor::{Actor, Target};
use super::follow::{Seen, follow};
use crate::plane::{Collection, Plane};
use crate::verbs::deletion::options::DeleteOptions;

/// Namespaces that are emptied at a time.
const AT_A_TIME: usize = 8;
/// After a failure, and at the latest while finalizers hold something.
const RETRY: Duration = Duration::from_secs(2);
/// A create that was admitted before the deletion began is stored by then.
const STRAGGLERS: Duration = Duration::from_secs(1);

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

fn collection(plane: &Plane) -> Result<&Collection, Status> {
    let resource = plane.registry.find("", "v1", "namespaces");
    resource
        .and_then(|resource| plane.collection(resource))
        .ok_or_else(|| Status::internal("namespaces are not served"))
}

/// Follows namespaces, until the process ends.
pub(super) async fn run(plane: Arc<Plane>, own_account: bool) {
    let Ok(namespaces) = collection(&plane) else { return };
    let items = namespaces.items.clone();
    let actor = Actor::controller(plane.clone(), "namespace-controller", own_account);
    let work = Arc::new(Work { actor, busy: Mutex::default(), places: Semaphore::new(AT_A_TIME) });
    let own = built_in(&plane);
    follow(items, move |seen| match seen {
        Seen::There(namespace) if namespace.is_terminating() => work.clone().begin(namespace.name()),
        Seen::Gone(namespace) => {
            if let Some(&name) = own.iter().find(|own| **own == namespace.name()) {
                let actor = Actor::apiserver(plane.clone());
                tokio::spawn(async move { create(&actor, name).await });
            }
        }
        Seen::There(_) => {}
    })
    .await;
}

struct Work {
    actor: Actor,
    /// The namespaces that are being emptied.
    busy: Mutex<HashSet<String>>,
    places: Semaphore,
}

impl Work {
    /// Begins to empty a namespace unless that goes on already.
    fn begin(self: Arc<Self>, name: &str) {
        if !self.busy.lock().insert(name.to_owned()) {
            return;
        }
        let name = name.to_owned();
        tokio::spawn(async move {
            self.terminate(&name).await;
            self.busy.lock().remove(&name);
        });
    }

    async fn terminate(&self, name: &str) {
        loop {
            let step = {
                let Ok(_place) = self.places.acquire().await else { return };
                self.step(name).await
            };
            match step {
                Ok(Step::Gone) => break,
                Ok(Step::Held { collection }) => self.wait_for_change(name, &collection).await,
                Err(status) => {
                    tracing::warn!(namespace = name, reason = %status, "a namespace cannot be emptied yet");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
        tokio::time::sleep(STRAGGLERS).await;
        if let Err(status) = self.sweep(name).await {
            tracing::warn!(namespace = name, reason = %status, "objects of a deleted namespace may be left");
        }
    }

    /// One round: content, then the finalizer.
    async fn step(&self, name: &str) -> Result<Step, Status> {
        let plane = self.actor.plane();
        let namespaces = collection(plane)?;
        let Some(namespace) = self.terminating(namespaces, name).await? else { return Ok(Step::Gone) };
        for content in self.content() {
            if self.is_empty(content, name).await? {
                continue;
            }
            let target = Target { collection: content, namespace: name, name: "", subresource: "" };
            self.actor.delete_collection(target, &DeleteOptions::default(), 64).await?;
        }
        for content in self.content() {
            if !self.is_empty(content, name).await? {
                return Ok(Step::Held { collection: content.resource.key_prefix.clone() });
            }
        }
        let target = Target { collection: namespaces, namespace: "", name, subresource: "finalize" };
        match self.actor.update(target, without_finalizer(namespace, plane.names.api_service)).await {
            Ok(_) => Ok(Step::Gone),
            Err(status) if status.reason == Reason::NotFound => Ok(Step::Gone),
            // Somebody wrote the namespace: the next round reads it anew.
            Err(status) => Err(status),
        }
    }

    /// The namespace, if it is still there and terminating and waits for us.
    async fn terminating(&self, namespaces: &Collection, name: &str) -> Result<Option<Object>, Status> {
        let key = namespaces.resource.key("", name);
        let (item, _) = namespaces.items.get(&key).await.map_err(unavailable)?;
        let Some(item) = item else { return Ok(None) };
        let object = item.entry().map_err(unavailable)?.object(item.revision()).map_err(Status::internal)?;
        let ours = self.actor.plane().names.api_service;
        let waits = finalizers(&object).any(|finalizer| finalizer == ours);
        Ok((object.is_terminating() && waits).then_some(object))
    }

    /// The collections whose objects live in namespaces.
    fn content(&self) -> impl Iterator<Item = &Collection> {
        self.actor.plane().collections().filter(|collection| collection.resource.kind.namespaced)
    }

    async fn is_empty(&self, content: &Collection, namespace: &str) -> Result<bool, Status> {
        let snapshot = content.items.snapshot().await.map_err(unavailable)?;
        let scope = content.resource.key(namespace, "");
        Ok(snapshot.scope(&scope, "").next().is_none())
    }

    /// Until something in the collection changes, which may be the last finalizer that went.
    async fn wait_for_change(&self, namespace: &str, prefix: &str) {
        let Some(content) = self.content().find(|c| c.resource.key_prefix == prefix) else { return };
        let scope = content.resource.key(namespace, "");
        let changed = async {
            let (snapshot, mut watcher) = content.items.snapshot_and_watch(&scope).await.ok()?;
            if snapshot.scope(&scope, "").next().is_some() {
                watcher.next().await.ok()?;
            }
            Some(())
        };
        if let Ok(None) = tokio::time::timeout(RETRY, changed).await {
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Deletes what was stored in the namespace while it went. A namespace made anew under the name keeps what is its own:
    /// that was written after it.
    async fn sweep(&self, name: &str) -> Result<(), Status> {
        let namespaces = collection(self.actor.plane())?;
        let key = namespaces.resource.key("", name);
        let (anew, _) = namespaces.items.get(&key).await.map_err(unavailable)?;
        for content in self.content() {
            let snapshot = content.items.snapshot().await.map_err(unavailable)?;
            for item in snapshot.scope(&content.resource.key(name, ""), "") {
                if anew.as_ref().is_some_and(|namespace| namespace.revision() < item.revision()) {
                    continue;
                }
                let Some((namespace, name)) = content.resource.parse_key(item.key()) else { continue };
                let target = Target { collection: content, namespace, name, subresource: "" };
                self.actor.delete(target, &DeleteOptions::default()).await?;
            }
        }
        Ok(())
    }
}

/// What a round came to.
enum Step {
    /// The namespace is gone, or others hold it.
    Gone,
    /// Objects of a collection are held by finalizers.
    Held {
        /// Its key prefix.
        collection: String,
    },
}

fn finalizers(namespace: &Object) -> impl Iterator<Item = &str> {
    let list = namespace.at(&["spec", "finalizers"]).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str)
}

fn without_finalizer(mut namespace: Object, ours: &str) -> Object {
    let rest: Vec<String> = finalizers(&namespace).filter(|f| *f != ours).map(str::to_owned).collect();
    namespace.set("spec", json!({ "finalizers": rest }));
    namespace
}

fn unavailable(error: impl std::fmt::Display) -> Status {
    Status::unavailable(error.to_string(), 1)
}
