//! Addresses and ports that a write in progress reserves, and the commit of this write.
//!
//! # Contract
//!
//! [`Reservation::claim`] claims the values among the servers of the store, and returns whether the reservation has them.
//! [`Reservation::commit`] writes the Service. The caller has written the records of the reserved addresses. A commit
//! with an unknown outcome keeps the values reserved until the store reports a definite state. With several servers,
//! this is the state after the end of the claim: the store then applies the write no more.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::Rng;
use storage::{CLAIMS, Claim, CommitOutcome, Error, Held, Op, Revision, Store};
use tokio::sync::{Notify, oneshot};

use super::claimed::{ClaimedValues, SERVICES};
use super::index::{Index, SharedIndex};

/// Pause between two attempts to determine the outcome of a commit.
const OUTCOME_INTERVAL: Duration = Duration::from_millis(250);

/// Addresses and ports that a write allocates. After the reservation, a value that no Service uses is free.
pub struct Reservation {
    index: SharedIndex,
    /// Wakes the repair, which deletes the records of a write that failed.
    released: Arc<Notify>,
    rng: Arc<dyn Rng>,
    values: ClaimedValues,
    claim: Option<Claim>,
}

impl Reservation {
    /// Creates a reservation without values.
    pub(super) fn new(index: &SharedIndex, released: &Arc<Notify>, rng: &Arc<dyn Rng>) -> Self {
        let (index, released, rng) = (Arc::clone(index), Arc::clone(released), Arc::clone(rng));
        Reservation { index, released, rng, values: ClaimedValues::default(), claim: None }
    }

    /// Reserves values. The caller holds the lock of the index.
    pub(super) fn add(&mut self, index: &mut Index, addresses: Vec<IpAddr>, ports: Vec<u16>) {
        index.reserved_addresses.extend(&addresses);
        index.reserved_ports.extend(&ports);
        self.values.addresses.extend(addresses);
        self.values.ports.extend(ports);
    }

    /// The claim of the reservation, which writes for its values must hold. None for a store of one server.
    pub fn held(&self) -> Option<&Held> {
        self.claim.as_ref().map(Claim::held)
    }

    /// The reserved addresses.
    pub fn addresses(&self) -> &[IpAddr] {
        &self.values.addresses
    }

    /// Claims the values if several servers use the store. Returns false if another server has claimed one of the values;
    /// the caller then allocates again.
    ///
    /// # Errors
    ///
    /// The errors of the commit of the claim.
    pub async fn claim(&mut self, store: &Arc<dyn Store>) -> storage::Result<bool> {
        if !store.is_shared() || self.values == ClaimedValues::default() {
            return Ok(true);
        }
        let key = [CLAIMS, SERVICES, &self.rng.uuid()].concat();
        let claim = Claim::create(store, &key, self.values.encode()).await?;
        if self.index.lock().is_lost(&self.values, claim.held().revision) {
            claim.end().await;
            return Ok(false);
        }
        self.claim = Some(claim);
        Ok(true)
    }

    /// Writes the Service. Dropping the future does not cancel the write.
    ///
    /// Returns the reservation after the error `Lost`: a held key has changed, and the caller may commit again.
    ///
    /// # Errors
    ///
    /// The errors of the commit.
    pub async fn commit(
        mut self,
        store: Arc<dyn Store>,
        key: String,
        op: Op,
        mut held: Vec<Held>,
    ) -> (storage::Result<CommitOutcome>, Option<Self>) {
        let (sender, result) = oneshot::channel();
        held.extend(self.held().cloned());
        tokio::spawn(async move {
            let result = store.commit_holding(&key, op, &held).await;
            match result {
                Err(Error::Unavailable(_) | Error::Corrupt(_)) => {
                    let _ = sender.send((result, None));
                    match self.claim.take() {
                        Some(claim) => claim.end().await,
                        None => wait_for_definite_state(&*store, &key).await,
                    }
                    drop(self);
                }
                // A caller that is gone drops the reservation.
                Err(Error::Lost(_)) => drop(sender.send((result, Some(self)))),
                _ => {
                    drop(self);
                    let _ = sender.send((result, None));
                }
            }
        });
        let no_result = "the task that writes the Service ended without a result";
        result.await.unwrap_or_else(|_| (Err(Error::Unavailable(no_result.to_owned())), None))
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut index = self.index.lock();
        for address in &self.values.addresses {
            index.reserved_addresses.remove(address);
        }
        for port in &self.values.ports {
            index.reserved_ports.remove(port);
        }
        drop(index);
        if !self.values.addresses.is_empty() {
            self.released.notify_one();
        }
    }
}

/// Waits until the state of a key includes all earlier commits of the key. For a store of one server.
///
/// A read is not sufficient: the store serves reads of its old state while the database reopens. The deletion
/// at revision 0 never succeeds. The writer thread decides on this deletion after the database has reopened
/// and the observers of the store have seen all stored changes.
async fn wait_for_definite_state(store: &dyn Store, key: &str) {
    while !matches!(
        store.commit(key, Op::Delete(Revision(0))).await,
        Err(Error::NotFound(_) | Error::Conflict(_))
    ) {
        tokio::time::sleep(OUTCOME_INTERVAL).await;
    }
}
