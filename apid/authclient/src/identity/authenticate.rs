//! Authentication of requests: by authd, or from the identity cache.
//!
//! # Contract
//!
//! apid logs each rejection with the request id, which the client gets in `Audit-Id`; the client gets no
//! other detail than 401. authd logs the method, and for a rejection the failed check, once for each request
//! to authd.

use std::sync::Arc;

use apimachinery::attributes::Attributes;
use apimachinery::names::Names;
use apimachinery::status::Status;
use apimachinery::user::UserInfo;
use authproto::auth::{AuthorizeNext, Identity, authenticate_response, decide_request, decide_response};
use http::HeaderMap;
use jiff::Timestamp;
use serving::metrics::Metrics;

use crate::decisions::cache::{CachedDecision, Expiry};
use crate::decisions::rejection::Rejection;
use crate::decisions::revisions::PolicyRevisions;
use crate::identity::cache::{AcceptedIdentity, IdentityCacheHit, IdentityLifetime, ShortLivedEntry};
use crate::identity::credentials::{Credentials, Digests};
use crate::identity::header_credentials::HeaderCredentials;
use crate::identity::metrics::{AuthMetrics, AuthenticationResult};
use crate::transport::authd_api::AuthdError;
use crate::{Auth, Authenticated, to_authd_error};

/// The prefix of the `credential-id` of a client certificate.
const CERTIFICATE_ID_PREFIX: &str = "X509SHA256=";

/// A decision that authd made together with the authentication of the same request.
///
/// Only that request can use the decision: the same user with the same attributes.
#[derive(Debug)]
pub struct PrefetchedDecision {
    user: Arc<UserInfo>,
    attributes: Arc<Attributes>,
    cached_decision: Arc<CachedDecision>,
}

impl PrefetchedDecision {
    /// Returns the decision when the request is the same and no policy write has made the decision invalid.
    ///
    /// A TTL does not count, because the decision was made for this request.
    pub(crate) fn into_decision(
        self,
        user: &Arc<UserInfo>,
        attributes: &Arc<Attributes>,
        revisions: &PolicyRevisions,
        epoch: u64,
    ) -> Option<Arc<CachedDecision>> {
        let is_same_request = Arc::ptr_eq(&self.user, user) && Arc::ptr_eq(&self.attributes, attributes);
        (is_same_request && self.cached_decision.validity.is_current(revisions, epoch))
            .then_some(self.cached_decision)
    }
}

impl Auth {
    /// Registers the authentication metrics.
    pub fn register_metrics(&self, metrics: &Metrics) {
        // A second call changes nothing: a process has one registry.
        let _ = self.auth_metrics.set(AuthMetrics::new(metrics));
    }

    /// Removes the credentials from the headers of a request.
    pub fn take_credentials(&self, headers: &mut HeaderMap, names: &Names) -> HeaderCredentials {
        HeaderCredentials::take(headers, &self.proxy_headers, names)
    }

    /// Authenticates a request.
    ///
    /// # Errors
    ///
    /// 401 for rejected credentials, 503 when authd does not respond.
    pub async fn authenticate(&self, credentials: &Credentials<'_>) -> Result<Authenticated, Status> {
        Ok(self.authenticate_for(credentials, None).await.map_err(Status::from)?.0)
    }

    /// Authenticates a request and prefetches the decision on its attributes `prefetch`.
    ///
    /// `prefetch` is None for a request with impersonation headers.
    ///
    /// On a cache miss, one request to authd contains the credentials and the attributes. The result then
    /// contains the decision for [`Auth::authorize_prefetched`].
    ///
    /// # Errors
    ///
    /// As [`Auth::authenticate`], with the reason for the audit log.
    pub async fn authenticate_for(
        &self,
        credentials: &Credentials<'_>,
        prefetch: Option<&Arc<Attributes>>,
    ) -> Result<(Authenticated, Option<PrefetchedDecision>), Rejection> {
        let started_at = self.clock.monotonic();
        let (is_cached, outcome) = self.identify(credentials, prefetch).await;
        if let Some(auth_metrics) = self.auth_metrics.get() {
            let result = match &outcome {
                Ok((client, _)) => {
                    auth_metrics.count_user(&client.user.name);
                    // A client may present a token and a certificate. `expires` is the expiry of the
                    // certificate only if the certificate established the identity.
                    if is_of_certificate(&client.user)
                        && let Some(expires) = client.lifetime.expires
                    {
                        let remaining = expires.duration_since(self.clock.now());
                        auth_metrics.observe_certificate_lifetime(remaining.as_secs_f64());
                    }
                    AuthenticationResult::Success
                }
                Err(rejection) if rejection.status.code == 401 => AuthenticationResult::Failure,
                Err(_) => AuthenticationResult::Error,
            };
            let duration = self.clock.monotonic().saturating_sub(started_at);
            auth_metrics.record_cache_lookup(is_cached, duration);
            auth_metrics.record_authentication(result, duration);
        }
        outcome
    }

    /// Returns the outcome of the cache, or else asks authd. The first value: whether the cache had the outcome.
    pub(crate) async fn identify(
        &self,
        credentials: &Credentials<'_>,
        prefetch: Option<&Arc<Attributes>>,
    ) -> (bool, Result<(Authenticated, Option<PrefetchedDecision>), Rejection>) {
        let digests = self.digester.digest(credentials);
        let cache_hit = if self.link.cache_serves() { self.look_up(&digests) } else { None };
        match cache_hit {
            Some(IdentityCacheHit::Accepted(client, webhook_expiry)) => {
                (true, Ok((client.with_webhook_identity(credentials, webhook_expiry), None)))
            }
            Some(IdentityCacheHit::Rejected(detail)) => {
                let request_id = credentials.request_id;
                tracing::info!(request_id, %detail, "authentication failed (cached rejection)");
                (true, Err(Rejection::unauthorized(detail)))
            }
            // Boxed, because most requests have a hit and do not need the memory of this future.
            None => (false, Box::pin(self.ask_authd(credentials, prefetch, &digests)).await),
        }
    }

    /// Authenticates through authd and caches the outcome.
    async fn ask_authd(
        &self,
        credentials: &Credentials<'_>,
        prefetch: Option<&Arc<Attributes>>,
        digests: &Digests<'_>,
    ) -> Result<(Authenticated, Option<PrefetchedDecision>), Rejection> {
        let request_id = credentials.request_id;
        let requested_at = self.clock.monotonic();
        let reading = self.revisions.identity_reading();
        // The components that the decision needs depend on the user, who is not known yet. So authd must have
        // the newest revision of every component.
        let next = prefetch.map(|attributes| (attributes, self.revisions.full_reading()));
        let mut request = credentials.authenticate_request(reading.at_least);
        request.next = next.as_ref().map(|(attributes, reading)| AuthorizeNext {
            attributes: Some((&***attributes).into()),
            at_least: Some(reading.at_least.clone()),
        });
        let ask = decide_request::Ask::Authenticate(request);
        let fetch = self.auth_metrics.get().map(AuthMetrics::begin_fetch);
        let response = self.authd_api.decide(request_id, ask).await;
        drop(fetch);
        if let Some(auth_metrics) = self.auth_metrics.get() {
            auth_metrics.count_fetch(response.is_ok());
        }
        let response = response.map_err(Status::from)?;
        let epoch_and_era = self.epochs.observe_with_era(response.epoch.as_ref());
        let (outcome, webhook_expiry, decision) = match response.answer {
            Some(decide_response::Answer::Authenticate(response)) => {
                (response.outcome, Expiry::from_wire(requested_at, response.ttl_ms), response.next)
            }
            other => return Err(Status::from(to_authd_error(other)).into()),
        };
        match outcome {
            Some(authenticate_response::Outcome::Identity(identity)) => {
                let client = self.accept_identity(
                    identity,
                    digests,
                    reading.as_of,
                    epoch_and_era,
                    webhook_expiry,
                    request_id,
                )?;
                let prefetched = next.zip(decision).map(|((attributes, reading), decision)| {
                    let epoch = epoch_and_era.map(|(epoch, _)| epoch);
                    let expiry = Expiry::from_wire(requested_at, decision.ttl_ms);
                    let (user, attributes) = (Arc::clone(&client.user), Arc::clone(attributes));
                    let cached_decision =
                        self.cache_decision(&user, &attributes, &decision, reading.as_of, epoch, expiry);
                    PrefetchedDecision { user, attributes, cached_decision }
                });
                Ok((client.with_webhook_identity(credentials, webhook_expiry), prefetched))
            }
            Some(authenticate_response::Outcome::Rejected(rejected)) => {
                let detail: Arc<str> = rejected.detail.into();
                tracing::info!(request_id, %detail, "authentication failed");
                if let Some((epoch, _)) = epoch_and_era {
                    let outcome = Err(Arc::clone(&detail));
                    let short_lived =
                        ShortLivedEntry { outcome, as_of: reading.as_of, epoch, webhook_expiry };
                    self.identities.insert_short_lived(digests, short_lived);
                }
                Err(Rejection::unauthorized(detail))
            }
            None => Err(Status::from(AuthdError::Malformed).into()),
        }
    }

    fn look_up(&self, digests: &Digests<'_>) -> Option<IdentityCacheHit> {
        let identity_unchanged = |as_of| self.revisions.identity_unchanged(as_of);
        self.identities.find(digests, self.epochs.count(), &*self.clock, identity_unchanged)
    }

    /// Accepts an identity from authd, unless its lifetime has ended or has not begun. Caches the identity,
    /// unless an object on which it depends may have changed since the request to authd.
    ///
    /// `epoch_and_era`: the numbers of the epoch and era of the response.
    pub(crate) fn accept_identity(
        &self,
        identity: Identity,
        digests: &Digests<'_>,
        as_of: u64,
        epoch_and_era: Option<(u64, u64)>,
        webhook_expiry: Option<Expiry>,
        request_id: &str,
    ) -> Result<Authenticated, Rejection> {
        let Some(user) = identity.user else { return Err(Status::from(AuthdError::Malformed).into()) };
        let user: Arc<UserInfo> = Arc::new(user.into());
        let identity_dependencies = identity
            .rests_on
            .iter()
            .map(|o| {
                self.revisions.identity_dependencies().track(&o.group, &o.resource, &o.namespace, &o.name)
            })
            .collect();
        let expires = match identity.expires_at_ms {
            0 => None,
            ms => Some(Timestamp::from_millisecond(ms).unwrap_or(Timestamp::MIN)),
        };
        let not_before = match identity.not_before_ms {
            0 => None,
            ms => Some(Timestamp::from_millisecond(ms).unwrap_or(Timestamp::MAX)),
        };
        // A response from an older configuration serves only this request: its era is 0, and the first era
        // of authd is 1.
        let era = Some(epoch_and_era.map_or(0, |(_, era)| era));
        let lifetime = Arc::new(IdentityLifetime { not_before, expires, identity_dependencies, era });
        if !lifetime.is_valid_at(self.clock.now()) {
            let detail = "the credential has expired or is not valid yet";
            tracing::info!(request_id, detail, "authentication failed");
            return Err(Rejection::unauthorized(Arc::from(detail)));
        }
        if let Some((epoch, _)) = epoch_and_era {
            if identity.anonymous {
                let outcome = Ok((Arc::clone(&user), Arc::clone(&lifetime)));
                self.identities
                    .insert_short_lived(digests, ShortLivedEntry { outcome, as_of, epoch, webhook_expiry });
            } else if identity.rests_on.iter().all(|o| self.revisions.table().mirrors(&o.group, &o.resource))
                && (identity.rests_on.is_empty() || self.revisions.identity_unchanged(as_of))
            {
                // The dependencies are tracked, and the component `identity` has not advanced since the
                // request, so no change is missed.
                let accepted = AcceptedIdentity {
                    user: Arc::clone(&user),
                    lifetime: Arc::clone(&lifetime),
                    epoch,
                    webhook_expiry,
                };
                self.identities.insert_accepted(digests, accepted);
            }
        }
        Ok(Authenticated::without_impersonation(user, lifetime))
    }
}

/// Whether a client certificate established the identity.
///
/// The extra attribute `credential-id` of the user names the authentication method.
fn is_of_certificate(user: &UserInfo) -> bool {
    let is_certificate = |id: &String| id.starts_with(CERTIFICATE_ID_PREFIX);
    user.extra.iter().any(|(key, ids)| key.ends_with("/credential-id") && ids.iter().any(is_certificate))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_of_token_is_not_of_certificate() {
        let user = |id: &str| {
            let extra = [("authentication.svc.internal/credential-id".to_owned(), vec![id.to_owned()])];
            UserInfo { extra: extra.into(), ..UserInfo::default() }
        };
        assert!(is_of_certificate(&user("X509SHA256=00")));
        assert!(!is_of_certificate(&user("JTI=X509SHA256=00")) && !is_of_certificate(&UserInfo::default()));
    }
}
