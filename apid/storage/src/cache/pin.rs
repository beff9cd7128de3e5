//! Snapshots that slow readers walk, which the cache takes back before they cost anything of their own.
//!
//! A snapshot keeps items alive that have changed since. As long as the ring reaches back to its revision, the ring holds
//! them anyway; when the ring has moved past it, the snapshot is taken back, whether its reader looks or not.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::{Decode, Item, Snapshot};
use crate::Revision;

type Place<D> = Mutex<Option<Snapshot<D>>>;

/// Bytes that an item counts beside its value.
const OVERHEAD: usize = 64;

/// A snapshot that may be taken back.
pub struct Pin<D: Decode> {
    revision: Revision,
    place: Arc<Place<D>>,
}

impl<D: Decode> Pin<D> {
    /// The revision of the snapshot.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The next items of a scope, not before the key `start`, as many as fit in `bytes`, at least one if there is any. None
    /// when the snapshot was taken back: the reader is too slow.
    pub fn items(&self, scope: &str, start: &str, bytes: usize) -> Option<Vec<Arc<Item<D>>>> {
        let snapshot = self.place.lock().clone()?;
        let mut taken = 0;
        let items = snapshot.scope(scope, start).take_while(|item| {
            let first = taken == 0;
            taken += OVERHEAD + item.value().len();
            first || taken <= bytes
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
    places: BTreeMap<Revision, Vec<Weak<Place<D>>>>,
    /// At so many revisions those that nobody holds any more are forgotten.
    sweep_at: usize,
}

/// The least [`Pins::sweep_at`].
const SWEEP_AT: usize = 64;

impl<D: Decode> Default for Pins<D> {
    fn default() -> Self {
        Pins { places: BTreeMap::new(), sweep_at: SWEEP_AT }
    }
}

impl<D: Decode> Pins<D> {
    /// Pins a snapshot.
    pub(super) fn pin(&mut self, snapshot: Snapshot<D>) -> Pin<D> {
        if self.places.len() >= self.sweep_at {
            self.places.retain(|_, places| {
                places.retain(|place| place.strong_count() > 0);
                !places.is_empty()
            });
            self.sweep_at = SWEEP_AT.max(2 * self.places.len());
        }
        let revision = snapshot.revision();
        let place = Arc::new(Mutex::new(Some(snapshot)));
        self.places.entry(revision).or_default().push(Arc::downgrade(&place));
        Pin { revision, place }
    }

    /// Takes back the snapshots below a revision. What is answered is to be dropped when no lock is held.
    pub(super) fn take_back(&mut self, floor: Revision) -> Vec<Snapshot<D>> {
        if self.places.first_key_value().is_none_or(|(revision, _)| *revision >= floor) {
            return Vec::new();
        }
        let kept = self.places.split_off(&floor);
        let below = std::mem::replace(&mut self.places, kept);
        let places = below.into_values().flatten().filter_map(|place| place.upgrade());
        places.filter_map(|place| place.lock().take()).collect()
    }
}
