//! Callers of whom another service said who they are, for a time: what stays open asks it again.
//!
//! # Contract
//!
//! A watch of such a caller holds what was shown for as long as it is open, as the request that showed it would. When the
//! time of the answer is over it is shown again ([`Vouching::again`]): the watch goes on while it is the same user's, and
//! ends with 401 when not, also where the service fails, as a request would then be refused. Where it cannot be said now,
//! nothing goes out until it can. Times are those of the monotonic clock: the wall clock may be set back.
//!
//! # Invariants
//!
//! INVARIANT (secrets stay secret): what was shown lives in the request and in the watch that it became, never in a cache,
//! and is not printed.

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

/// A copy of what a request showed.
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

/// Another service said whose the credential is.
#[derive(Clone)]
pub(super) struct Vouched {
    shown: Arc<Shown>,
    /// Who it was: the caller, also where they are somebody else by right.
    user: Arc<UserInfo>,
    until: Expiry,
}

impl std::fmt::Debug for Vouched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vouched").field("until", &self.until).finish_non_exhaustive()
    }
}

impl Authenticated {
    /// The same, with what they showed where another service vouches for them.
    pub(super) fn vouched_until(mut self, credentials: &Credentials<'_>, until: Option<Expiry>) -> Self {
        let shown =
            |until| Vouched { shown: Arc::new(Shown::of(credentials)), user: Arc::clone(&self.user), until };
        self.vouched = until.map(shown);
        self
    }
}

/// What an open watch has of it.
pub(super) struct Vouching {
    vouched: Vouched,
    /// The monotonic time at which to show it again, in nanoseconds: shown sooner, the answer that is kept would count once
    /// more.
    due: AtomicU64,
}

impl Vouching {
    /// From the answer of a request on.
    pub(super) fn new(vouched: Vouched, now: Duration) -> Self {
        let due = AtomicU64::new(due(Some(vouched.until), now));
        Vouching { vouched, due }
    }

    /// How much longer the answer counts; zero: it must be shown again.
    pub(super) fn left(&self, now: Duration) -> Duration {
        Duration::from_nanos(self.due.load(Ordering::SeqCst)).saturating_sub(now)
    }

    /// Shows it again.
    ///
    /// # Errors
    ///
    /// 401: it is nobody's any more, or another's; 503: authd cannot say.
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

/// At the end of the answer's time, and not at once where nothing is to be kept.
fn due(until: Option<Expiry>, now: Duration) -> u64 {
    let least = now.saturating_add(WATCHED);
    let due = until.map_or(least, |until| until.end().max(least));
    u64::try_from(due.as_nanos()).unwrap_or(u64::MAX)
}
