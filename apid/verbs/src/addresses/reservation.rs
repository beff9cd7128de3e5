//! Addresses and ports that a write in progress reserves, and the commit of this write.
//!
//! # Contract
//!
//! [`Reservation::commit`] writes the Service. The caller has written the records of the reserved addresses. A commit
//! with an unknown outcome keeps the values reserved until the store reports a definite state.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use storage::{CommitOutcome, Error, Op, Revision, Store};
use tokio::sync::{Notify, oneshot};

use super::index::{Index, SharedIndex};

/// Pause between two attempts to determine the outcome of a commit.
const OUTCOME_INTERVAL: Duration = Duration::from_millis(250);

/// Addresses and ports that a write allocates. After the reservation, a value that no Service uses is free.
pub struct Reservation {
    index: SharedIndex,
    /// Wakes the repair, which deletes the records of a write that failed.
    released: Arc<Notify>,
    addresses: Vec<IpAddr>,
    ports: Vec<u16>,
}

impl Reservation {
    /// Creates a reservation without values.
    pub(super) fn new(index: &SharedIndex, released: &Arc<Notify>) -> Self {
        let (index, released) = (Arc::clone(index), Arc::clone(released));
        Reservation { index, released, addresses: Vec::new(), ports: Vec::new() }
    }

    /// Reserves values. The caller holds the lock of the index.
    pub(super) fn add(&mut self, index: &mut Index, addresses: Vec<IpAddr>, ports: Vec<u16>) {
        index.reserved_addresses.extend(&addresses);
        index.reserved_ports.extend(&ports);
        self.addresses.extend(addresses);
        self.ports.extend(ports);
    }

    /// The reserved addresses.
    pub fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// Writes the Service. Dropping the future does not cancel the write.
    ///
    /// # Errors
    ///
    /// The errors of the commit.
    pub async fn commit(self, store: Arc<dyn Store>, key: String, op: Op) -> storage::Result<CommitOutcome> {
        let (sender, result) = oneshot::channel();
        tokio::spawn(async move {
            let result = store.commit(&key, op).await;
            if matches!(result, Err(Error::Unavailable(_) | Error::Corrupt(_))) {
                let _ = sender.send(result);
                wait_for_definite_state(&*store, &key).await;
                drop(self);
            } else {
                drop(self);
                let _ = sender.send(result);
            }
        });
        let no_result = "the task that writes the Service ended without a result";
        result.await.unwrap_or_else(|_| Err(Error::Unavailable(no_result.to_owned())))
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut index = self.index.lock();
        for address in &self.addresses {
            index.reserved_addresses.remove(address);
        }
        for port in &self.ports {
            index.reserved_ports.remove(port);
        }
        drop(index);
        if !self.addresses.is_empty() {
            self.released.notify_one();
        }
    }
}

/// Waits until the state of a key includes all earlier commits of the key.
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
