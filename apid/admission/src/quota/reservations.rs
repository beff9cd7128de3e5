//! What writes under way have been promised of quotas: the plugin notes it, and whoever counts usage adds it.
//!
//! # Invariants
//!
//! INVARIANT (never exceeded): a promise is written to the status of the quota, by compare-and-swap, before the object is
//! stored. While a namespace is counted anew no promise is made in it ([`Reservations::turn`]), and the count holds the
//! promises of writes that are not stored yet: what is promised is never lost, and nothing is counted twice.
//!
//! # Concurrency
//!
//! A count reads the promises first and the objects after: a write that ended in between is seen as an object. A client
//! that hangs up ends its promise, though its write may still be stored: the event of the object has it counted.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedMutexGuard};

use super::measure::Measured;

/// The promises of a process.
#[derive(Default)]
pub struct Reservations {
    turns: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    promises: Mutex<Promises>,
    uncounted: Mutex<BTreeSet<String>>,
    changed: Notify,
}

#[derive(Default)]
struct Promises {
    next: u64,
    all: HashMap<u64, Promise>,
}

/// What a write was promised.
#[derive(Clone, Debug)]
pub struct Promise {
    /// The namespace.
    pub namespace: String,
    /// The storage key of the object.
    pub key: String,
    /// The version of the object that the write replaces, `""` when it is new. Once the object has another version the
    /// write is done, or will fail.
    pub replaces: String,
    /// The object as it will be.
    pub measured: Measured,
}

/// The turn of one who promises or counts in a namespace.
pub struct Turn(#[expect(dead_code, reason = "held, not used")] OwnedMutexGuard<()>);

impl Reservations {
    /// Waits for the turn in a namespace.
    pub async fn turn(&self, namespace: &str) -> Turn {
        let lock = {
            let mut turns = self.turns.lock();
            // Whoever is waiting holds a reference: locks that nobody else holds are of namespaces at rest.
            if turns.len() > 1024 {
                turns.retain(|_, lock| Arc::strong_count(lock) > 1);
            }
            Arc::clone(turns.entry(namespace.to_owned()).or_default())
        };
        Turn(lock.lock_owned().await)
    }

    /// Notes a promise, which lasts until the answer is dropped.
    pub fn promise(self: &Arc<Self>, promise: Promise) -> Promised {
        let mut promises = self.promises.lock();
        promises.next += 1;
        let id = promises.next;
        promises.all.insert(id, promise);
        Promised { reservations: Arc::clone(self), id }
    }

    /// The promises in a namespace.
    pub fn promises(&self, namespace: &str) -> Vec<Promise> {
        let promises = self.promises.lock();
        promises.all.values().filter(|promise| promise.namespace == namespace).cloned().collect()
    }

    /// Has a namespace counted.
    pub fn count(&self, namespace: &str) {
        if self.uncounted.lock().insert(namespace.to_owned()) {
            self.changed.notify_one();
        }
    }

    /// Waits until namespaces are to be counted, and takes them.
    pub async fn uncounted(&self) -> BTreeSet<String> {
        loop {
            let namespaces = std::mem::take(&mut *self.uncounted.lock());
            if !namespaces.is_empty() {
                return namespaces;
            }
            self.changed.notified().await;
        }
    }
}

/// A promise that lasts; dropped when the write is over, whatever came of it.
pub struct Promised {
    reservations: Arc<Reservations>,
    id: u64,
}

impl Drop for Promised {
    fn drop(&mut self) {
        let promise = self.reservations.promises.lock().all.remove(&self.id);
        if let Some(promise) = promise {
            self.reservations.count(&promise.namespace);
        }
    }
}
