//! The watch cache: an ordered map of items and a limited ring of events for each resource, over any engine.
//!
//! The verbs read lists and watches from the watch cache. A snapshot copies no items: the map is
//! copy-on-write.
//!
//! # Contract
//!
//! - [`Cache`] is an [`Observer`]: pass it to the engine, then [`attach`](Cache::attach) the store. The cache
//!   holds the store weakly, to avoid a reference cycle.
//! - [`Resource`] serves one key prefix, and the first read loads it. Later reads use the store only for
//!   older data: [`Resource::page_at`], and watches that begin before the ring.
//! - An item is decoded at the first read of its entry, on the reader's thread, once for all readers, unless
//!   the request that wrote the item has set the entry ([`Item::set_entry`]). The writer thread of the store
//!   never decodes.
//! - A *scope* is a text that selects keys: a scope that ends with `/` selects all keys with that prefix; any
//!   other scope selects only the key that equals it.
//! - Reads of past revisions use memory as far as the ring reaches: the newest snapshot with the later events
//!   undone ([`Resource::snapshot_at`]). The first watch from a revision before the load of a resource
//!   extends the ring of that resource from the engine's history. The extension happens once, so that later
//!   watches do not scan the history of the whole store.
//! - [`Cache::unregister`] removes a prefix; its watchers end with [`WatchError::Retired`].
//!
//! # Invariants
//!
//! INVARIANT (exact revision): a [`Snapshot`] of revision R holds every change of its resource at or before
//! R, and no later change. A watch from R then delivers every later change once, in order. R may be newer
//! than the last change of the resource: R is the newest observed revision, so that lists of idle collections
//! carry the newest revision of the store.
//! INVARIANT (read your writes): commits are observed before they return. So a read that begins after a
//! commit returned includes that commit.
//! INVARIANT (bounded): after each batch of changes, the events in rings and their encoded forms take at most
//! [`Limits::ring_bytes`] over all resources. A watcher owns no queue, only a position, so that a slow
//! watcher costs no memory. The watcher ends with [`WatchError::Lagged`] when the ring has moved past its
//! position. One read returns events of at most [`Limits::batch_bytes`], or one larger event. A snapshot that
//! a slow watcher reads is a [`Pin`]; the cache revokes it when the ring moves past it. A reader of many items
//! registers an [`ItemLease`]. The superseded items that such readers hold outside the rings take at most about half of
//! [`Limits::ring_bytes`]; above this limit, the cache revokes the oldest leases on these items.
//!
//! # Concurrency
//!
//! Lock order: the table of resources (read lock, except for registration), the state of one resource, the
//! account of the rings, the list of waiters. The locks of pins, of superseded items and of the timeline are
//! innermost. No lock is
//! held across an await, during decoding, or while tasks are woken. The observed revision advances under the
//! state lock of the changed resource: a holder of that lock sees all changes of the resource at or before
//! that revision.
//!
//! # Reference
//!
//! The watch cache of Kubernetes (KEP-2340), whose consistent lists also carry the newest revision of the
//! store.

mod account;
mod event;
mod item;
mod past_events;
mod pin;
mod relay;
mod resource;
mod revision_index;
mod ring;
mod snapshot;
mod superseded;
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
pub use self::resource::{Resource, ResourceStats};
pub use self::snapshot::{ItemPage, Snapshot};
pub use self::superseded::ItemLease;
pub use self::watcher::{WatchError, Watcher};

use self::account::Account;
use self::relay::{Relay, Waiters};
use self::superseded::SupersededItems;
use self::timeline::Timeline;
use crate::{Change, Error, Observer, Result, Revision, Store};

/// Decodes rows to entries, the decoded objects that callers read. `kinds` provides one decoder for each
/// resource.
pub trait Decode: Send + Sync + 'static {
    /// The decoded form of a row.
    type Entry: Send + Sync + 'static;

    /// Decodes a stored value.
    ///
    /// Pure: the same key and value give the same entry at any revision; the item or the event carries the
    /// revision.
    ///
    /// # Errors
    ///
    /// See [`DecodeError`]; readers get [`Error::Corrupt`].
    fn decode(&self, key: &str, value: &Bytes) -> Result<Self::Entry, DecodeError>;
}

/// The reason why a stored value is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct DecodeError {
    reason: String,
}

impl<T: Into<String>> From<T> for DecodeError {
    fn from(reason: T) -> Self {
        DecodeError { reason: reason.into() }
    }
}

/// Limits of the watch cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum size in bytes of the cached events with their encoded forms, over all resources. Above it, the
    /// oldest event of any resource is evicted first.
    pub ring_bytes: usize,
    /// Maximum size in bytes of the events that one [`Watcher::next`] returns, with the values before and
    /// after each change.
    ///
    /// The first event is returned even if it alone exceeds the maximum. The last event of a part of the history may
    /// exceed it, too.
    pub batch_bytes: usize,
    /// Age up to which past states are readable from memory (requirement D-RV-45).
    ///
    /// A younger state is not readable from memory either if its events have left the ring.
    pub snapshot_age: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { ring_bytes: 64 << 20, batch_bytes: 32 << 10, snapshot_age: Duration::from_secs(75) }
    }
}

/// Divisor of [`Limits::ring_bytes`]. The quotient is the maximum size in bytes of the superseded items that readers
/// with leases keep outside the rings.
const SUPERSEDED_ITEMS_DIVISOR: usize = 2;

/// The cached resources of a store.
pub struct Cache<D: Decode> {
    shared: Arc<CacheShared<D>>,
    resources: RwLock<BTreeMap<Arc<str>, Arc<Resource<D>>>>,
    relay: OnceLock<Relay>,
}

impl<D: Decode> Cache<D> {
    /// An empty cache, to be passed to an engine as its observer.
    pub fn new(limits: Limits) -> Self {
        let shared = CacheShared {
            observed: AtomicU64::new(0),
            progress: Notify::new(),
            store: OnceLock::new(),
            limits,
            account: Mutex::new(Account::default()),
            superseded_items: Mutex::new(SupersededItems::new(limits.ring_bytes / SUPERSEDED_ITEMS_DIVISOR)),
            encoded_bytes: Arc::default(),
            timeline: Mutex::new(Timeline::new(limits.snapshot_age)),
        };
        Cache { shared: Arc::new(shared), resources: RwLock::default(), relay: OnceLock::new() }
    }

    /// Attaches the store from which resources load. Only the first call has an effect; reads before this
    /// call return `Unavailable`.
    ///
    /// Call this method on a tokio runtime, which then wakes the watchers. Otherwise the writer thread of the
    /// store wakes them.
    pub fn attach(&self, store: &Arc<dyn Store>) {
        if self.shared.store.set(Arc::downgrade(store)).is_ok() {
            if let Ok(runtime) = Handle::try_current() {
                self.relay.get_or_init(|| Relay::start(&runtime));
            }
            self.shared.advance(store.revision());
            self.shared.timeline.lock().record(Instant::now(), store.revision());
            self.shared.progress.notify_waiters();
        }
    }

    /// Returns the resource of a key prefix, and registers the resource at the first call.
    ///
    /// `prefix` ends with `/` and is no prefix of another resource's prefix. A later call with the same
    /// prefix returns the same resource and ignores the argument `decode`.
    pub fn resource(&self, prefix: &str, decode: D) -> Arc<Resource<D>> {
        debug_assert!(prefix.ends_with('/'), "`{prefix}` does not end with a slash");
        let mut resources = self.resources.write();
        if let Some(resource) = resources.get(prefix) {
            return Arc::clone(resource);
        }
        debug_assert!(
            resource_of_key(&resources, prefix).is_none(),
            "`{prefix}` lies within another resource"
        );
        let prefix: Arc<str> = Arc::from(prefix);
        let resource = Arc::new(Resource::new(Arc::clone(&prefix), decode, Arc::clone(&self.shared)));
        resources.insert(prefix, Arc::clone(&resource));
        resource
    }

    /// Removes a resource, and returns whether the resource was registered. Its reads then fail, except those of
    /// single keys, and its watchers end.
    ///
    /// Items are freed with their last reader, events at the latest with the last watcher. A later call of
    /// [`resource`](Cache::resource) registers the prefix anew.
    pub fn unregister(&self, prefix: &str) -> bool {
        let resource = self.resources.write().remove(prefix);
        resource.is_some_and(|resource| {
            resource.retire();
            true
        })
    }

    /// Evicts the events at or before the compacted revision of the store, to free their memory.
    ///
    /// A watch from such a revision returns `Compacted` with or without these events. A list at such a
    /// revision needs the events; without them it returns `Compacted`.
    pub fn evict_compacted(&self) {
        let Ok(store) = self.shared.store() else { return };
        let compacted = store.compacted();
        loop {
            let oldest = self.shared.account.lock().evict_through(compacted);
            let Some((resource, revision)) = oldest else { return };
            if let Some(resource) = resource.upgrade() {
                resource.evict(revision);
            }
        }
    }

    /// Reads all items that could not be decrypted again, after a change of keys. Returns false if a read failed, so
    /// that a later call may succeed.
    pub async fn refresh_unreadable(&self) -> bool {
        let mut is_complete = true;
        let resources: Vec<_> = self.resources.read().values().map(Arc::clone).collect();
        for resource in resources {
            match resource.refresh_unreadable().await {
                Ok(0) => {}
                Ok(count) => tracing::info!(?resource, count, "objects are readable again"),
                Err(error) => {
                    is_complete = false;
                    tracing::warn!(?resource, %error, "unreadable objects were not read again");
                }
            }
        }
        is_complete
    }

    /// The newest observed revision: at least the revision of every completed commit of this process.
    pub fn revision(&self) -> Revision {
        self.shared.revision()
    }

    /// Waits until a revision is observed, for reads that must not be older. Cancel-safe; the caller limits
    /// the time.
    pub async fn wait_for(&self, revision: Revision) {
        self.shared.wait_for(revision).await;
    }
}

impl<D: Decode> Observer for Cache<D> {
    fn observe(&self, changes: &[Change]) {
        let mut events = Vec::with_capacity(changes.len());
        let mut to_wake: Vec<Waiters> = Vec::new();
        {
            // The read lock is held to the end of the batch. A resource that is registered before the batch
            // receives each change here. A resource that is registered later loads a revision with all
            // changes of the batch.
            let resources = self.resources.read();
            let mut rest = changes;
            while let Some(first) = rest.first() {
                let resource = resource_of_key(&resources, &first.key);
                // The changes of one resource at one revision are applied together.
                let is_together = |change: &&Change| {
                    change.revision == first.revision
                        && resource.is_some_and(|resource| change.key.starts_with(&**resource.prefix()))
                };
                let count = 1 + rest.iter().skip(1).take_while(is_together).count();
                let (together, later) = rest.split_at(count);
                rest = later;
                // The observed revision advances with the last change of a revision.
                let is_last = later.first().is_none_or(|next| next.revision > first.revision);
                match resource {
                    Some(resource) => resource.apply(together, is_last, &mut to_wake, |weight| {
                        events.push((Arc::downgrade(resource), first.revision, weight));
                    }),
                    None if is_last => self.shared.advance(first.revision),
                    None => {}
                }
            }
        }
        if let Some(newest) = changes.last() {
            self.shared.timeline.lock().record(Instant::now(), newest.revision);
        }
        self.shared.account_and_evict(events);
        relay::wake(to_wake, self.relay.get());
        self.shared.progress.notify_waiters();
    }

    fn progress(&self, through: Revision) {
        self.shared.advance(through);
        self.shared.timeline.lock().record(Instant::now(), through);
        self.shared.progress.notify_waiters();
    }
}

/// The resource of a key. No prefix is a prefix of another, so the last prefix at or before the key is the
/// only match.
fn resource_of_key<'a, D: Decode>(
    resources: &'a BTreeMap<Arc<str>, Arc<Resource<D>>>,
    key: &str,
) -> Option<&'a Arc<Resource<D>>> {
    let (prefix, resource) =
        resources.range::<str, _>((Bound::Unbounded, Bound::Included(key))).next_back()?;
    key.starts_with(&**prefix).then_some(resource)
}

/// The state that the cache and its resources share.
struct CacheShared<D: Decode> {
    /// The newest observed revision.
    observed: AtomicU64,
    /// Notified when the observed revision advances.
    progress: Notify,
    store: OnceLock<Weak<dyn Store>>,
    limits: Limits,
    account: Mutex<Account<D>>,
    superseded_items: Mutex<SupersededItems<D>>,
    /// Bytes of the cached encoded forms of all events.
    encoded_bytes: Arc<AtomicUsize>,
    timeline: Mutex<Timeline>,
}

impl<D: Decode> CacheShared<D> {
    fn revision(&self) -> Revision {
        Revision(self.observed.load(Ordering::Acquire))
    }

    fn advance(&self, revision: Revision) {
        self.observed.fetch_max(revision.0, Ordering::AcqRel);
    }

    async fn wait_for(&self, revision: Revision) {
        if self.revision() >= revision {
            return;
        }
        if let Ok(store) = self.store() {
            store.expect_revision(revision);
        }
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

    /// Counts a superseded item that readers may hold. Revokes the oldest leases if such items exceed their limit.
    fn count_superseded_item(&self, item: &Arc<Item<D>>, superseded_at: Revision) {
        let revoked = self.superseded_items.lock().add(item, superseded_at);
        revoked.iter().for_each(|revocation| revocation.notify_one());
    }

    /// Accounts new events, and evicts the oldest ones of all resources while the bytes exceed the limit.
    fn account_and_evict(&self, events: Vec<(Weak<Resource<D>>, Revision, usize)>) {
        let mut events = Some(events);
        loop {
            // The encoded forms are freed with their event, unless a reader still holds the event.
            let encoded = self.encoded_bytes.load(Ordering::Relaxed);
            let limit = self.limits.ring_bytes.saturating_sub(encoded);
            let oldest = {
                let mut account = self.account.lock();
                events.take().into_iter().for_each(|events| account.account_new(events));
                account.evict_oldest(limit)
            };
            match oldest {
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
