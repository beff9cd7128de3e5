//! Re-authentication of open watches whose identity a webhook supplied for a limited time.
//!
//! # Contract
//!
//! Such a watch holds a copy of the credentials while it is open. When the TTL of the webhook response
//! ends, [`Reauthentication::reauthenticate`] re-authenticates with this copy. The watch continues when the
//! user is the same. The watch ends with 401 when authd rejects the credentials or establishes another user.
//! authd also rejects the credentials when the webhook fails: a new request would be rejected too. While
//! authd does not respond, the watch sends no event. Times are on the monotonic clock, because the wall
//! clock can be set back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use apimachinery::status::Status;

use crate::identity::credentials::RetainedCredentials;
use crate::validity::{MIN_WATCH_TTL, Validity};
use crate::{Auth, Identity};

/// The re-authentication state of an open watch.
pub(crate) struct Reauthentication {
    credentials: Arc<RetainedCredentials>,
    /// The monotonic time of the next re-authentication in nanoseconds. An earlier re-authentication would
    /// only hit the identity cache.
    due: AtomicU64,
}

impl Reauthentication {
    /// The state after the authentication of the watch request, at the monotonic time `now`; None if no webhook
    /// supplied the identity.
    pub(crate) fn new(identity: &Identity, now: Duration) -> Option<Self> {
        let credentials = Arc::clone(identity.retained_credentials.as_ref()?);
        Some(Reauthentication { credentials, due: AtomicU64::new(next_due(&identity.validity, now)) })
    }

    /// The time until the next re-authentication; zero when re-authentication is due.
    pub(crate) fn time_left(&self, now: Duration) -> Duration {
        Duration::from_nanos(self.due.load(Ordering::SeqCst)).saturating_sub(now)
    }

    /// Re-authenticates with the retained credentials.
    ///
    /// # Errors
    ///
    /// 401 when the credentials are rejected or belong to another user; 503 when authd does not respond.
    pub(crate) async fn reauthenticate(&self, auth: &Auth) -> Result<(), Status> {
        let (_, outcome) = auth.identify(&self.credentials.credentials(), None).await;
        let (identity, _) = outcome?;
        if identity.user != self.credentials.user {
            return Err(Status::unauthorized());
        }
        self.due.store(next_due(&identity.validity, auth.clock.monotonic()), Ordering::SeqCst);
        Ok(())
    }
}

/// The monotonic time of the next re-authentication in nanoseconds.
///
/// This is the end of the TTL, but at least [`MIN_WATCH_TTL`] from `now`, for webhooks that forbid caching.
fn next_due(validity: &Validity, now: Duration) -> u64 {
    let earliest = now.saturating_add(MIN_WATCH_TTL);
    let due = validity.ttl_end().map_or(earliest, |end| end.max(earliest));
    u64::try_from(due.as_nanos()).unwrap_or(u64::MAX)
}
