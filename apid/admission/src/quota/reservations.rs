//! Quota reservations of in-flight writes.
//! The plugin ResourceQuota records reservations; the quota controller adds the reservations to its count.
//!
//! # Invariants
//!
//! INVARIANT (never exceeded): the plugin writes a charge to the quota status by compare-and-swap before
//! the object is stored. During a recount of a namespace, the plugin makes no reservation in the namespace
//! ([`Reservations::lock_namespace`]). The count includes the reservations of writes that are not yet stored.
//! So no reservation is lost and no object counts twice.
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

use super::measure::MeasuredObject;

/// Quota reservations of the process.
#[derive(Default)]
pub struct Reservations {
    locks: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    entries: Mutex<ReservationTable>,
    recount_namespaces: Mutex<BTreeSet<String>>,
    recount_requested: Notify,
}

#[derive(Default)]
struct ReservationTable {
    next: u64,
    all: HashMap<u64, Reservation>,
}

/// Quota reservation of one write.
#[derive(Clone, Debug)]
pub struct Reservation {
    /// Namespace of the object.
    pub namespace: String,
    /// Storage key of the object.
    pub key: String,
    /// The resourceVersion that the write replaces, `""` for a new object.
    /// Once the object has another version, the write has completed or will fail.
    pub replaces: String,
    /// Measured object after the write.
    pub measured: MeasuredObject,
}

/// Lock of a namespace for reservations and counts.
pub struct NamespaceLock(#[expect(dead_code, reason = "the guard only holds the lock")] OwnedMutexGuard<()>);

impl Reservations {
    /// Waits for the lock of a namespace.
    pub async fn lock_namespace(&self, namespace: &str) -> NamespaceLock {
        let lock = {
            let mut locks = self.locks.lock();
            // A waiter holds a reference; locks without other references belong to idle namespaces.
            if locks.len() > 1024 {
                locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            }
            Arc::clone(locks.entry(namespace.to_owned()).or_default())
        };
        NamespaceLock(lock.lock_owned().await)
    }

    /// Records a reservation, which lasts until the caller drops the guard.
    pub fn reserve(self: &Arc<Self>, reservation: Reservation) -> ReservationGuard {
        let mut entries = self.entries.lock();
        entries.next += 1;
        let id = entries.next;
        entries.all.insert(id, reservation);
        ReservationGuard { reservations: Arc::clone(self), id }
    }

    /// Reservations in a namespace.
    pub fn in_namespace(&self, namespace: &str) -> Vec<Reservation> {
        let entries = self.entries.lock();
        entries.all.values().filter(|reservation| reservation.namespace == namespace).cloned().collect()
    }

    /// Requests a recount of a namespace.
    pub fn request_recount(&self, namespace: &str) {
        if self.recount_namespaces.lock().insert(namespace.to_owned()) {
            self.recount_requested.notify_one();
        }
    }

    /// Waits for recount requests and takes them.
    pub async fn next_recount(&self) -> BTreeSet<String> {
        loop {
            let namespaces = std::mem::take(&mut *self.recount_namespaces.lock());
            if !namespaces.is_empty() {
                return namespaces;
            }
            self.recount_requested.notified().await;
        }
    }
}

/// Guard of a reservation. The write drops the guard at its end, even after a failure.
pub struct ReservationGuard {
    reservations: Arc<Reservations>,
    id: u64,
}

impl Drop for ReservationGuard {
    fn drop(&mut self) {
        let reservation = self.reservations.entries.lock().all.remove(&self.id);
        if let Some(reservation) = reservation {
            self.reservations.request_recount(&reservation.namespace);
        }
    }
}
