//! The garbage collector: deletes objects whose owners are gone (requirement D-DEL-11).
//!
//! # Contract
//!
//! The garbage collector deletes an object whose owners are all gone. If some owners exist, it removes the
//! references to the missing owners. An owner that is deleted in the foreground stays until its blocking
//! dependents are gone. An owner that is deleted with propagation `Orphan` stays until no object references
//! it. All served kinds take part as owners, and all except events as dependents. The garbage collector writes through
//! the verbs, as the service account `generic-garbage-collector` of the system namespace or with the shared
//! identity.
//!
//! [`feed`] maintains an [`index`] of references from the changes of the store, in order. Objects to process
//! go into the queue of the runner. Workers process the objects by their current state: [`examine`] for dependents,
//! [`owner_deletion`] for owners.
//!
//! # Invariants
//!
//! INVARIANT (no living owner): a dependent is deleted only if each owner was absent from the store, or
//! waiting for its dependents. The collector looks up the owners after the read of the dependent; only the cached
//! state of an owner at another server may be older. The deletion applies only to the revision that was read.
//! INVARIANT (no missed dependents): see [`feed`].
//! INVARIANT (no own state): all work follows from stored objects, so the collector continues after a restart.
//!
//! # Reference
//!
//! Kubernetes' garbage collector, as far as clients can observe its rules. A reference across namespaces
//! counts as absent; a reference from a cluster-scoped object to a namespaced kind is never resolved. Both
//! cause an Event. Dependents of kinds that are not served stay.
//!
//! The collector asks the server behind an APIService for the owners of its kinds; see [`remote_owners`]. Kubernetes
//! watches these servers. Unlike Kubernetes, the collector asks at an interval, and does not delete dependents that
//! these servers store.

mod examine;
mod feed;
mod index;
mod owner_deletion;
mod owners;
mod ownership_data;
mod remote_owners;
mod report;
mod unserved;

use std::sync::Arc;
use std::time::Duration;

use apimachinery::status::{Reason, Status};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use parking_lot::Mutex;
use tokio::sync::watch;

use self::index::{Index, WorkItem};
use self::remote_owners::RemoteOwners;
use self::report::ReportedReferences;
use self::unserved::UnservedWork;
use super::actor::{Actor, Target, is_not_leading};
use super::queue::Queue;
use super::runner::{Reconcile, Requeue, Runner};
use verbs::{ApiState, Collection, Item};

use crate::ControllerState;

/// Name of the controller's service account.
const ACCOUNT: &str = "generic-garbage-collector";
/// Number of units of work that are processed concurrently.
const WORKERS: usize = 16;
/// Longest pause between two examinations of an object that waits for answers about owners at other servers.
const MAX_PENDING_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum number of dependents of one owner that are processed concurrently.
const DEPENDENT_CONCURRENCY: usize = 32;
/// Number of dependents of one owner that are read from the index at once.
const INDEX_BATCH: usize = 256;

/// Runs the garbage collector until the process ends. It starts when authd can decide requests.
pub(super) async fn run(state: Arc<ControllerState>) {
    state.api_state.auth.connection().wait_until_healthy().await;
    let runner = Runner::new(&state, "garbage_collector").workers(WORKERS);
    let collector = Arc::new(Collector::new(&state, runner.queue()));
    let (loaded_sender, mut loaded_receiver) = watch::channel(false);
    let follow = feed::follow(Arc::clone(&collector), move || {
        loaded_sender.send_replace(true);
    });
    let work = async {
        // INVARIANT (no missed dependents): workers start after the index is complete.
        if loaded_receiver.wait_for(|loaded| *loaded).await.is_ok() {
            tokio::join!(runner.run(Arc::clone(&collector)), collector.follow_kinds());
        }
    };
    tokio::join!(follow, work);
}

/// State of the garbage collector.
struct Collector {
    actor: Actor,
    index: Mutex<Index>,
    queue: Arc<Queue<WorkItem>>,
    /// The newest revision in the index.
    progress: watch::Sender<u64>,
    reported: Mutex<ReportedReferences>,
    unserved: UnservedWork,
    remote_owners: RemoteOwners,
    /// The number of changes of the served kinds so far.
    kinds_changes: watch::Receiver<u64>,
    /// Key prefix of events, which the collector ignores.
    events_prefix: Option<String>,
}

/// The reason why work was not completed; the work is retried.
#[derive(Debug)]
enum WorkError {
    /// Another client changed the object after it was read.
    Conflict,
    /// This apid does not lead any more. The collector of the next leader does the work.
    NotLeading,
    /// The kind of the object or of an owner is not served. The work is retried when the served kinds change.
    NotServed,
    /// A request for an owner to another server is pending. The work is retried after a short back-off.
    Pending,
    /// Another failure; contains its text.
    Failed(String),
}

impl From<Status> for WorkError {
    fn from(status: Status) -> Self {
        match status.reason {
            Reason::Conflict => WorkError::Conflict,
            _ if is_not_leading(&status) => WorkError::NotLeading,
            _ => WorkError::Failed(status.to_string()),
        }
    }
}

/// Repeats an attempt after each conflict with another write. Other tasks run between two attempts.
async fn repeat_conflicts<T, F>(mut attempt: impl FnMut() -> F) -> Result<T, WorkError>
where
    F: Future<Output = Result<T, WorkError>>,
{
    loop {
        match attempt().await {
            // An attempt may fail without a wait, so the loop yields.
            Err(WorkError::Conflict) => tokio::task::yield_now().await,
            other => return other,
        }
    }
}

impl From<storage::Error> for WorkError {
    fn from(error: storage::Error) -> Self {
        WorkError::Failed(error.to_string())
    }
}

/// The object that a unit of work processes.
struct Subject<'a> {
    collection: Arc<Collection>,
    namespace: &'a str,
    name: &'a str,
    item: Arc<Item>,
}

impl Subject<'_> {
    fn target(&self) -> Target<'_> {
        Target { collection: &self.collection, namespace: self.namespace, name: self.name, subresource: "" }
    }
}

impl Reconcile for Collector {
    type Key = WorkItem;

    async fn reconcile(&self, work: &WorkItem) -> Result<Requeue, Status> {
        let before = *self.kinds_changes.borrow();
        let result = match work {
            WorkItem::Examine(key) => self.examine(key).await,
            WorkItem::Dependents(owner) => self.examine_dependents(*owner).await.map(|()| Requeue::No),
            WorkItem::OwnerDeletion(key) => self.process_owner_deletion(key).await.map(|()| Requeue::No),
            WorkItem::Finish(key) => self.finish(key).await.map(|()| Requeue::No),
        };
        Ok(match result {
            Ok(next) => next,
            Err(WorkError::NotServed) => {
                self.defer(work, before).await;
                Requeue::No
            }
            Err(WorkError::Conflict | WorkError::NotLeading) => Requeue::Backoff,
            Err(WorkError::Pending) => Requeue::BackoffUpTo(MAX_PENDING_INTERVAL),
            Err(WorkError::Failed(reason)) => {
                // One cause can fail the work on very many objects, so the level is `debug`.
                tracing::debug!(?work, reason, "garbage collector work failed; retrying");
                Requeue::Backoff
            }
        })
    }
}

impl Collector {
    fn new(state: &Arc<ControllerState>, queue: Arc<Queue<WorkItem>>) -> Self {
        let api_state = &state.api_state;
        let events_prefix = api_state
            .kinds
            .registry()
            .find_stored("", "v1", "events")
            .map(|events| events.key_prefix.clone());
        let kinds_changes = api_state.kinds.changes();
        Collector {
            queue,
            actor: state.controller(ACCOUNT),
            index: Mutex::default(),
            progress: watch::Sender::new(0),
            reported: Mutex::default(),
            unserved: UnservedWork::default(),
            remote_owners: RemoteOwners::new(Arc::clone(&api_state.clock)),
            kinds_changes,
            events_prefix,
        }
    }

    fn api_state(&self) -> &Arc<ApiState> {
        self.actor.api_state()
    }

    fn is_ignored(&self, key: &str) -> bool {
        self.events_prefix.as_deref().is_some_and(|prefix| key.starts_with(prefix))
    }

    /// Returns the namespace in a storage key; `""` for a cluster-scoped or unknown kind.
    fn namespace(&self, key: &str) -> String {
        let registry = self.api_state().kinds.registry();
        let resource = registry.of_key(key);
        let parsed_key = resource.and_then(|resource| resource.parse_key(key));
        parsed_key.map_or_else(String::new, |(namespace, _)| namespace.to_owned())
    }

    /// Returns the object at a key, if it exists.
    ///
    /// # Errors
    ///
    /// The kind is not served, or the store cannot be read.
    async fn subject<'a>(&'a self, key: &'a str) -> Result<Option<Subject<'a>>, WorkError> {
        let kinds = self.api_state().kinds.get();
        let collection = kinds.registry.of_key(key).and_then(|resource| kinds.collection(resource));
        let collection = collection.cloned().ok_or(WorkError::NotServed)?;
        let Some((namespace, name)) = collection.kind.parse_key(key) else { return Ok(None) };
        let (item, _) = collection.items.get(key).await?;
        Ok(item.map(|item| Subject { collection, namespace, name, item }))
    }

    /// Defers work until the served kinds change.
    ///
    /// `before`: the number of changes of the served kinds before the work began. If the kinds have changed
    /// since then, the work is queued again at once. The work on a deleted object is dropped.
    async fn defer(&self, work: &WorkItem, before: u64) {
        self.unserved.add(work.clone());
        if *self.kinds_changes.borrow() != before {
            if self.unserved.remove(work) {
                self.queue.add(work.clone());
            }
            return;
        }
        // `feed` removes the work on an object that is deleted from now on. Work on an object that was
        // deleted before is removed here.
        if let Some(key) = work.key()
            && let Ok(None) = self.api_state().store.get(key, None).await
        {
            self.unserved.remove_object(key);
        }
    }

    /// Queues the deferred work again after each change of the served kinds, or of the APIs of other servers.
    async fn follow_kinds(&self) {
        let mut changes = self.kinds_changes.clone();
        let mut remote_changes = self.actor.aggregation().changes();
        loop {
            for work in self.unserved.take() {
                self.queue.wait_for_capacity().await;
                self.queue.add(work);
            }
            let changed = tokio::select! {
                changed = changes.changed() => changed,
                changed = remote_changes.changed() => changed,
            };
            if changed.is_err() {
                return;
            }
        }
    }

    /// Examines the dependents of an owner. If the deletion of the owner waits for its dependents, only the
    /// dependents that block this deletion are examined. A dependent whose examination fails is queued as a
    /// separate unit of work.
    async fn examine_dependents(&self, owner: ownership_data::Uid) -> Result<(), WorkError> {
        let mut after = None;
        loop {
            let batch: Vec<_> = {
                let index = self.index.lock();
                let owner_waits = index.is_waiting(owner);
                let dependents = index.dependents(owner, after.as_ref());
                let selected = dependents.filter(|(_, blocks)| *blocks || !owner_waits);
                selected.take(INDEX_BATCH).map(|(key, _)| Arc::clone(key)).collect()
            };
            let Some(last) = batch.last() else { return Ok(()) };
            after = Some(Arc::clone(last));
            let examine = |key: Arc<str>| async move {
                match self.examine(&key).await {
                    Err(WorkError::NotLeading) => return Err(WorkError::NotLeading),
                    Err(_) => self.queue.add(WorkItem::Examine(key)),
                    Ok(_) => {}
                }
                Ok(())
            };
            stream::iter(batch).map(Ok).try_for_each_concurrent(DEPENDENT_CONCURRENCY, examine).await?;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::actor::not_leading;

    #[test]
    fn work_ends_at_the_end_of_the_term_and_is_no_conflict() {
        let mut attempts = 0;
        let refused = || WorkError::from(not_leading());
        let result = repeat_conflicts(|| {
            attempts += 1;
            std::future::ready(Err::<(), _>(refused()))
        });
        assert!(matches!(result.now_or_never(), Some(Err(WorkError::NotLeading))));
        assert_eq!(attempts, 1);
    }

    #[tokio::test]
    async fn repeated_conflicts_let_other_tasks_run() {
        let attempts = std::cell::Cell::new(0);
        let attempt = || {
            attempts.set(attempts.get() + 1);
            let result = if attempts.get() > 1_000 { Ok(()) } else { Err(WorkError::Conflict) };
            std::future::ready(result)
        };
        assert!(repeat_conflicts(attempt).now_or_never().is_none());
        assert_eq!(attempts.get(), 1, "the first conflict yields");
        attempts.set(0);
        repeat_conflicts(attempt).await.unwrap();
        assert_eq!(attempts.get(), 1_001);
    }
}
