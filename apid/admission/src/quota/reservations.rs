//! Quota reservations of in-flight writes.
//! The plugin ResourceQuota records reservations; the quota controller adds the reservations to its count.
//!
//! # Contract
//!
//! With one server, reservations are in memory. With several servers, each of them is a claim in the store
//! ([`storage::Claim`]), which the write of the object holds, so that the controller of any server finds them.
//!
//! # Invariants
//!
//! INVARIANT (never exceeded): the plugin records a reservation, then writes a charge to the quota status by
//! compare-and-swap, and then the object is stored. A count reads the quotas first, the reservations second and the
//! objects third, each at the revision of the former or later, and writes by compare-and-swap. So a count that sees a
//! charge sees its reservation or its object. With one server, [`Reservations::lock_namespace`] ensures the same.
//!
//! # Concurrency
//!
//! A count that sees both the reservation and the object counts one of them. With one server, a client disconnect ends
//! the reservation, although the write may still be stored. The event of the object then triggers a recount. With
//! several servers, the write is not stored after the end of the reservation.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};

use apimachinery::clock::Rng;
use apimachinery::object::Object;
use apimachinery::status::Status;
use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::{Value, json};
use storage::{CLAIMS, Claim, Held, Revision, Store};
use tokio::sync::{Notify, OwnedMutexGuard};
use tokio::time::Instant;

use super::measure::MeasuredObject;

/// The beginning of the keys of the claims of reservations, after that of all claims. The namespace follows.
const QUOTA: &str = "quota/";

/// Quota reservations of the process, or of all servers of its store.
#[derive(Default)]
pub struct Reservations {
    locks: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    entries: Mutex<ReservationTable>,
    /// The store, if several servers use it.
    store: OnceLock<Arc<dyn Store>>,
    /// With several servers: the versions of quotas that rejected a write, by namespace, and the time of the first rejection.
    rejecting: Mutex<HashMap<String, (Vec<String>, Instant)>>,
    recount_namespaces: Mutex<BTreeSet<String>>,
    recount_requested: Notify,
}

#[derive(Default)]
struct ReservationTable {
    next: u64,
    all: HashMap<u64, Reservation>,
}

/// Quota reservation of one write.
#[derive(Clone, Debug, PartialEq)]
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

impl Reservation {
    /// The value of the claim.
    fn encode(&self) -> Bytes {
        let value = json!({"key": self.key, "replaces": self.replaces, "measured": self.measured.to_json()});
        value.to_string().into()
    }

    /// Reads the value of a claim; None for another form.
    fn decode(namespace: &str, value: &[u8]) -> Option<Self> {
        let value: Value = serde_json::from_slice(value).ok()?;
        let text = |field: &str| value.get(field).and_then(Value::as_str).map(str::to_owned);
        Some(Reservation {
            namespace: namespace.to_owned(),
            key: text("key")?,
            replaces: text("replaces")?,
            measured: MeasuredObject::from_json(value.get("measured")?)?,
        })
    }
}

/// Lock of a namespace for reservations and counts of this process.
pub struct NamespaceLock(#[expect(dead_code, reason = "the guard only holds the lock")] OwnedMutexGuard<()>);

impl Reservations {
    /// Keeps the reservations in a store that several servers use.
    pub fn share(&self, store: &Arc<dyn Store>) {
        if store.is_shared() {
            let _ = self.store.set(Arc::clone(store));
        }
    }

    /// The store and the beginning of the keys of all reservations in it, if several servers use it.
    pub fn shared(&self) -> Option<(&Arc<dyn Store>, String)> {
        self.store.get().map(|store| (store, [CLAIMS, QUOTA].concat()))
    }

    /// The time of the first rejection here by the quotas of a namespace in these versions: now, if there was none.
    pub(super) fn rejecting_since(&self, namespace: &str, quotas: &[Arc<Object>]) -> Instant {
        let versions: Vec<String> = quotas.iter().map(|quota| quota.resource_version().to_owned()).collect();
        let mut rejecting = self.rejecting.lock();
        if let Some((_, since)) = rejecting.get(namespace).filter(|(known, _)| *known == versions) {
            return *since;
        }
        if rejecting.len() > 1024 {
            rejecting.clear();
        }
        let now = Instant::now();
        rejecting.insert(namespace.to_owned(), (versions, now));
        now
    }

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

    /// Records a reservation, which lasts until the caller drops the guard. `rng` names the claim.
    ///
    /// # Errors
    ///
    /// 503: the store of several servers is unavailable.
    pub async fn reserve(
        self: &Arc<Self>,
        reservation: Reservation,
        rng: &dyn Rng,
    ) -> Result<ReservationGuard, Status> {
        let namespace = reservation.namespace.clone();
        let place = match self.shared() {
            Some((store, prefix)) => {
                let key = format!("{prefix}{namespace}/{}", rng.uuid());
                let claim = Claim::create(store, &key, reservation.encode()).await;
                let failed = |error| Status::unavailable(format!("unable to reserve the quota: {error}"), 1);
                Place::Store(claim.map_err(failed)?)
            }
            None => {
                let mut entries = self.entries.lock();
                entries.next += 1;
                let id = entries.next;
                entries.all.insert(id, reservation);
                Place::Memory(id)
            }
        };
        Ok(ReservationGuard { reservations: Arc::clone(self), namespace, place, is_charged: true })
    }

    /// Reservations in a namespace. With several servers, those at a revision: not before the read of the quotas.
    ///
    /// # Errors
    ///
    /// The store of several servers is unavailable.
    pub async fn in_namespace(&self, namespace: &str, at: Revision) -> storage::Result<Vec<Reservation>> {
        let Some((store, prefix)) = self.shared() else {
            let entries = self.entries.lock();
            let in_namespace = entries.all.values().filter(|reservation| reservation.namespace == namespace);
            return Ok(in_namespace.cloned().collect());
        };
        let rows = store.range(&format!("{prefix}{namespace}/"), "", 0, Some(at)).await?.rows;
        let decode = |row: storage::Row| {
            let reservation = Reservation::decode(namespace, &row.value);
            if reservation.is_none() {
                tracing::error!(key = &*row.key, "a quota reservation of another server cannot be decoded");
            }
            reservation
        };
        Ok(rows.into_iter().filter_map(decode).collect())
    }

    /// Requests a recount of a namespace by this process.
    fn request_recount(&self, namespace: &str) {
        if self.recount_namespaces.lock().insert(namespace.to_owned()) {
            self.recount_requested.notify_one();
        }
    }

    /// Waits for recount requests and takes them. With several servers, the end of a reservation in the store is the
    /// request.
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

/// The place of a reservation.
enum Place {
    Memory(u64),
    /// The drop of the claim ends it.
    Store(Claim),
}

/// Guard of a reservation. The write drops the guard at its end, even after a failure.
pub struct ReservationGuard {
    reservations: Arc<Reservations>,
    namespace: String,
    place: Place,
    /// Whether a quota may contain the charge of the write.
    is_charged: bool,
}

impl ReservationGuard {
    /// The key that the write must hold, if several servers use the store.
    pub(super) fn held(&self) -> Option<Held> {
        match &self.place {
            Place::Memory(_) => None,
            Place::Store(claim) => Some(claim.held().clone()),
        }
    }

    /// Ends the reservation of a write that no quota contains.
    pub(super) fn withdraw(mut self) {
        self.is_charged = false;
    }
}

impl Drop for ReservationGuard {
    fn drop(&mut self) {
        if let Place::Memory(id) = self.place {
            self.reservations.entries.lock().all.remove(&id);
            if self.is_charged {
                self.reservations.request_recount(&self.namespace);
            }
        }
    }
}
