//! The policy mirror: the stored objects that authd needs, and their revision.
//!
//! # Contract
//!
//! apid sends the updates of a [`Feed`]: a snapshot, then every change in the order of revisions.
//! [`Mirror::policy`] returns the policy only if the mirror has applied everything up to the requested
//! revision. Otherwise it returns [`MirrorNotReady`], and [`Mirror::wait_for_revision`] waits.
//!
//! # Invariants
//!
//! INVARIANT (fresh policy): a read never returns policy older than its minimum revision, nor policy of a
//! feed that has ended. A broken feed makes the mirror stale until a new snapshot is complete.
//! INVARIANT (one snapshot): a snapshot replaces all contents at once; objects outside the snapshot are
//! removed. If two feeds exist, the one that began later takes over when its snapshot is complete; the older
//! one then ends.
//!
//! # Concurrency
//!
//! One lock protects the state.
//! It is held for one change or for one read, such as a walk over the rules of a user, never across an await.
//! The progress is published under the lock, so that the published progress is always that of the newest state.
//!
//! # Reference
//!
//! Roles and bindings form the [`Policy`]. Service accounts, token Secrets, nodes, pods and `cluster-info`
//! form the [`Identities`]. Pods with their references, volumes and objects of nodes form the [`Graph`].

mod decode;
pub mod graph;
pub mod identities;
mod mirrors;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use apimachinery::names::Names;
use authproto::auth;
use parking_lot::{MappedRwLockReadGuard, Mutex, RwLock, RwLockReadGuard};
use tokio::sync::{Notify, watch};

use crate::rules::Policy;
pub use decode::MalformedUpdate;
pub use graph::Graph;
pub use identities::Identities;
pub use mirrors::Mirrors;

/// The error when the mirror is older than the requested revision, or has no feed with a complete snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("policy of revision {required} is not available yet: {state}")]
pub struct MirrorNotReady {
    /// The minimum revision of the read.
    pub required: u64,
    /// The progress of the mirror at the time of the read.
    pub state: Progress,
}

/// The progress of the mirror: whether it is usable, and its revision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// A feed is connected and its snapshot is complete.
    pub synced: bool,
    /// All changes up to this revision are applied.
    pub revision: u64,
}

impl std::fmt::Display for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.synced {
            write!(f, "the mirror is at revision {}", self.revision)
        } else {
            f.write_str("the mirror has no feed")
        }
    }
}

impl Progress {
    fn reaches(self, revision: u64) -> bool {
        self.synced && self.revision >= revision
    }
}

/// The policy mirror. See the module.
#[derive(Debug)]
pub struct Mirror {
    names: Arc<Names>,
    aggregates_roles: bool,
    state: RwLock<MirrorState>,
    progress: watch::Sender<Progress>,
    /// The number of complete mirrors of the set.
    complete: watch::Sender<usize>,
    /// The number of feeds that have begun, which is the id of the newest feed.
    feeds: AtomicU64,
    /// Token Secrets with a recorded use, as `namespace/name`, until [`Mirror::take_uses`].
    used_secrets: Mutex<BTreeSet<String>>,
    /// Notified when `used_secrets` gets a new entry.
    use_notify: Notify,
}

#[derive(Debug)]
struct MirrorState {
    /// The id of the feed that owns the contents; 0 before the first complete snapshot.
    feed: u64,
    contents: Contents,
    progress: Progress,
}

/// All mirrored objects, as of one revision.
#[derive(Debug, Default)]
pub struct Contents {
    /// Roles and bindings.
    pub policy: Policy,
    /// Objects that identities depend on or token controllers read.
    pub identities: Identities,
    /// The graph of the Node authorizer.
    pub graph: Graph,
}

impl Mirror {
    /// Creates an empty mirror without a feed, with aggregated roles.
    pub fn new(names: Arc<Names>) -> Arc<Self> {
        Mirror::of_set(names, true, watch::Sender::new(0))
    }

    /// Creates an empty mirror of the preset `kubernetes`, for tests.
    #[cfg(test)]
    pub(crate) fn empty() -> Arc<Self> {
        let names = Names::new(apimachinery::names::Preset::Kubernetes, "");
        Mirror::new(Arc::new(names.expect("names without a domain")))
    }

    /// Creates an empty mirror without a feed. If `aggregates_roles` is false, each role grants its written
    /// rules. `complete` counts the complete mirrors of a set.
    fn of_set(names: Arc<Names>, aggregates_roles: bool, complete: watch::Sender<usize>) -> Arc<Self> {
        let policy = Policy::new(&names).with_aggregation(aggregates_roles);
        let contents = Contents { policy, ..Contents::default() };
        let state = MirrorState { feed: 0, contents, progress: Progress::default() };
        let progress = watch::Sender::new(Progress::default());
        Arc::new(Mirror {
            names,
            aggregates_roles,
            state: RwLock::new(state),
            progress,
            complete,
            feeds: AtomicU64::new(0),
            used_secrets: Mutex::default(),
            use_notify: Notify::new(),
        })
    }

    /// Returns the policy, at least as new as `revision`.
    /// The guard holds the lock of the mirror: do not keep it across an await.
    ///
    /// # Errors
    ///
    /// [`MirrorNotReady`].
    pub fn policy(&self, revision: u64) -> Result<MappedRwLockReadGuard<'_, Policy>, MirrorNotReady> {
        Ok(MappedRwLockReadGuard::map(self.contents(revision)?, |contents| &contents.policy))
    }

    /// Returns the objects of identities, at least as new as `revision`.
    /// The guard holds the lock of the mirror: do not keep it across an await.
    ///
    /// # Errors
    ///
    /// [`MirrorNotReady`].
    pub fn identities(&self, revision: u64) -> Result<MappedRwLockReadGuard<'_, Identities>, MirrorNotReady> {
        Ok(MappedRwLockReadGuard::map(self.contents(revision)?, |contents| &contents.identities))
    }

    /// Returns the graph of the Node authorizer, at least as new as `revision`.
    /// The guard holds the lock of the mirror: do not keep it across an await.
    ///
    /// # Errors
    ///
    /// [`MirrorNotReady`].
    pub fn graph(&self, revision: u64) -> Result<MappedRwLockReadGuard<'_, Graph>, MirrorNotReady> {
        Ok(MappedRwLockReadGuard::map(self.contents(revision)?, |contents| &contents.graph))
    }

    /// Returns the reads of a request that needs everything up to `revision`.
    pub fn at_least(&self, revision: u64) -> AtLeast<'_> {
        AtLeast { mirror: self, revision }
    }

    fn contents(&self, revision: u64) -> Result<MappedRwLockReadGuard<'_, Contents>, MirrorNotReady> {
        let state = self.state.read();
        if state.progress.reaches(revision) {
            Ok(RwLockReadGuard::map(state, |state| &state.contents))
        } else {
            Err(MirrorNotReady { required: revision, state: state.progress })
        }
    }

    /// Waits until the mirror has applied everything up to a revision.
    ///
    /// # Errors
    ///
    /// [`MirrorNotReady`] if the mirror does not reach the revision within `limit`.
    pub async fn wait_for_revision(&self, revision: u64, limit: Duration) -> Result<(), MirrorNotReady> {
        let mut progress = self.progress.subscribe();
        let reached =
            tokio::time::timeout(limit, progress.wait_for(|progress| progress.reaches(revision))).await;
        match reached {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(MirrorNotReady { required: revision, state: self.progress() }),
        }
    }

    /// Subscribes to the progress of the mirror.
    pub fn changes(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// Records a use of the legacy token of a Secret.
    pub fn record_use(&self, namespace: &str, name: &str) {
        if self.used_secrets.lock().insert(format!("{namespace}/{name}")) {
            self.use_notify.notify_one();
        }
    }

    /// Waits until [`Mirror::record_use`] adds a Secret. Returns at once if it added one since the last call.
    pub async fn wait_for_use(&self) {
        self.use_notify.notified().await;
    }

    /// Takes the uses recorded since the last call, as `namespace/name` of Secrets.
    pub fn take_uses(&self) -> BTreeSet<String> {
        std::mem::take(&mut *self.used_secrets.lock())
    }

    /// Returns the progress of the mirror.
    pub fn progress(&self) -> Progress {
        *self.progress.borrow()
    }

    /// Begins a feed. The mirror keeps its contents until the snapshot of the feed is complete.
    pub fn begin(self: &Arc<Self>) -> Feed {
        let id = self.feeds.fetch_add(1, Ordering::Relaxed) + 1;
        let policy = Policy::for_snapshot(&self.names).with_aggregation(self.aggregates_roles);
        let contents = Contents { policy, ..Contents::default() };
        Feed { mirror: Arc::clone(self), id, snapshot: Some(Box::new(contents)) }
    }

    /// Changes the state and publishes the new progress, under the lock of the state.
    fn change<T>(&self, change: impl FnOnce(&mut MirrorState) -> T) -> T {
        let mut state = self.state.write();
        let was_complete = state.progress.synced;
        let result = change(&mut state);
        let progress = state.progress;
        match (was_complete, progress.synced) {
            (false, true) => self.complete.send_modify(|count| *count = count.saturating_add(1)),
            (true, false) => self.complete.send_modify(|count| *count = count.saturating_sub(1)),
            (false, false) | (true, true) => {}
        }
        self.progress.send_if_modified(|current| std::mem::replace(current, progress) != progress);
        result
    }
}

/// The mirror and the minimum revision of one request. Authenticators and authorizers serve the requests of all apids, so
/// each request brings the mirror of its apid.
#[derive(Clone, Copy, Debug)]
pub struct AtLeast<'m> {
    mirror: &'m Mirror,
    revision: u64,
}

impl<'m> AtLeast<'m> {
    /// Returns the policy. See [`Mirror::policy`].
    ///
    /// # Errors
    ///
    /// [`MirrorNotReady`].
    pub fn policy(self) -> Result<MappedRwLockReadGuard<'m, Policy>, MirrorNotReady> {
        self.mirror.policy(self.revision)
    }

    /// Returns the objects of identities. See [`Mirror::identities`].
    ///
    /// # Errors
    ///
    /// [`MirrorNotReady`].
    pub fn identities(self) -> Result<MappedRwLockReadGuard<'m, Identities>, MirrorNotReady> {
        self.mirror.identities(self.revision)
    }

    /// Returns the graph of the Node authorizer. See [`Mirror::graph`].
    ///
    /// # Errors
    ///
    /// [`MirrorNotReady`].
    pub fn graph(self) -> Result<MappedRwLockReadGuard<'m, Graph>, MirrorNotReady> {
        self.mirror.graph(self.revision)
    }

    /// Records a use of the legacy token of a Secret.
    pub fn record_use(self, namespace: &str, name: &str) {
        self.mirror.record_use(namespace, name);
    }
}

/// The updates of one mirror stream.
/// Dropping a feed makes the mirror stale, unless another feed owns the contents.
#[derive(Debug)]
pub struct Feed {
    mirror: Arc<Mirror>,
    id: u64,
    /// The contents of the snapshot while it loads; None if the snapshot is complete.
    snapshot: Option<Box<Contents>>,
}

/// The reason for the end of a feed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FeedError {
    /// An update cannot be decoded; without the update the mirror would differ from the store.
    #[error("malformed update: {0}")]
    MalformedUpdate(#[from] MalformedUpdate),
    /// A later feed has taken over.
    #[error("a later feed has taken over")]
    Superseded,
}

/// The parts of the mirror that one update changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpdateEffect {
    /// The update completed the snapshot.
    pub synced: bool,
    /// A ClusterRole changed.
    pub cluster_roles: bool,
    /// A Secret, a service account or `cluster-info` changed.
    pub identities: bool,
}

impl Feed {
    /// Applies one object of the snapshot, or one created or changed object.
    ///
    /// # Errors
    ///
    /// [`FeedError`]: the feed must end.
    pub fn put(&mut self, put: auth::MirrorPut) -> Result<UpdateEffect, FeedError> {
        let change = decode::change(put.object, put.revision, false, &self.mirror.names)?;
        self.apply(put.revision, change)
    }

    /// Applies one deletion.
    ///
    /// # Errors
    ///
    /// Those of [`Feed::put`].
    pub fn delete(&mut self, delete: auth::MirrorDelete) -> Result<UpdateEffect, FeedError> {
        let change = decode::change(delete.object, delete.revision, true, &self.mirror.names)?;
        self.apply(delete.revision, change)
    }

    /// Completes the snapshot, which replaces all contents at once.
    ///
    /// # Errors
    ///
    /// Those of [`Feed::put`].
    pub fn synced(&mut self, revision: u64) -> Result<UpdateEffect, FeedError> {
        let Some(mut contents) = self.snapshot.take() else { return self.progress(revision) };
        contents.policy.complete_snapshot();
        let id = self.id;
        let previous = self.mirror.change(|state| {
            if state.feed > id {
                return Err(FeedError::Superseded);
            }
            state.feed = id;
            state.progress = Progress { synced: true, revision };
            Ok(std::mem::replace(&mut state.contents, *contents))
        })?;
        drop(previous);
        Ok(UpdateEffect { synced: true, cluster_roles: true, identities: true })
    }

    /// Records that apid has sent all changes up to this revision.
    ///
    /// # Errors
    ///
    /// Those of [`Feed::put`].
    pub fn progress(&mut self, revision: u64) -> Result<UpdateEffect, FeedError> {
        self.apply(revision, decode::Change::Nothing)
    }

    /// Reads the contents of the mirror, if this feed owns them.
    ///
    /// # Errors
    ///
    /// [`FeedError::Superseded`] if another feed owns the contents, or the snapshot is not complete.
    pub fn read<T>(&self, read: impl FnOnce(&Contents) -> T) -> Result<T, FeedError> {
        let state = self.mirror.state.read();
        if state.feed == self.id { Ok(read(&state.contents)) } else { Err(FeedError::Superseded) }
    }

    fn apply(&mut self, revision: u64, change: decode::Change) -> Result<UpdateEffect, FeedError> {
        let effect = UpdateEffect {
            synced: false,
            cluster_roles: change.is_cluster_role(),
            identities: change.concerns_token_controllers(),
        };
        if let Some(contents) = &mut self.snapshot {
            change.apply(contents);
            return Ok(effect);
        }
        let id = self.id;
        self.mirror.change(|state| {
            if state.feed != id {
                return Err(FeedError::Superseded);
            }
            change.apply(&mut state.contents);
            state.progress.revision = state.progress.revision.max(revision);
            Ok(effect)
        })
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        let id = self.id;
        self.mirror.change(|state| {
            if state.feed == id {
                state.progress.synced = false;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apimachinery::names::Preset;

    fn mirror() -> Arc<Mirror> {
        Mirror::new(Arc::new(Names::new(Preset::Kubernetes, "").unwrap()))
    }

    fn role(name: &str) -> auth::MirrorPut {
        let kind = auth::mirror_object::Kind::ClusterRole(auth::MirrorRole::default());
        let object =
            auth::MirrorObject { name: name.into(), kind: Some(kind), ..auth::MirrorObject::default() };
        auth::MirrorPut { revision: 1, object: Some(object) }
    }

    fn roles(mirror: &Mirror, revision: u64) -> Result<usize, MirrorNotReady> {
        mirror.policy(revision).map(|policy| policy.role_and_binding_counts().0)
    }

    #[test]
    fn mirror_read_before_snapshot_or_beyond_revision_returns_not_ready() {
        let mirror = mirror();
        assert!(roles(&mirror, 0).is_err(), "no feed");
        let mut feed = mirror.begin();
        feed.put(role("a")).unwrap();
        assert!(roles(&mirror, 0).is_err(), "half a snapshot");
        assert_eq!(
            feed.synced(7).unwrap(),
            UpdateEffect { synced: true, cluster_roles: true, identities: true }
        );
        assert_eq!(roles(&mirror, 7), Ok(1));
        assert_eq!(
            roles(&mirror, 8),
            Err(MirrorNotReady { required: 8, state: Progress { synced: true, revision: 7 } })
        );
        feed.progress(8).unwrap();
        assert_eq!(roles(&mirror, 8), Ok(1));
        feed.progress(3).unwrap();
        assert_eq!(roles(&mirror, 8), Ok(1), "revisions do not go back");
        drop(feed);
        assert!(roles(&mirror, 0).is_err(), "the feed ended");
    }

    #[test]
    fn later_snapshot_replaces_contents_and_ends_earlier_feed() {
        let mirror = mirror();
        let mut old = mirror.begin();
        old.put(role("a")).unwrap();
        old.synced(900).unwrap();
        let mut new = mirror.begin();
        old.put(role("b")).unwrap();
        assert_eq!(roles(&mirror, 0), Ok(2), "the old snapshot serves until the new one is complete");
        new.put(role("c")).unwrap();
        new.synced(5).unwrap();
        assert_eq!(roles(&mirror, 5), Ok(1));
        assert!(roles(&mirror, 6).is_err(), "a new store has its own revisions");
        assert_eq!(old.put(role("d")), Err(FeedError::Superseded));
        drop(old);
        assert_eq!(roles(&mirror, 5), Ok(1), "the end of the old feed changes nothing");
        let mut earlier = mirror.begin();
        let mut later = mirror.begin();
        later.synced(6).unwrap();
        assert_eq!(earlier.synced(9), Err(FeedError::Superseded), "of two, the one that began later wins");
    }

    #[tokio::test]
    async fn mirror_waiter_wakes_at_revision_or_times_out() {
        let mirror = mirror();
        let mut feed = mirror.begin();
        feed.synced(1).unwrap();
        let waiting = tokio::spawn({
            let mirror = Arc::clone(&mirror);
            async move { mirror.wait_for_revision(3, Duration::from_secs(60)).await }
        });
        tokio::task::yield_now().await;
        feed.progress(2).unwrap();
        feed.progress(3).unwrap();
        assert_eq!(waiting.await.unwrap(), Ok(()));
        assert!(mirror.wait_for_revision(4, Duration::from_millis(1)).await.is_err());
    }

    #[test]
    fn published_progress_always_equals_that_of_state() {
        const LAST: u64 = 50_000;
        let mirror = mirror();
        let mut feed = mirror.begin();
        feed.synced(0).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| (1..=LAST).for_each(|revision| assert!(feed.progress(revision).is_ok())));
            loop {
                let state = mirror.state.read();
                assert_eq!(mirror.progress(), state.progress);
                if state.progress.revision == LAST {
                    break;
                }
            }
        });
    }

    #[test]
    fn malformed_mirror_update_is_an_error() {
        let mirror = mirror();
        let mut feed = mirror.begin();
        let put = auth::MirrorPut { revision: 1, object: None };
        assert!(matches!(feed.put(put), Err(FeedError::MalformedUpdate(_))));
        let delete = auth::MirrorDelete { revision: 1, object: None };
        assert!(matches!(feed.delete(delete), Err(FeedError::MalformedUpdate(_))));
    }
}
