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

use crate::decisions::cache::{Expiry, MIN_WATCH_TTL};
use crate::identity::credentials::Credentials;
use crate::identity::header_credentials::HeaderCredentials;
use crate::{Auth, Authenticated};

/// A copy of the credentials of a request, without lifetime parameters.
struct CredentialsCopy {
    header_credentials: HeaderCredentials,
    certificate_chain: Vec<Bytes>,
    chain_fingerprint: Option<[u8; 32]>,
    path: String,
}

impl CredentialsCopy {
    fn new(credentials: &Credentials<'_>) -> Self {
        CredentialsCopy {
            header_credentials: credentials.header_credentials.clone(),
            certificate_chain: credentials.certificate_chain.to_vec(),
            chain_fingerprint: credentials.chain_fingerprint.copied(),
            path: credentials.path.to_owned(),
        }
    }

    fn credentials(&self) -> Credentials<'_> {
        Credentials {
            header_credentials: &self.header_credentials,
            certificate_chain: &self.certificate_chain,
            chain_fingerprint: self.chain_fingerprint.as_ref(),
            path: &self.path,
            request_id: "watch",
        }
    }
}

/// An identity from a webhook: its user and TTL, with the credentials for re-authentication.
#[derive(Clone)]
pub(crate) struct WebhookIdentity {
    credentials_copy: Arc<CredentialsCopy>,
    /// The user of the credentials, before impersonation.
    user: Arc<UserInfo>,
    webhook_expiry: Expiry,
}

impl std::fmt::Debug for WebhookIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WebhookIdentity")
            .field("webhook_expiry", &self.webhook_expiry)
            .finish_non_exhaustive()
    }
}

impl Authenticated {
    /// Adds a copy of the credentials when a webhook supplied the identity, that is with a `webhook_expiry`.
    pub(crate) fn with_webhook_identity(
        mut self,
        credentials: &Credentials<'_>,
        webhook_expiry: Option<Expiry>,
    ) -> Self {
        let new_webhook_identity = |webhook_expiry| WebhookIdentity {
            credentials_copy: Arc::new(CredentialsCopy::new(credentials)),
            user: Arc::clone(&self.user),
            webhook_expiry,
        };
        self.webhook_identity = webhook_expiry.map(new_webhook_identity);
        self
    }
}

/// The re-authentication state of an open watch.
pub(crate) struct Reauthentication {
    webhook_identity: WebhookIdentity,
    /// The monotonic time of the next re-authentication in nanoseconds. An earlier re-authentication would
    /// only hit the identity cache.
    due: AtomicU64,
}

impl Reauthentication {
    /// The state after the authentication of the watch request, at the monotonic time `now`.
    pub(crate) fn new(webhook_identity: WebhookIdentity, now: Duration) -> Self {
        let due = AtomicU64::new(next_due(Some(webhook_identity.webhook_expiry), now));
        Reauthentication { webhook_identity, due }
    }

    /// The time until the next re-authentication; zero when re-authentication is due.
    pub(crate) fn time_left(&self, now: Duration) -> Duration {
        Duration::from_nanos(self.due.load(Ordering::SeqCst)).saturating_sub(now)
    }

    /// Re-authenticates with the stored credentials.
    ///
    /// # Errors
    ///
    /// 401 when the credentials are rejected or belong to another user; 503 when authd gives no response.
    pub(crate) async fn reauthenticate(&self, auth: &Auth) -> Result<(), Status> {
        let credentials = self.webhook_identity.credentials_copy.credentials();
        let (_, outcome) = auth.identify(&credentials, None).await;
        let (client, _) = outcome.map_err(Status::from)?;
        if client.user != self.webhook_identity.user {
            return Err(Status::unauthorized());
        }
        let webhook_expiry = client.webhook_identity.map(|webhook_identity| webhook_identity.webhook_expiry);
        self.due.store(next_due(webhook_expiry, auth.clock.monotonic()), Ordering::SeqCst);
        Ok(())
    }
}

/// The monotonic time of the next re-authentication in nanoseconds.
///
/// This is the end of the TTL, but at least [`MIN_WATCH_TTL`] from `now`, for webhooks that forbid caching.
fn next_due(webhook_expiry: Option<Expiry>, now: Duration) -> u64 {
    let earliest = now.saturating_add(MIN_WATCH_TTL);
    let due = webhook_expiry.map_or(earliest, |expiry| expiry.end().max(earliest));
    u64::try_from(due.as_nanos()).unwrap_or(u64::MAX)
}
