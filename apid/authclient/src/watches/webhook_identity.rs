//! Re-authentication of open watches whose identity a webhook supplied for a limited time.
//!
//! # Contract
//!
//! Such a watch holds a copy of the credentials while it is open. When the TTL of the webhook response
//! ends, [`Reauthentication::reauthenticate`] re-authenticates with this copy. The watch continues when the
//! user is the same. The watch ends with 401 when authd rejects the credentials or establishes another user.
//! authd also rejects the credentials when the webhook fails: a new request would be rejected too. While
//! authd gives no response, the watch sends no event. Times are on the monotonic clock, because the wall
//! clock can be set back.
//!
//! # Invariants
//!
//! INVARIANT (secrets stay secret): only the request and its watch own the copy; no cache contains the copy.
//! The copy has no `Debug`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use apimachinery::status::Status;
use apimachinery::user::UserInfo;
use bytes::Bytes;

use crate::identity::credentials::Credentials;
use crate::identity::header_credentials::HeaderCredentials;
use crate::validity::Validity;
use crate::watches::authorization::MIN_WATCH_TTL;
use crate::{Auth, Identity};

/// The credentials of a request whose identity a webhook supplied, with the user of these credentials.
pub(crate) struct RetainedCredentials {
    header_credentials: HeaderCredentials,
    certificate_chain: Vec<Bytes>,
    chain_fingerprint: Option<[u8; 32]>,
    path: String,
    /// The user before impersonation.
    user: Arc<UserInfo>,
}

impl RetainedCredentials {
    /// Copies the credentials.
    pub(crate) fn new(credentials: &Credentials<'_>, user: Arc<UserInfo>) -> Self {
        RetainedCredentials {
            header_credentials: credentials.header_credentials.clone(),
            certificate_chain: credentials.certificate_chain.to_vec(),
            chain_fingerprint: credentials.chain_fingerprint.copied(),
            path: credentials.path.to_owned(),
            user,
        }
    }

    fn credentials(&self) -> Credentials<'_> {
        Credentials {
            header_credentials: &self.header_credentials,
            certificate_chain: &self.certificate_chain,
            chain_fingerprint: self.chain_fingerprint.as_ref(),
            impersonation_headers: None,
            path: &self.path,
            request_id: "watch",
        }
    }
}

impl std::fmt::Debug for RetainedCredentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RetainedCredentials").finish_non_exhaustive()
    }
}

/// The re-authentication state of an open watch.
pub(crate) struct Reauthentication {
    credentials: Arc<RetainedCredentials>,
    /// The monotonic time of the next re-authentication in nanoseconds. An earlier re-authentication would
    /// only hit the identity cache.
    due: AtomicU64,
}

impl Reauthentication {
    /// The state after the authentication of the watch request, at the monotonic time `now`. None: no webhook
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
