//! Claims: keys that exist while a write is in progress, so that other servers know of the write.
//!
//! # Contract
//!
//! A server that reserves something for a write creates a claim, and commits the write with [`Store::commit_holding`].
//! The claim ends with the write. In etcd, the lease of the claim ends it if the server stops or is paused: after
//! [`CLAIM_LIFETIME`] and a twentieth of this time.
//!
//! # Invariants
//!
//! INVARIANT (fence): a write that holds a claim is never applied after the end of the claim, however late it reaches
//! the store. So the end of a claim makes the state of its write definite.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::{Error, Op, Result, Revision, Store};

/// The beginning of the keys of all claims.
pub const CLAIMS: &str = "/apid/claims/";
/// The time after which etcd may remove a claim.
pub const CLAIM_LIFETIME: Duration = Duration::from_secs(60);
/// The time after which the lease of a claim has ended the claim.
const LEASE_LIFETIME: Duration =
    CLAIM_LIFETIME.saturating_add(Duration::from_secs(CLAIM_LIFETIME.as_secs() / 20));
/// Pause between two attempts to end a claim.
const RETRY_INTERVAL: Duration = Duration::from_millis(250);
/// Limits the concurrent retries that end claims: after an outage of etcd, many claims end at once.
static RETRIES: Semaphore = Semaphore::const_new(8);

/// A key that a write requires at a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The key.
    pub key: Arc<str>,
    /// The revision of its last change.
    pub revision: Revision,
}

impl Held {
    /// The error of a write whose key is not held any more. The write is never applied.
    pub(crate) fn lost(&self) -> Error {
        Error::Lost(Arc::clone(&self.key))
    }
}

/// A claim of this process. The drop of a claim ends it in the background.
pub struct Claim {
    store: Arc<dyn Store>,
    held: Held,
    is_ended: bool,
}

impl Claim {
    /// Creates a claim. When this returns, the observer has seen the claim and all changes before it.
    ///
    /// # Errors
    ///
    /// The errors of the commit. A claim with an unknown outcome ends with its lease.
    pub async fn create(store: &Arc<dyn Store>, key: &str, value: Bytes) -> Result<Self> {
        let revision = store.commit(key, Op::Create(value)).await?.revision;
        Ok(Claim { store: Arc::clone(store), held: Held { key: key.into(), revision }, is_ended: false })
    }

    /// The key that the write must hold.
    pub fn held(&self) -> &Held {
        &self.held
    }

    /// Ends the claim, and returns when the observer has seen its end.
    pub async fn end(mut self) {
        self.is_ended = true;
        end(&*self.store, &self.held, None).await;
    }
}

/// Deletes the key of a claim, and repeats this until the claim has certainly ended, or until a time has passed.
async fn end(store: &dyn Store, held: &Held, limit: Option<Duration>) {
    let begin = Instant::now();
    let mut permit = None;
    loop {
        let result = store.commit(&held.key, Op::Delete(held.revision)).await;
        drop(permit.take());
        let is_ended = matches!(result, Ok(_) | Err(Error::NotFound(_) | Error::Conflict(_)));
        if is_ended || limit.is_some_and(|limit| begin.elapsed() >= limit) {
            return;
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
        permit = RETRIES.acquire().await.ok();
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Without a runtime the process ends, and the lease ends the claim.
        if let (false, Ok(runtime)) = (self.is_ended, tokio::runtime::Handle::try_current()) {
            let (store, held) = (Arc::clone(&self.store), self.held.clone());
            runtime.spawn(async move { end(&*store, &held, Some(LEASE_LIFETIME)).await });
        }
    }
}

#[cfg(test)]
mod tests;
