//! The watch cache: for each resource an ordered map of items with cheap snapshots and a bounded ring of events, over
//! any engine, for the verbs.
//!
//! # Contract
//!
//! - [`Cache`] is an [`Observer`]: give it to the engine, then [`attach`](Cache::attach) the store. It holds the store
//!   weakly, so that the two do not keep each other alive.
//! - [`Resource`] serves one key prefix and is loaded by the first read of it. It never reads the store again, except
//!   for what is older than it holds: [`Resource::page_at`] and watches that begin before the ring.
//! - Items are decoded when somebody first asks for the entry, on the reader's thread, once for all readers; the store's
//!   writer thread never decodes.
//! - A *scope* names keys: one that ends with `/` is all keys below it, any other is that one key.
//! - The past is read from memory as far as the ring reaches: a snapshot of an older revision is the newest one with the
//!   events after it undone ([`Resource::snapshot_at`]). The first watch that begins before a resource was loaded extends
//!   its ring by what the engine's history tells, once for all watches to come: they do not each walk the history of the
//!   whole store.
//! - [`Cache::unregister`] gives a prefix back; its watchers end with [`WatchError::Retired`].
//!
//! # Invariants
//!
//! INVARIANT (exact revision): a [`Snapshot`] of revision R holds every change of its resource at or before R and none
//! after; a watch from R then delivers every later change once, in order. R may be newer than the resource's last change:
//! it is the newest revision observed, so that lists of idle collections carry the store's newest revision.
//! INVARIANT (read your writes): because commits are observed before they are answered, a read that begins after an
//! answer shows that commit.
//! INVARIANT (bounded): events and what they are encoded to take at most [`Limits::ring_bytes`] over all resources. A
//! watcher owns no queue: it holds a position, so that a slow one costs nothing, and ends with [`WatchError::Lagged`] when
//! the ring moved past it. What it reads at once is at most [`Limits::batch_bytes`]. A snapshot that it walks is a
//! [`Pin`]: taken back when the ring moved past it.
//!
//! # Concurrency
//!
//! Locks, in their order: the table of resources (readers only, but for registration), one resource's state, the ring's
//! account, the list of whom to wake; a pin's and the timeline's are innermost. None is held across an await, while
//! decoding, or while tasks are woken. The observed revision advances while the state of the changed resource is locked:
//! whoever holds that lock sees all changes of the resource at or before it.
//!
//! # Reference
//!
//! design section 5; Kubernetes' watch cache (KEP-2340), whose lists are of the newest revision, too.

mod event;
mod item;
mod past;
mod pin;
mod relay;
mod resource;
mod ring;
mod snapshot;
mod timeline;
mod watcher;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::Instant;

pub use self::event::{Event, EventKind, Form};
pub use self::item::Item;
pub use self::pin::Pin;
pub use self::resource::Resource;
pub use self::snapshot::{ItemPage, Snapshot};
pub use self::watcher::{WatchError, Watcher};

use self::relay::{Relay, Waiters};
use self::ring::Account;
use self::timeline::Timeline;
use crate::{Change, Error, Observer, Result, Revision, Store};

/// Makes the entry of a row: what the layers above know of an object. Given by `kinds`, one value a resource.
pub trait Decode: Send + Sync + 'static {
    /// What a row decodes to.
    type Entry: Send + Sync + 'static;

    /// Decodes a stored value. Pure: the same key and value make the same entry, at any revision (the revision is the
    /// item's or the event's). An error says what is wrong with the value; readers of it get `Corrupt`.
    fn decode(&self, key: &str, value: &Bytes) -> Result<Self::Entry, String>;
}

/// What the cache may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of events kept for watchers, with their encoded forms, over all resources. The oldest event of any
    /// resource goes first.
    pub ring_bytes: usize,
    /// Bytes of events (before and after) that one [`Watcher::next`] returns, except that one event always fits.
    pub batch_bytes: usize,
    /// How long a state that was the newest can be read from memory, as far as the ring reaches (requirements D-RV-45).
    pub snapshot_age: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { ring_bytes: 64 << 20, batch_bytes: 256 << 10, snapshot_age: Duration::from_secs(75) }
    }
}

/// The cached resources of a store.
pub struct Cache<D: Decode> {
    shared: Arc<Shared<D>>,
    resources: RwLock<BTreeMap<Arc<str>, Arc<Resource<D>>>>,
    relay: OnceLock<Relay>,
}

impl<D: Decode> Cache<D> {
    /// An empty cache, to be given to an engine as its observer.
    pub fn new(limits: Limits) -> Self {
        let shared = Shared {
            observed: AtomicU64::new(0),
            progress: Notify::new(),
            store: OnceLock::new(),
            limits,
            account: Mutex::new(Account::default()),
            encoded: Arc::default(),
            timeline: Mutex::new(Timeline::new(limits.snapshot_age)),
        };
        Cache { shared: Arc::new(shared), resources: RwLock::default(), relay: OnceLock::new() }
    }

    /// Says which store to load from. Only the first call counts. Before it, reads are `Unavailable`. To be called on a
    /// tokio runtime, where watchers are then woken; else the store's writer wakes them.
    pub fn attach(&self, store: &Arc<dyn Store>) {
        if self.shared.store.set(Arc::downgrade(store)).is_ok() {
            if let Ok(runtime) = Handle::try_current() {
                self.relay.get_or_init(|| Relay::start(&runtime));
            }
            self.shared.advance(store.revision());
            self.shared.timeline.lock().mark(Instant::now(), store.revision());
            self.shared.progress.notify_waiters();
        }
    }

    /// The resource whose keys begin with `prefix`, which ends with `/` and does not begin another resource's prefix.
    /// Registers it if it is new: a later call with the same prefix answers the same resource and drops its `decode`.
    pub fn resource(&self, prefix: &str, decode: D) -> Arc<Resource<D>> {
        debug_assert!(prefix.ends_with('/'), "`{prefix}` does not end with a slash");
        let mut resources = self.resources.write();
        if let Some(resource) = resources.get(prefix) {
            return Arc::clone(resource);
        }
        debug_assert!(owner(&resources, prefix).is_none(), "`{prefix}` lies within another resource");
        let prefix: Arc<str> = Arc::from(prefix);
        let resource = Arc::new(Resource::new(Arc::clone(&prefix), decode, Arc::clone(&self.shared)));
        resources.insert(prefix, Arc::clone(&resource));
        resource
    }

    /// Gives up a resource, if it is registered: it is not served any more, its watchers end, and its memory is freed with
    /// the last of them. A later call of [`resource`](Cache::resource) registers the prefix anew.
    pub fn unregister(&self, prefix: &str) -> bool {
        let resource = self.resources.write().remove(prefix);
        resource.is_some_and(|resource| {
            resource.retire();
            true
        })
    }

    /// The newest revision observed: at least that of every commit answered by this process.
    pub fn revision(&self) -> Revision {
        self.shared.revision()
    }

    /// Waits until a revision has been observed, for reads that must not be older. Cancel-safe; bounding the time is the
    /// caller's.
    pub async fn wait_for(&self, revision: Revision) {
        self.shared.wait_for(revision).await;
    }
}

impl<D: Decode> Observer for Cache<D> {
    fn observe(&self, changes: &[Change]) {
        let mut retained = Vec::with_capacity(changes.len());
        let mut woken: Vec<Waiters> = Vec::new();
        {
            // Held to the end of the batch: a resource registered meanwhile either sees a change here or finds the
            // observed revision at or after it, and then loads at least that.
            let resources = self.resources.read();
            for change in changes {
                match owner(&resources, &change.key) {
                    Some(resource) => {
                        if let Some(weight) = resource.apply(change, &mut woken) {
                            retained.push((Arc::downgrade(resource), change.revision, weight));
                        }
                    }
                    None => self.shared.advance(change.revision),
                }
            }
        }
        if let Some(newest) = changes.last() {
            self.shared.timeline.lock().mark(Instant::now(), newest.revision);
        }
        self.shared.retain(retained);
        relay::wake(woken, self.relay.get());
        self.shared.progress.notify_waiters();
    }
}

/// The resource a key belongs to: as no prefix begins another, it is the last one at or before the key, if any.
fn owner<'a, D: Decode>(
    resources: &'a BTreeMap<Arc<str>, Arc<Resource<D>>>,
    key: &str,
) -> Option<&'a Arc<Resource<D>>> {
    let (prefix, resource) =
        resources.range::<str, _>((Bound::Unbounded, Bound::Included(key))).next_back()?;
    key.starts_with(&**prefix).then_some(resource)
}

/// What the cache and its resources share.
struct Shared<D: Decode> {
    observed: AtomicU64,
    /// Told after each batch.
    progress: Notify,
    store: OnceLock<Weak<dyn Store>>,
    limits: Limits,
    account: Mutex<Account<D>>,
    /// Bytes of the encoded forms of events.
    encoded: Arc<AtomicUsize>,
    timeline: Mutex<Timeline>,
}

impl<D: Decode> Shared<D> {
    fn revision(&self) -> Revision {
        Revision(self.observed.load(Ordering::Acquire))
    }

    fn advance(&self, revision: Revision) {
        self.observed.fetch_max(revision.0, Ordering::AcqRel);
    }

    async fn wait_for(&self, revision: Revision) {
        loop {
            let progress = self.progress.notified();
            if self.revision() >= revision {
                return;
            }
            progress.await;
        }
    }

    fn store(&self) -> Result<Arc<dyn Store>> {
        self.store
            .get()
            .and_then(Weak::upgrade)
            .ok_or_else(|| Error::Unavailable("no store is attached to the cache".to_owned()))
    }

    /// Books new events, and drops the oldest ones of all resources while there are too many bytes.
    fn retain(&self, events: Vec<(Weak<Resource<D>>, Revision, usize)>) {
        let mut events = Some(events);
        loop {
            // What an event was encoded to goes with it, unless a reader still holds it.
            let encoded = self.encoded.load(Ordering::Relaxed);
            let limit = self.limits.ring_bytes.saturating_sub(encoded);
            let victim = {
                let mut account = self.account.lock();
                events.take().into_iter().for_each(|events| account.book(events));
                account.victim(limit)
            };
            match victim {
                Some((resource, revision)) => {
                    if let Some(resource) = resource.upgrade() {
                        resource.evict(revision);
                    }
                }
                None => return,
            }
        }
    }
}
