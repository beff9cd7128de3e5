//! LRU-like cache of decoded objects that admission plugins read.
//!
//! # Invariants
//!
//! INVARIANT (bounded memory): the cache holds objects of at most [`CACHE_LIMIT_BYTES`] stored bytes, over
//! all kinds. The decoded trees take about five times as much.
//! INVARIANT (recently read objects stay): the next rotation of the generations does not evict an object that
//! was read since the last rotation.

use std::collections::HashMap;
use std::sync::Arc;

use apimachinery::object::Object;
use parking_lot::Mutex;
use storage::Revision;

use crate::Item;

/// Limit of the cached objects in stored bytes: about ten thousand namespaces and service accounts.
const CACHE_LIMIT_BYTES: usize = 4 << 20;

/// Cache of decoded objects by key and revision, in two generations.
///
/// A read moves the object to the young generation. When the young generation is full, it becomes the old
/// one, and the objects that remained in the old generation are evicted.
#[derive(Default)]
pub(super) struct DecodedObjects(Mutex<Generations>);

#[derive(Default)]
struct Generations {
    young: HashMap<Arc<str>, CachedObject>,
    /// Stored bytes of the young generation.
    bytes: usize,
    old: HashMap<Arc<str>, CachedObject>,
}

struct CachedObject {
    revision: Revision,
    bytes: usize,
    object: Arc<Object>,
}

impl DecodedObjects {
    /// Returns the cached object of an item, if it was decoded from the revision of the item.
    pub(super) fn get(&self, item: &Item) -> Option<Arc<Object>> {
        let mut generations = self.0.lock();
        if let Some(cached) = generations.young.get(item.key()) {
            return (cached.revision == item.revision()).then(|| Arc::clone(&cached.object));
        }
        let cached =
            generations.old.remove(item.key()).filter(|cached| cached.revision == item.revision())?;
        let object = Arc::clone(&cached.object);
        let evicted = generations.insert(item.key(), cached);
        drop(generations);
        drop(evicted);
        Some(object)
    }

    /// Caches the object of an item.
    pub(super) fn insert(&self, item: &Item, object: &Arc<Object>) {
        let bytes = item.key().len() + item.value().len();
        let cached = CachedObject { revision: item.revision(), bytes, object: Arc::clone(object) };
        // Dropping many trees takes time, so the evicted objects are dropped after the lock is released.
        let evicted = self.0.lock().insert(item.key(), cached);
        drop(evicted);
    }
}

impl Generations {
    /// Inserts an object into the young generation and returns the evicted objects.
    fn insert(&mut self, key: &Arc<str>, cached: CachedObject) -> HashMap<Arc<str>, CachedObject> {
        if cached.bytes > CACHE_LIMIT_BYTES / 2 {
            return HashMap::new();
        }
        let mut evicted = HashMap::new();
        if self.bytes + cached.bytes > CACHE_LIMIT_BYTES / 2 {
            evicted = std::mem::replace(&mut self.old, std::mem::take(&mut self.young));
            self.bytes = 0;
        }
        self.bytes += cached.bytes;
        if let Some(replaced) = self.young.insert(Arc::clone(key), cached) {
            self.bytes -= replaced.bytes;
        }
        evicted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insert(generations: &mut Generations, key: &str, bytes: usize) {
        let cached = CachedObject { revision: Revision::default(), bytes, object: Arc::default() };
        drop(generations.insert(&Arc::from(key), cached));
    }

    #[test]
    fn decoded_object_cache_stays_within_limit_and_retains_read_objects() {
        let mut generations = Generations::default();
        for i in 0..100 {
            insert(&mut generations, &format!("k{i}"), CACHE_LIMIT_BYTES / 20);
            if let Some(first) = generations.old.remove("k0") {
                drop(generations.insert(&Arc::from("k0"), first));
            }
            let bytes = |half: &HashMap<Arc<str>, CachedObject>| {
                half.values().map(|cached| cached.bytes).sum::<usize>()
            };
            assert_eq!(bytes(&generations.young), generations.bytes);
            assert!(bytes(&generations.young) + bytes(&generations.old) <= CACHE_LIMIT_BYTES);
            assert!(generations.young.contains_key("k0"), "k0 is read in every round");
            assert!(
                generations.young.len() + generations.old.len() >= (i + 1).min(10),
                "a rotation evicts only the old generation"
            );
        }
    }

    #[test]
    fn decoded_object_cache_replaces_revisions_and_skips_large_objects() {
        let mut generations = Generations::default();
        for _ in 0..100 {
            insert(&mut generations, "same", CACHE_LIMIT_BYTES / 5);
        }
        assert_eq!((generations.young.len(), generations.bytes), (1, CACHE_LIMIT_BYTES / 5));
        insert(&mut generations, "big", CACHE_LIMIT_BYTES / 2 + 1);
        assert!(!generations.young.contains_key("big"));
    }
}
