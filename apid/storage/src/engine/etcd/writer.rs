//! Commits: one transaction each, which compares the revision of the last change of its key.

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

use super::client::{Client, Failure, Method, Rejection};
use super::leases::Leases;
use super::protocol as pb;
use super::{Shared, revision_of, row, to_etcd};
use crate::{CommitOutcome, Error, Held, Op, Result, Revision};

/// The revision of an absent key in comparisons.
const ABSENT: i64 = 0;

/// Executes commits.
pub(super) struct Writer {
    pub(super) shared: Arc<Shared>,
    pub(super) client: Arc<Client>,
    pub(super) leases: Leases,
}

/// The expected revision in a comparison. No key is at revision 0, which would mean an absent key there.
fn expected_revision(revision: Revision) -> i64 {
    if revision == Revision(0) { -1 } else { to_etcd(revision) }
}

impl Writer {
    /// Executes the transaction of a commit, and waits until its revision is published.
    pub(super) async fn write(&self, key: &str, op: Op, held: &[Held]) -> Result<CommitOutcome> {
        let begin = Instant::now();
        let operation = match op {
            Op::Create(_) => "create",
            Op::Update(..) => "update",
            Op::Delete(_) => "delete",
        };
        let answer = self.transact(key, op, held).await;
        let is_ok = !matches!(answer, Err(Error::Unavailable(_) | Error::Full(_) | Error::Corrupt(_)));
        self.client.telemetry.request(operation, key, begin.elapsed(), is_ok);
        let Answer { result, at } = answer?;
        // The caller of a rejected write reads the newer state from a cache: the observer must have seen this state.
        let revision = match &result {
            Ok(_) => at,
            Err(Error::Exists(row) | Error::Conflict(row)) => row.revision,
            Err(_) => {
                // The key was deleted, or a held key changed, at this revision or before: it may have no event.
                self.shared.expect_revision(at.0);
                at
            }
        };
        if result.is_ok() {
            self.shared.expect_event(revision);
        }
        self.shared.wait_until_published(revision).await?;
        result
    }

    /// Executes the transaction.
    ///
    /// # Errors
    ///
    /// The transaction has no result.
    async fn transact(&self, key: &str, op: Op, held: &[Held]) -> Result<Answer> {
        let (value, expected) = match op {
            Op::Create(value) => (Some(value), None),
            Op::Update(value, at) => (Some(value), Some(at)),
            Op::Delete(at) => (None, Some(at)),
        };
        let response = match self.put_or_delete(key, value.clone(), expected, held).await {
            Err(Rejected::Lease) => self.put_or_delete(key, value.clone(), expected, held).await,
            result => result,
        };
        let response = response.map_err(|rejected| match rejected {
            Rejected::Lease => Error::Unavailable("etcd removed the lease of a key at once".to_owned()),
            Rejected::Failure(failure) if failure.rejection() == Rejection::TooLarge => {
                Error::TooLarge(value.as_ref().map_or(0, Bytes::len))
            }
            Rejected::Failure(failure) => {
                let error = failure.into_error();
                if let Error::Full(reason) = &error {
                    *self.shared.full.lock() = Some(reason.clone());
                }
                error
            }
        })?;
        let at = revision_of(response.header.as_ref());
        if response.succeeded {
            return Ok(Answer { result: Ok(CommitOutcome { revision: at }), at });
        }
        let found = response.into_found().and_then(|kv| row(&self.shared.keys, kv));
        let is_met = found.as_ref().map(|row| row.revision) == expected;
        if let Some(held) = held.first().filter(|_| is_met) {
            return Ok(Answer { result: Err(held.lost()), at });
        }
        let rejection = match (found, expected) {
            (Some(row), None) => Error::Exists(Box::new(row)),
            (Some(row), Some(_)) => Error::Conflict(Box::new(row)),
            (None, Some(_)) => Error::NotFound(key.into()),
            (None, None) => {
                let reason = format!("etcd rejected the creation of key `{key}`, which does not exist");
                return Err(Error::Corrupt(reason));
            }
        };
        Ok(Answer { result: Err(rejection), at })
    }

    async fn put_or_delete(
        &self,
        key: &str,
        value: Option<Bytes>,
        expected: Option<Revision>,
        held: &[Held],
    ) -> Result<pb::TxnResponse, Rejected> {
        let lease = match &value {
            Some(_) => self.leases.of(key, &self.client).await.map_err(Rejected::Failure)?,
            None => 0,
        };
        let etcd_key = self.shared.keys.key(key);
        let change = match value {
            Some(value) => pb::Request::Put(pb::PutRequest { key: etcd_key.clone(), value, lease }),
            None => pb::Request::Delete(pb::DeleteRequest { key: etcd_key.clone() }),
        };
        let read = pb::RangeRequest::one(etcd_key.clone());
        let is_at = |key, revision| pb::Compare {
            target: pb::MOD_REVISION,
            key,
            expected: Some(pb::Expected::ModRevision(revision)),
        };
        let held =
            held.iter().map(|held| is_at(self.shared.keys.key(&held.key), expected_revision(held.revision)));
        let request = pb::TxnRequest {
            compare: [is_at(etcd_key, expected.map_or(ABSENT, expected_revision))]
                .into_iter()
                .chain(held)
                .collect(),
            success: vec![change.into()],
            failure: vec![pb::Request::Range(read).into()],
        };
        match self.client.call(Method::Txn, request).await {
            Err(failure) if lease != 0 && failure.rejection() == Rejection::LeaseNotFound => {
                self.leases.forget(lease).await;
                Err(Rejected::Lease)
            }
            result => result.map_err(Rejected::Failure),
        }
    }
}

/// The result of a transaction, and the revision of etcd after it.
struct Answer {
    result: Result<CommitOutcome>,
    at: Revision,
}

/// The reason why a transaction has no result.
enum Rejected {
    /// Nothing was written: the lease has ended.
    Lease,
    Failure(Failure),
}
