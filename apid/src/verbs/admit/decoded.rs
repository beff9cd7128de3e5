//! LRU-like cache of decoded objects that admission plugins read.
//!
//! # Invariants
//!
//! INVARIANT (bounded memory): the cache holds objects of at most [`KEPT`] stored bytes, over all kinds. The
//! decoded trees take about five times as much. INVARIANT (recently read objects stay): an object that was
//! read since the last rotation of the generations is not evicted.

use std::collections::HashMap;
use std::sync::Arc;

use apimachinery::object::Object;
use parking_lot::Mutex;
use storage::Revision;

use crate::plane::Item;

/// Limit of the cached objects in stored bytes: about ten thousand namespaces and service accounts.
const KEPT: usize = 4 << 20;

/// Cache of decoded objects by key and revision, in two generations.
///
/// A read moves the object to the young generation. When the young generation is full, it becomes the old
/// one, and the objects that remained in the old generation are evicted.
#[derive(Default)]
pub(super) struct Decoded(Mutex<Halves>);

#[derive(Default)]
struct Halves {
    young: HashMap<Arc<str>, Kept>,
    /// Stored bytes of the young generation.
    bytes: usize,
    old: HashMap<Arc<str>, Kept>,
}

struct Kept {
    revision: Revision,
    bytes: usize,
    object: Arc<Object>,
}

impl Decoded {
    /// Returns the cached object of an item, if its revision is that of the item.
    pub(super) fn get(&self, item: &Item) -> Option<Arc<Object>> {
        let mut halves = self.0.lock();
        if let Some(kept) = halves.young.get(item.key()) {
            return (kept.revision == item.revision()).then(|| Arc::clone(&kept.object));
        }
        let kept = halves.old.remove(item.key()).filter(|kept| kept.revision == item.revision())?;
        let object = Arc::clone(&kept.object);
        let given_up = halves.keep(item.key(), kept);
        drop(halves);
        drop(given_up);
        Some(object)
    }

    /// Caches the object of an item.
    pub(super) fn keep(&self, item: &Item, object: &Arc<Object>) {
        let bytes = item.key().len() + item.value().len();
        let kept = Kept { revision: item.revision(), bytes, object: Arc::clone(object) };
        // Dropping many trees takes time, so the evicted objects are dropped after the lock is released.
        let given_up = self.0.lock().keep(item.key(), kept);
        drop(given_up);
    }
}

impl Halves {
    /// Inserts an object into the young generation and returns the evicted objects.
    fn keep(&mut self, key: &Arc<str>, kept: Kept) -> HashMap<Arc<str>, Kept> {
        if kept.bytes > KEPT / 2 {
            return HashMap::new();
        }
        let mut given_up = HashMap::new();
        if self.bytes + kept.bytes > KEPT / 2 {
            given_up = std::mem::replace(&mut self.old, std::mem::take(&mut self.young));
            self.bytes = 0;
        }
        self.bytes += kept.bytes;
        if let Some(before) = self.young.insert(Arc::clone(key), kept) {
            self.bytes -= before.bytes;
        }
        given_up
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keep(halves: &mut Halves, key: &str, bytes: usize) {
        let kept = Kept { revision: Revision::default(), bytes, object: Arc::default() };
        drop(halves.keep(&Arc::from(key), kept));
    }

    #[test]
    fn what_is_kept_is_bounded_by_bytes_and_what_is_read_stays() {
        let mut halves = Halves::default();
        for i in 0..100 {
            keep(&mut halves, &format!("k{i}"), KEPT / 20);
            if let Some(first) = halves.old.remove("k0") {
                drop(halves.keep(&Arc::from("k0"), first));
            }
            let bytes = |half: &HashMap<Arc<str>, Kept>| half.values().map(|kept| kept.bytes).sum::<usize>();
            assert_eq!(bytes(&halves.young), halves.bytes);
            assert!(bytes(&halves.young) + bytes(&halves.old) <= KEPT);
            assert!(halves.young.contains_key("k0"), "k0 is read in every round");
            assert!(
                halves.young.len() + halves.old.len() >= (i + 1).min(10),
                "a rotation evicts only the old generation"
            );
        }
    }

    #[test]
    fn a_new_state_replaces_the_one_before_and_what_is_too_big_is_not_kept() {
        let mut halves = Halves::default();
        for _ in 0..100 {
            keep(&mut halves, "same", KEPT / 5);
        }
        assert_eq!((halves.young.len(), halves.bytes), (1, KEPT / 5));
        keep(&mut halves, "big", KEPT / 2 + 1);
        assert!(!halves.young.contains_key("big"));
    }
}
