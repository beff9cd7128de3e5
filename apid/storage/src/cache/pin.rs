//! Revocable snapshots for slow readers.
//!
//! A snapshot keeps old versions of changed items alive. While the ring reaches back to the revision of the
//! snapshot, the ring holds these versions too. When the ring has moved past that revision, the cache revokes
//! the snapshot, even while its reader is idle.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use super::item::ITEM_OVERHEAD;
use super::revision_index::RevisionIndex;
use super::{Decode, Item, Snapshot};
use crate::Revision;

type PinSlot<D> = Mutex<Option<Snapshot<D>>>;

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

/// The pins of a resource.
pub(super) struct Pins<D: Decode>(RevisionIndex<PinSlot<D>>);

impl<D: Decode> Default for Pins<D> {
    fn default() -> Self {
        Pins(RevisionIndex::default())
    }
}

impl<D: Decode> Pins<D> {
    /// Pins a snapshot.
    pub(super) fn pin(&mut self, snapshot: Snapshot<D>) -> Pin<D> {
        let revision = snapshot.revision();
        let slot = Arc::new(Mutex::new(Some(snapshot)));
        self.0.add(revision, &slot);
        Pin { revision, slot }
    }

    /// Revokes the snapshots below a revision. The caller drops the result without holding a lock.
    pub(super) fn revoke_below(&mut self, floor: Revision) -> Vec<Snapshot<D>> {
        self.0.take_below(floor).into_iter().filter_map(|slot| slot.lock().take()).collect()
    }
}
