//! Quota reservations of in-flight writes.
//! The plugin records them; the quota controller adds them to its count.
//!
//! # Invariants
//!
//! INVARIANT (never exceeded): the plugin writes a charge to the quota status by compare-and-swap before
//! storage. During a recount of a namespace, the plugin makes no reservation in it ([`Reservations::turn`]).
//! The count includes the reservations of writes that are not yet stored. So no reservation is lost and no
//! object counts twice.
//!
//! # Concurrency
//!
//! A count reads the reservations first and the objects second, so it sees a write that ends in between as an
//! object. A client disconnect ends the reservation, although the write may still be stored. The event of the
//! object then triggers a recount.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedMutexGuard};

use super::measure::Measured;

/// Quota reservations of the process.
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

/// Quota reservation of one write.
#[derive(Clone, Debug)]
pub struct Promise {
    /// Namespace of the object.
    pub namespace: String,
    /// Storage key of the object.
    pub key: String,
    /// The resourceVersion that the write replaces, `""` for a new object.
    /// Once the object has another version, the write has completed or will fail.
    pub replaces: String,
    /// Measured object after the write.
    pub measured: Measured,
}

/// Lock of a namespace for reservations and counts.
pub struct Turn(#[expect(dead_code, reason = "the guard only holds the lock")] OwnedMutexGuard<()>);

impl Reservations {
    /// Waits for the lock of a namespace.
    pub async fn turn(&self, namespace: &str) -> Turn {
        let lock = {
            let mut turns = self.turns.lock();
            // A waiter holds a reference; locks without other references belong to idle namespaces.
            if turns.len() > 1024 {
                turns.retain(|_, lock| Arc::strong_count(lock) > 1);
            }
            Arc::clone(turns.entry(namespace.to_owned()).or_default())
        };
        Turn(lock.lock_owned().await)
    }

    /// Records a reservation, which lasts until the caller drops the guard.
    pub fn promise(self: &Arc<Self>, promise: Promise) -> Promised {
        let mut promises = self.promises.lock();
        promises.next += 1;
        let id = promises.next;
        promises.all.insert(id, promise);
        Promised { reservations: Arc::clone(self), id }
    }

    /// Reservations in a namespace.
    pub fn promises(&self, namespace: &str) -> Vec<Promise> {
        let promises = self.promises.lock();
        promises.all.values().filter(|promise| promise.namespace == namespace).cloned().collect()
    }

    /// Requests a recount of a namespace.
    pub fn count(&self, namespace: &str) {
        if self.uncounted.lock().insert(namespace.to_owned()) {
            self.changed.notify_one();
        }
    }

    /// Waits for recount requests and takes them.
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

/// Guard of a reservation. The write drops it at its end, with any result.
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
