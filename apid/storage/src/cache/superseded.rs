//! Superseded items that slow readers keep in memory, and the limit of their memory.
//!
//! An item is superseded by the change that replaces or deletes it, or when its resource is unregistered. While the
//! ring holds the event of this change, it holds the item too. Later, only readers may hold the item: a list whose
//! client reads slowly holds the items of its revision.
//!
//! # Contract
//!
//! A reader that may be slow registers an [`ItemLease`] with its scope and revision. When the superseded items in these
//! scopes exceed the limit, the cache revokes the leases on the older half of them. A reader drops its items as soon as
//! its lease is revoked.
//!
//! # Invariants
//!
//! INVARIANT (older leases): a reader of revision R holds only items that are superseded after R. So a reader holds no
//! item that was superseded at or before its revision, and its lease is not revoked because of such an item.
//!
//! # Costs
//!
//! The number of bytes is an upper bound: items that readers dropped count until the next sweep. A sweep takes about
//! 20 ns for each item, and runs after each further quarter of the limit.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

use tokio::sync::Notify;

use super::item::ITEM_OVERHEAD;
use super::revision_index::RevisionIndex;
use super::{Decode, Item};
use crate::Revision;

/// Minimum number of leases between two sweeps of the scopes.
const MIN_SCOPE_SWEEP_AT: usize = 1024;

/// The registration of a reader that may keep superseded items in memory.
///
/// The reader drops its items before the lease. Dropping the lease ends the registration.
#[derive(Debug)]
pub struct ItemLease {
    revocation: Arc<Notify>,
}

impl ItemLease {
    /// Waits until the cache revokes the lease: the reader must drop its items. Cancel-safe.
    pub async fn revoked(&self) {
        self.revocation.notified().await;
        // A later call returns immediately, too.
        self.revocation.notify_one();
    }
}

/// The superseded items that readers hold, and the leases of these readers.
pub(super) struct SupersededItems<D: Decode> {
    /// The items in the order in which they left the ring.
    items: VecDeque<SupersededItem<D>>,
    /// Total size of `items`, in bytes.
    bytes: usize,
    /// Maximum size of the items that readers hold, in bytes.
    limit: usize,
    /// A sweep removes the items that no reader holds when `bytes` exceeds this number.
    sweep_above: usize,
    /// The leases by scope.
    leases: HashMap<Arc<str>, RevisionIndex<Notify>>,
    /// The scopes without leases are removed after this number of further leases.
    leases_before_sweep: usize,
}

struct SupersededItem<D: Decode> {
    item: Weak<Item<D>>,
    key: Arc<str>,
    bytes: usize,
    /// Revision of the change that superseded the item.
    superseded_at: Revision,
}

impl<D: Decode> SupersededItems<D> {
    pub(super) fn new(limit: usize) -> Self {
        SupersededItems {
            items: VecDeque::new(),
            bytes: 0,
            limit,
            sweep_above: limit,
            leases: HashMap::new(),
            leases_before_sweep: MIN_SCOPE_SWEEP_AT,
        }
    }

    /// Registers a reader of a scope at a revision.
    pub(super) fn lease(&mut self, scope: &str, revision: Revision) -> ItemLease {
        self.sweep_scopes();
        let revocation = Arc::new(Notify::new());
        match self.leases.get_mut(scope) {
            Some(leases) => leases.add(revision, &revocation),
            None => self.leases.entry(Arc::from(scope)).or_default().add(revision, &revocation),
        }
        ItemLease { revocation }
    }

    /// Removes the scopes without leases, and the items that no reader holds, after every [`MIN_SCOPE_SWEEP_AT`] leases.
    fn sweep_scopes(&mut self) {
        self.leases_before_sweep = self.leases_before_sweep.saturating_sub(1);
        if self.leases_before_sweep == 0 {
            self.leases.retain(|_, leases| {
                leases.sweep();
                !leases.is_empty()
            });
            self.leases_before_sweep = MIN_SCOPE_SWEEP_AT.max(self.leases.len());
            self.sweep();
        }
    }

    /// Adds an item that has left the ring, if a reader with a lease may hold it. Returns the revoked leases if the items
    /// exceed the limit; the caller notifies them without a lock.
    ///
    /// `superseded_at` is the revision of the change that superseded the item.
    pub(super) fn add(&mut self, item: &Arc<Item<D>>, superseded_at: Revision) -> Vec<Arc<Notify>> {
        let is_covered =
            |scope| self.leases.get_mut(scope).is_some_and(|leases| leases.has_value_below(superseded_at));
        if !scopes(item.key()).any(is_covered) {
            return Vec::new();
        }
        let (key, bytes) = (Arc::clone(item.key()), ITEM_OVERHEAD + item.key().len() + item.value().len());
        self.items.push_back(SupersededItem { item: Arc::downgrade(item), key, bytes, superseded_at });
        self.bytes += bytes;
        if self.bytes <= self.sweep_above {
            return Vec::new();
        }
        self.sweep();
        let revoked = if self.bytes > self.limit { self.revoke_older_half() } else { Vec::new() };
        self.sweep_above = self.limit.max(self.bytes + self.limit / 4);
        revoked
    }

    /// Removes the items that no reader holds.
    fn sweep(&mut self) {
        self.items.retain(|item| item.item.strong_count() > 0);
        self.items.shrink_to(2 * self.items.len());
        self.bytes = self.items.iter().map(|item| item.bytes).sum();
    }

    /// Takes the leases on the items that left the ring first and make up half of all bytes.
    fn revoke_older_half(&mut self) -> Vec<Arc<Notify>> {
        let (mut revoked, mut bytes) = (Vec::new(), 0);
        for item in &self.items {
            for scope in scopes(&item.key) {
                if let Some(leases) = self.leases.get_mut(scope) {
                    revoked.extend(leases.take_below(item.superseded_at));
                }
            }
            bytes += item.bytes;
            if 2 * bytes >= self.bytes {
                break;
            }
        }
        revoked
    }
}

/// The scopes that select a key: its parents, which end with `/`, and the key itself.
fn scopes(key: &str) -> impl Iterator<Item = &str> {
    let parents = key.match_indices('/').map(|(slash, _)| slash + 1);
    parents.chain([key.len()]).filter_map(|end| key.get(..end))
}
