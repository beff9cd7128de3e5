//! Re-authentication of open watches whose identity a webhook supplied for a limited time.
//!
//! # Contract
//!
//! Such a watch holds a copy of the credentials while it is open. When the TTL of the webhook response
//! ends, [`Vouching::again`] re-authenticates with this copy. The watch continues when the user is the
//! same. It ends with 401 otherwise, also when the webhook fails, because a new request would be rejected
//! too. While authd gives no response, no event goes out. Times are on the monotonic clock, because the
//! wall clock can be set back.
//!
//! # Invariants
//!
//! INVARIANT (secrets stay secret): the copy lives in the request and in its watch, never in a cache. It
//! has no `Debug`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use apimachinery::status::Status;
use apimachinery::user::UserInfo;
use bytes::Bytes;

use super::credentials::Credentials;
use super::decision::{Expiry, WATCHED};
use super::presented::Presented;
use super::{Auth, Authenticated};

/// A copy of a request's credentials.
struct Shown {
    presented: Presented,
    certificate_chain: Vec<Bytes>,
    chain_fingerprint: Option<[u8; 32]>,
    path: String,
}

impl Shown {
    fn of(credentials: &Credentials<'_>) -> Self {
        Shown {
            presented: credentials.presented.clone(),
            certificate_chain: credentials.certificate_chain.to_vec(),
            chain_fingerprint: credentials.chain_fingerprint.copied(),
            path: credentials.path.to_owned(),
        }
    }

    fn credentials(&self) -> Credentials<'_> {
        Credentials {
            presented: &self.presented,
            certificate_chain: &self.certificate_chain,
            chain_fingerprint: self.chain_fingerprint.as_ref(),
            path: &self.path,
            request_id: "watch",
        }
    }
}

/// An identity from a webhook.
#[derive(Clone)]
pub(super) struct Vouched {
    shown: Arc<Shown>,
    /// The user of the credentials, before impersonation.
    user: Arc<UserInfo>,
    until: Expiry,
}

impl std::fmt::Debug for Vouched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vouched").field("until", &self.until).finish_non_exhaustive()
    }
}

impl Authenticated {
    /// Adds a copy of the credentials when a webhook supplied the identity.
    pub(super) fn vouched_until(mut self, credentials: &Credentials<'_>, until: Option<Expiry>) -> Self {
        let shown =
            |until| Vouched { shown: Arc::new(Shown::of(credentials)), user: Arc::clone(&self.user), until };
        self.vouched = until.map(shown);
        self
    }
}

/// The re-authentication state of an open watch.
pub(super) struct Vouching {
    vouched: Vouched,
    /// The monotonic time of the next re-authentication in nanoseconds. An earlier one would only hit the
    /// identity cache.
    due: AtomicU64,
}

impl Vouching {
    /// The state after the authentication of the request.
    pub(super) fn new(vouched: Vouched, now: Duration) -> Self {
        let due = AtomicU64::new(due(Some(vouched.until), now));
        Vouching { vouched, due }
    }

    /// The time until the next re-authentication; zero when it is due.
    pub(super) fn left(&self, now: Duration) -> Duration {
        Duration::from_nanos(self.due.load(Ordering::SeqCst)).saturating_sub(now)
    }

    /// Re-authenticates with the stored credentials.
    ///
    /// # Errors
    ///
    /// 401 when the credentials are rejected or belong to another user; 503 when authd gives no response.
    pub(super) async fn again(&self, auth: &Auth) -> Result<(), Status> {
        let who = auth.identify(&self.vouched.shown.credentials(), None).await?;
        if who.user != self.vouched.user {
            return Err(Status::unauthorized());
        }
        let until = who.vouched.map(|vouched| vouched.until);
        self.due.store(due(until, auth.clock.monotonic()), Ordering::SeqCst);
        Ok(())
    }
}

/// The end of the TTL, and at least [`WATCHED`] from now, for webhooks that forbid caching.
fn due(until: Option<Expiry>, now: Duration) -> u64 {
    let least = now.saturating_add(WATCHED);
    let due = until.map_or(least, |until| until.end().max(least));
    u64::try_from(due.as_nanos()).unwrap_or(u64::MAX)
}
