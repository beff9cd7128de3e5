//! Deletion of a namespace: deletes its objects, reports those that remain, finally removes apid's finalizer.
//!
//! # Reference
//!
//! Requirements D-NAME-10 and D-DEL-12. Pods are deleted first, and everything else waits until no pod is
//! left. Objects are deleted with background propagation, since their dependents are in the namespace, too.
//! Objects that cannot be decoded stay, and their number is in the conditions of the namespace. The namespace
//! stays until they are gone. All other objects are deleted. See [`remote`] for the objects of other servers.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use apimachinery::object::Object;
use apimachinery::status::{Reason, Status};
use apimachinery::time;
use futures_util::future::join_all;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::conditions::RoundOutcome;
use super::{Work, background_options, collection, remote};
use crate::actor::{Actor, Target, ignore_race, is_normal};
use crate::queue::Queue;
use crate::runner::Requeue;
use crate::stored;
use verbs::deletion::options::{DeleteOptions, Preconditions};
use verbs::{ApiState, Collection, Snapshot};

/// Number of objects of a kind that are deleted concurrently; concurrent deletions share the fsyncs of the
/// store.
const OBJECT_CONCURRENCY: usize = 128;
/// Maximum wait for a change of the objects that remain after a round.
const MAX_ROUND_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum interval of the rounds that wait for other servers, whose objects cause no notification.
const MAX_REMOTE_INTERVAL: Duration = Duration::from_secs(10);
/// Minimum pause after a round with remaining objects; the pause is never shorter than that round.
const MIN_ROUND_INTERVAL: Duration = Duration::from_millis(100);
/// Delay of the final sweep, which deletes objects whose creation was admitted before the deletion of the
/// namespace. After this delay, these objects are stored.
const SWEEP_DELAY: Duration = Duration::from_secs(1);

/// The deletion of the content of terminating namespaces.
pub(super) struct NamespaceDeletion {
    actor: Actor,
    queue: Arc<Queue<Work>>,
    /// The namespaces whose deletion is in progress, including those that wait for the next round, with the failure of
    /// the last round that the log has.
    in_progress: Mutex<HashMap<String, String>>,
    /// The resources whose objects could not be read in the last round.
    unknown_content: Mutex<HashSet<String>>,
    /// Number of sweeps. Each deletion has a sweep of its own, also of a namespace with the same name.
    sweeps: AtomicU64,
    /// The tasks that wait for changes of remaining objects. They end with the controller.
    waits: Mutex<JoinSet<()>>,
}

impl NamespaceDeletion {
    /// Creates the state of the deletions. They write as `actor` and add their next rounds to `queue`.
    pub(super) fn new(actor: Actor, queue: Arc<Queue<Work>>) -> Self {
        NamespaceDeletion {
            actor,
            queue,
            in_progress: Mutex::default(),
            unknown_content: Mutex::default(),
            sweeps: AtomicU64::new(0),
            waits: Mutex::default(),
        }
    }

    /// Whether the deletion of a namespace is in progress. A change of this namespace then needs no new round.
    pub(super) fn is_in_progress(&self, name: &str) -> bool {
        self.in_progress.lock().contains_key(name)
    }

    /// Runs one round for a terminating namespace. If objects remain, the next round follows their next change.
    /// Otherwise the sweep follows.
    pub(super) async fn empty(&self, name: &str) -> Result<Requeue, Status> {
        let api_state = self.actor.api_state();
        let started_at = api_state.clock.monotonic();
        self.in_progress.lock().entry(name.to_owned()).or_default();
        let result = match self.run_round(name).await {
            Ok(result) => {
                self.in_progress.lock().insert(name.to_owned(), String::new());
                result
            }
            // Changes of the namespace add no round while its deletion is in progress, so the next one comes soon.
            Err(status) => {
                if !is_normal(&status) {
                    self.log_failure(name, &status);
                }
                return Ok(Requeue::Poll);
            }
        };
        match result {
            RoundResult::Gone => {
                let number = self.sweeps.fetch_add(1, Ordering::Relaxed);
                self.queue.add_after(Work::Sweep(name.to_owned(), number), SWEEP_DELAY);
                self.in_progress.lock().remove(name);
                // The namespace may have been created and deleted again during the round.
                let namespaces = collection(api_state)?;
                let is_waiting = self.find_terminating(&namespaces, name).await?.is_some();
                Ok(if is_waiting { Requeue::After(Duration::ZERO) } else { Requeue::No })
            }
            RoundResult::WaitsForServers => Ok(Requeue::BackoffUpTo(MAX_REMOTE_INTERVAL)),
            RoundResult::Blocked { key_prefix } => {
                let duration = api_state.clock.monotonic().saturating_sub(started_at);
                let (api_state, queue, name) =
                    (Arc::clone(api_state), Arc::clone(&self.queue), name.to_owned());
                let mut waits = self.waits.lock();
                while waits.try_join_next().is_some() {}
                waits.spawn(async move {
                    tokio::time::sleep(MIN_ROUND_INTERVAL.max(duration)).await;
                    wait_for_change(&api_state, &name, &key_prefix).await;
                    queue.add(Work::Empty(name));
                });
                Ok(Requeue::No)
            }
        }
    }

    /// Runs one round: deletes the objects, writes the conditions, and removes the finalizer if nothing
    /// remains.
    async fn run_round(&self, name: &str) -> Result<RoundResult, Status> {
        let namespaces = collection(self.actor.api_state())?;
        if self.find_terminating(&namespaces, name).await?.is_none() {
            return Ok(RoundResult::Gone);
        }
        let Content { outcome, first_blocked, has_failed } = self.delete_content(name).await?;
        // The deletions may have taken long, so the namespace is read again.
        let Some(namespace) = self.find_terminating(&namespaces, name).await? else {
            return Ok(RoundResult::Gone);
        };
        let namespace = match self.write_conditions(&namespaces, name, namespace, &outcome).await {
            Ok(namespace) => namespace,
            Err(status) if status.reason == Reason::NotFound => return Ok(RoundResult::Gone),
            Err(status) => return Err(status),
        };
        if !outcome.is_empty() {
            let failures = outcome.failures.join(", ");
            return match first_blocked {
                Some(key_prefix) => Ok(RoundResult::Blocked { key_prefix }),
                None if has_failed => Err(Status::internal(failures)),
                None => Ok(RoundResult::WaitsForServers),
            };
        }
        let target = Target { collection: &namespaces, namespace: "", name, subresource: "finalize" };
        let own_finalizer = self.actor.api_state().names.api_service;
        match self.actor.update(target, without_finalizer(namespace, own_finalizer)).await {
            Ok(_) => Ok(RoundResult::Gone),
            Err(status) if status.reason == Reason::NotFound => Ok(RoundResult::Gone),
            // The namespace was changed meanwhile: the next round reads it again.
            Err(status) => Err(status),
        }
    }

    /// Deletes the objects of a namespace: first its pods, then the objects of all other kinds, then those of other
    /// servers.
    async fn delete_content(&self, name: &str) -> Result<Content, Status> {
        let discovered = self.actor.aggregation().discover();
        let mut outcome = RoundOutcome {
            undiscovered: remote::undiscovered(&discovered.unknown),
            ..RoundOutcome::default()
        };
        let is_pods = |content: &Collection| {
            content.kind.internal().group_resource.group.is_empty()
                && content.kind.internal().plural() == "pods"
        };
        let (pods, others): (Vec<_>, Vec<_>) =
            namespaced_collections(self.actor.api_state()).partition(|content| is_pods(content));
        let mut first_blocked = None;
        for (is_first, stage) in [(true, pods), (false, others)] {
            let failures = join_all(stage.iter().map(|content| self.delete_all(content, name))).await;
            outcome.failures.extend(failures.into_iter().flatten());
            let mut is_blocked = !outcome.failures.is_empty();
            for content in stage {
                let group_resource = &content.kind.internal().group_resource;
                let remaining = self.count_remaining(&content, name, &mut outcome.finalizers).await;
                let Remaining { readable, unreadable } = match remaining {
                    Ok(remaining) => remaining,
                    // The other content is known: users read it in the conditions.
                    Err(error) => {
                        let failure = self.record_unknown(&content, &error);
                        if !outcome.failures.contains(&failure) {
                            outcome.failures.push(failure);
                        }
                        is_blocked = true;
                        continue;
                    }
                };
                if readable + unreadable > 0 {
                    outcome.remaining.insert(
                        format!("{}.{}", group_resource.resource, group_resource.group),
                        readable + unreadable,
                    );
                    first_blocked.get_or_insert_with(|| content.kind.key_prefix.clone());
                }
                if unreadable > 0 {
                    outcome.failures.push(format!("{unreadable} of {group_resource} cannot be read"));
                }
                is_blocked |= readable > 0;
            }
            // Pods that cannot be decoded are reported, but the other kinds do not wait for their deletion.
            if is_first && is_blocked {
                let has_failed = !outcome.failures.is_empty();
                return Ok(Content { outcome, first_blocked, has_failed });
            }
        }
        let has_failed = !outcome.failures.is_empty();
        remote::delete_content(&self.actor, &discovered, name, &mut outcome).await;
        Ok(Content { outcome, first_blocked, has_failed })
    }

    /// Deletes the objects of one kind in a namespace. Returns the text of the error, if any.
    async fn delete_all(&self, content: &Collection, namespace: &str) -> Option<String> {
        let snapshot = match self.newest_content(content).await {
            Ok(snapshot) => snapshot,
            Err(error) => return Some(self.record_unknown(content, &error)),
        };
        let scope = content.kind.key(namespace, "");
        let mut items = snapshot.scope(&scope, "").peekable();
        items.peek()?;
        if items.any(|item| item.entry().is_err()) {
            // `deletecollection` fails at an undecodable object, so the other objects are deleted one by one.
            return self.delete_each(content, namespace, |_| true).await.err().map(|status| status.message);
        }
        let target = Target { collection: content, namespace, name: "", subresource: "" };
        let options = background_options();
        let result = self.actor.delete_collection(target, &options, OBJECT_CONCURRENCY).await;
        result.err().map(|status| status.message)
    }

    /// The newest objects of one kind.
    async fn newest_content(&self, content: &Collection) -> storage::Result<Snapshot> {
        stored::catch_up_with_separate(self.actor.api_state(), content).await?;
        let snapshot = content.items.snapshot().await?;
        let resource = content.kind.internal().group_resource.to_string();
        if self.unknown_content.lock().remove(&resource) {
            tracing::info!(resource, "the content of namespaces is known again");
        }
        Ok(snapshot)
    }

    /// Records that the objects of a kind cannot be read. Returns the text for the conditions of the namespace.
    ///
    /// Users read these conditions, so the reason of a separate store, which names members of etcd, is in the log only.
    fn record_unknown(&self, content: &Collection, error: &storage::Error) -> String {
        let resource = content.kind.internal().group_resource.to_string();
        if self.unknown_content.lock().insert(resource.clone()) {
            tracing::warn!(resource, %error, "the content of namespaces is not known; retrying");
        }
        match self.actor.api_state().separate_store_of(&content.kind) {
            Some(_) => format!("the etcd cluster of {resource} does not answer"),
            None => error.to_string(),
        }
    }

    /// Writes the failure of a round to the log, unless the last round of the namespace had the same.
    fn log_failure(&self, namespace: &str, status: &Status) {
        let reason = status.to_string();
        let last = self.in_progress.lock().insert(namespace.to_owned(), reason.clone());
        if last.is_none_or(|last| last != reason) {
            tracing::warn!(namespace, reason, "deleting a namespace failed; retrying");
        }
    }

    /// Deletes the decodable objects of one kind for which `is_selected` returns true, one by one.
    ///
    /// An object that is removed or changed meanwhile is not a failure.
    async fn delete_each(
        &self,
        content: &Collection,
        namespace: &str,
        is_selected: impl Fn(&Object) -> bool,
    ) -> Result<(), Status> {
        let mut result = Ok(());
        for object in stored::objects(content, &content.kind.key(namespace, "")).await? {
            if !is_selected(&object) {
                continue;
            }
            let target = Target { collection: content, namespace, name: object.name(), subresource: "" };
            let uid = Some(object.uid().to_owned());
            let options = DeleteOptions {
                preconditions: Preconditions { uid, resource_version: None },
                ..background_options()
            };
            if let Err(status) = ignore_race(self.actor.delete(target, &options).await) {
                result = Err(status);
            }
        }
        result
    }

    /// Writes the conditions into the namespace if they changed.
    async fn write_conditions(
        &self,
        namespaces: &Collection,
        name: &str,
        namespace: Object,
        outcome: &RoundOutcome,
    ) -> Result<Object, Status> {
        let now = time::time(self.actor.api_state().clock.now());
        let Some(updated) = outcome.apply_conditions(&namespace, &now) else { return Ok(namespace) };
        let target = Target { collection: namespaces, namespace: "", name, subresource: "status" };
        self.actor.update(target, updated).await?.object.object()
    }

    /// Returns the namespace if it is terminating and still has apid's finalizer.
    async fn find_terminating(&self, namespaces: &Collection, name: &str) -> Result<Option<Object>, Status> {
        let Some(object) = stored::get_decodable(namespaces, "", name).await? else { return Ok(None) };
        let own_finalizer = self.actor.api_state().names.api_service;
        let has_own_finalizer = finalizers(&object).any(|finalizer| finalizer == own_finalizer);
        Ok((object.is_terminating() && has_own_finalizer).then_some(object))
    }

    /// Counts the remaining objects of one kind in a namespace. Adds the numbers of their finalizers to
    /// `finalizers`.
    async fn count_remaining(
        &self,
        content: &Collection,
        namespace: &str,
        finalizers: &mut BTreeMap<String, usize>,
    ) -> storage::Result<Remaining> {
        let snapshot = content.items.snapshot().await?;
        let scope = content.kind.key(namespace, "");
        let mut remaining = Remaining::default();
        for item in snapshot.scope(&scope, "") {
            let Some(object) = stored::object(item) else {
                remaining.unreadable += 1;
                continue;
            };
            remaining.readable += 1;
            for finalizer in object.finalizers() {
                *finalizers.entry(finalizer.to_owned()).or_default() += 1;
            }
        }
        Ok(remaining)
    }

    /// Deletes objects that were stored while the namespace was being deleted. If a namespace of the name
    /// exists again, the objects created since its creation stay.
    pub(super) async fn sweep(&self, name: &str) -> Result<(), Status> {
        let namespaces = collection(self.actor.api_state())?;
        let current_namespace = stored::get_decodable(&namespaces, "", name).await?;
        let is_leftover = |object: &Object| {
            current_namespace.as_ref().is_none_or(|namespace| is_older_than_namespace(object, namespace))
        };
        let mut result = Ok(());
        for content in namespaced_collections(self.actor.api_state()) {
            let read = stored::catch_up_with_separate(self.actor.api_state(), &content).await;
            let read = read.map_err(stored::unavailable);
            result = result.and(read).and(self.delete_each(&content, name, is_leftover).await);
        }
        result
    }
}

/// Returns the collections of all namespaced kinds.
fn namespaced_collections(api_state: &ApiState) -> impl Iterator<Item = Arc<Collection>> + use<> {
    let collections = api_state.kinds.collections().into_iter();
    collections.filter(|collection| collection.kind.namespaced)
}

/// Waits until an object of a kind changes in the namespace, at most [`MAX_ROUND_INTERVAL`]. Returns at once if
/// no object of the kind is left. `prefix` is the key prefix of the kind.
async fn wait_for_change(api_state: &ApiState, namespace: &str, prefix: &str) {
    let content = namespaced_collections(api_state).find(|content| content.kind.key_prefix == prefix);
    let Some(content) = content else { return };
    let scope = content.kind.key(namespace, "");
    let change = async {
        let (snapshot, mut watcher) = content.items.snapshot_and_watch(&scope).await.ok()?;
        if snapshot.scope(&scope, "").next().is_some() {
            watcher.next().await.ok()?;
        }
        Some(())
    };
    if let Ok(None) = tokio::time::timeout(MAX_ROUND_INTERVAL, change).await {
        tokio::time::sleep(MAX_ROUND_INTERVAL).await;
    }
}

/// Numbers of remaining objects of one kind in a namespace.
#[derive(Default)]
struct Remaining {
    readable: usize,
    /// Objects that cannot be decoded. They stay until a client deletes them with the delete option
    /// `ignoreStoreReadErrorWithClusterBreakingPotential`.
    unreadable: usize,
}

/// Whether an object was created before `namespace`, so it belongs to an earlier namespace of the same name.
///
/// The revision of the namespace cannot decide this, because it grows with each change of the namespace. An
/// object that was created in the same second counts as newer.
fn is_older_than_namespace(object: &Object, namespace: &Object) -> bool {
    let created_at = |object: &Object| time::parse(object.meta_str("creationTimestamp"));
    matches!((created_at(object), created_at(namespace)), (Some(object), Some(namespace)) if object < namespace)
}

/// The content of a namespace after a round.
struct Content {
    outcome: RoundOutcome,
    /// The key prefix of the first kind of this server with remaining objects.
    first_blocked: Option<String>,
    /// Whether a deletion at this server failed.
    has_failed: bool,
}

/// The work that a round left.
enum RoundResult {
    /// No work is left: the namespace is gone, or only finalizers of other components block its deletion.
    Gone,
    /// Objects remain, because of finalizers, grace periods or failed deletions.
    Blocked {
        /// The key prefix of the first kind with remaining objects.
        key_prefix: String,
    },
    /// Only objects of other servers remain, or the resources of such a server are not known.
    WaitsForServers,
}

/// Returns the finalizers in `spec.finalizers` of a namespace.
fn finalizers(namespace: &Object) -> impl Iterator<Item = &str> {
    let list = namespace.at(&["spec", "finalizers"]).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str)
}

fn without_finalizer(mut namespace: Object, own_finalizer: &str) -> Object {
    let remaining: Vec<String> =
        finalizers(&namespace).filter(|f| *f != own_finalizer).map(str::to_owned).collect();
    namespace.set("spec", json!({ "finalizers": remaining }));
    namespace
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweep_keeps_objects_newer_than_recreated_namespace() {
        let object_created_at = |time: &str| {
            Object::from_value(json!({"metadata": {"name": "x", "creationTimestamp": time}})).unwrap()
        };
        let namespace = object_created_at("2026-01-01T00:00:10Z");
        for (time, want) in [
            ("2026-01-01T00:00:09Z", true),
            ("2026-01-01T00:00:10Z", false),
            ("2026-01-01T00:00:11Z", false),
            ("2025-12-31T23:59:59Z", true),
            ("", false),
        ] {
            assert_eq!(is_older_than_namespace(&object_created_at(time), &namespace), want, "{time:?}");
        }
    }
}
