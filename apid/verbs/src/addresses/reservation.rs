//! Addresses and ports that a write in progress reserves, and the commit of this write.
//!
//! # Contract
//!
//! [`Reservation::commit`] writes the records of the reserved addresses and then the Service. A commit of the
//! Service with an unknown outcome keeps the values reserved until the store reports a definite state.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use storage::{CommitOutcome, Error, Op, Revision, Store};
use tokio::sync::oneshot;

use super::index::{Index, SharedIndex};
use super::range::parse_address;

/// Maximum number of attempts to write the record of an address, which a repair may change concurrently.
const ATTEMPTS: usize = 4;
/// Pause between two attempts to determine the outcome of a commit.
const OUTCOME_INTERVAL: Duration = Duration::from_millis(250);

/// Addresses and ports that a write allocates. After the reservation, a value that no Service uses is free.
pub struct Reservation {
    index: SharedIndex,
    addresses: Vec<IpAddr>,
    ports: Vec<u16>,
}

/// The result of a write. `is_definite`: the result states with certainty whether the Service is stored.
struct WriteOutcome {
    result: storage::Result<CommitOutcome>,
    is_definite: bool,
}

impl Reservation {
    /// Creates a reservation without values.
    pub(super) fn new(index: &SharedIndex) -> Self {
        Reservation { index: Arc::clone(index), addresses: Vec::new(), ports: Vec::new() }
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

    /// Writes the records of the addresses and then the Service. `records` are keys and values of IPAddress objects.
    ///
    /// Dropping the future does not cancel the write. If the write certainly failed, the records are removed.
    ///
    /// # Errors
    ///
    /// The errors of the commits. `Unavailable` also if another client writes the record of an address first.
    pub async fn commit(
        self,
        store: Arc<dyn Store>,
        key: String,
        op: Op,
        records: Vec<(String, Bytes)>,
    ) -> storage::Result<CommitOutcome> {
        let (sender, result) = oneshot::channel();
        tokio::spawn(async move {
            let outcome = self.write(&*store, &key, op, records).await;
            if outcome.is_definite {
                drop(self);
                let _ = sender.send(outcome.result);
            } else {
                let _ = sender.send(outcome.result);
                wait_for_definite_state(&*store, &key).await;
                drop(self);
            }
        });
        let no_result = "the task that writes the Service ended without a result";
        result.await.unwrap_or_else(|_| Err(Error::Unavailable(no_result.to_owned())))
    }

    async fn write(
        &self,
        store: &dyn Store,
        key: &str,
        op: Op,
        records: Vec<(String, Bytes)>,
    ) -> WriteOutcome {
        let mut written = Vec::with_capacity(records.len());
        let mut failure = None;
        for (record_key, value) in records {
            match self.write_record(store, &record_key, value).await {
                Ok(revision) => written.push((record_key, revision)),
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        let (result, is_definite) = match failure {
            Some(error) => (Err(error), true),
            None => {
                let result = store.commit(key, op).await;
                let is_definite = !matches!(result, Err(Error::Unavailable(_) | Error::Corrupt(_)));
                (result, is_definite)
            }
        };
        if result.is_err() && is_definite {
            for (record_key, revision) in written {
                // If this deletion fails, the repair task removes the record.
                let _ = store.commit(&record_key, Op::Delete(revision)).await;
            }
        }
        WriteOutcome { result, is_definite }
    }

    /// Creates the record of an address, or replaces a managed record.
    async fn write_record(&self, store: &dyn Store, key: &str, value: Bytes) -> storage::Result<Revision> {
        let mut op = Op::Create(value.clone());
        for _ in 0..ATTEMPTS {
            op = match store.commit(key, op).await {
                Ok(committed) => return Ok(committed.revision),
                Err(Error::Exists(row) | Error::Conflict(row)) => {
                    let address = key.rsplit('/').next().and_then(parse_address);
                    let is_managed = |address: IpAddr| {
                        self.index.lock().records().get(&address).is_none_or(|record| record.is_managed)
                    };
                    if !address.is_some_and(is_managed) {
                        break;
                    }
                    Op::Update(value.clone(), row.revision)
                }
                Err(Error::NotFound(_)) => Op::Create(value.clone()),
                Err(error) => return Err(error),
            };
        }
        Err(Error::Unavailable(format!("`{key}` was written by another client meanwhile")))
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
