//! Revocable snapshots for slow readers.
//!
//! A snapshot keeps old versions of changed items alive. While the ring reaches back to the revision of the
//! snapshot, the ring holds these versions too. When the ring has moved past that revision, the cache revokes
//! the snapshot, even while its reader is idle.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::{Decode, Item, Snapshot};
use crate::Revision;

type PinSlot<D> = Mutex<Option<Snapshot<D>>>;

/// Bytes accounted for an item in addition to its value.
const ITEM_OVERHEAD: usize = 64;

/// A revocable snapshot.
pub struct Pin<D: Decode> {
    revision: Revision,
    slot: Arc<PinSlot<D>>,
}

impl<D: Decode> Pin<D> {
    /// The revision of the snapshot.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The next items of a scope from the key `start`: as many as fit in `bytes`, and at least one if any
    /// exists.
    ///
    /// None when the cache has revoked the snapshot, because the reader is too slow.
    pub fn items(&self, scope: &str, start: &str, bytes: usize) -> Option<Vec<Arc<Item<D>>>> {
        let snapshot = self.slot.lock().clone()?;
        let mut total = 0;
        let items = snapshot.scope(scope, start).take_while(|item| {
            let is_first = total == 0;
            total += ITEM_OVERHEAD + item.value().len();
            is_first || total <= bytes
        });
        Some(items.map(Arc::clone).collect())
    }
}

impl<D: Decode> fmt::Debug for Pin<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pin").field("revision", &self.revision).finish_non_exhaustive()
    }
}

/// The pins of a resource, by revision.
pub(super) struct Pins<D: Decode> {
    slots: BTreeMap<Revision, Vec<Weak<PinSlot<D>>>>,
    /// When this many revisions have pins, the entries of dropped pins are removed.
    sweep_at: usize,
}

/// Minimum value of [`Pins::sweep_at`], as a number of revisions.
const MIN_SWEEP_AT: usize = 64;

impl<D: Decode> Default for Pins<D> {
    fn default() -> Self {
        Pins { slots: BTreeMap::new(), sweep_at: MIN_SWEEP_AT }
    }
}

impl<D: Decode> Pins<D> {
    /// Pins a snapshot.
    pub(super) fn pin(&mut self, snapshot: Snapshot<D>) -> Pin<D> {
        if self.slots.len() >= self.sweep_at {
            self.slots.retain(|_, slots| {
                slots.retain(|slot| slot.strong_count() > 0);
                !slots.is_empty()
            });
            self.sweep_at = MIN_SWEEP_AT.max(2 * self.slots.len());
        }
        let revision = snapshot.revision();
        let slot = Arc::new(Mutex::new(Some(snapshot)));
        self.slots.entry(revision).or_default().push(Arc::downgrade(&slot));
        Pin { revision, slot }
    }

    /// Revokes the snapshots below a revision. The caller drops the result without holding a lock.
    pub(super) fn revoke_below(&mut self, floor: Revision) -> Vec<Snapshot<D>> {
        if self.slots.first_key_value().is_none_or(|(revision, _)| *revision >= floor) {
            return Vec::new();
        }
        let current = self.slots.split_off(&floor);
        let outdated = std::mem::replace(&mut self.slots, current);
        let slots = outdated.into_values().flatten().filter_map(|slot| slot.upgrade());
        slots.filter_map(|slot| slot.lock().take()).collect()
    }
}
