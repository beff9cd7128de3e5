//! Authentication of requests: by authd, or from the identity cache.
//!
//! # Contract
//!
//! apid logs each rejection with the request id. The client gets this id in `Audit-Id`, and no other detail
//! than 401. authd logs the method, and for a rejection the failed check, once for each request to authd.

use std::sync::Arc;

use apimachinery::attributes::Attributes;
use apimachinery::status::Status;
use apimachinery::user::UserInfo;
use authproto::auth::{
    self, AuthenticateResponse, AuthorizeNext, authenticate_response, decide_request, decide_response,
};
use jiff::Timestamp;

use crate::decisions::cache::CachedDecision;
use crate::decisions::epoch::EpochNumber;
use crate::decisions::rejection::Rejection;
use crate::decisions::revisions::{Baseline, DependencySet};
use crate::identity::cache::CachedIdentity;
use crate::identity::credentials::{Credentials, Digests};
use crate::identity::metrics::{AuthMetrics, AuthenticationResult};
use crate::transport::authd_api::AuthdError;
use crate::validity::Validity;
use crate::{Auth, Identity, to_authd_error};

/// The prefix of the `credential-id` of a client certificate.
const CERTIFICATE_ID_PREFIX: &str = "X509SHA256=";

/// An identity, and the decision that authd made in the same response.
type IdentityAndDecision = (Identity, Option<Arc<CachedDecision>>);

impl Auth {
    /// Authenticates a request without its authorization.
    ///
    /// # Errors
    ///
    /// 401 for rejected credentials, 503 when authd does not respond.
    pub async fn authenticate(&self, credentials: &Credentials<'_>) -> Result<Identity, Status> {
        let (identity, _) = self.authenticate_with(credentials, None).await?;
        Ok(identity)
    }

    /// Authenticates a request, and records the metrics.
    ///
    /// On a cache miss, one request to authd contains the credentials and the attributes. The result then
    /// contains the decision, unless authd needs more time to decide than to authenticate.
    pub(crate) async fn authenticate_with(
        &self,
        credentials: &Credentials<'_>,
        attributes: Option<&Arc<Attributes>>,
    ) -> Result<IdentityAndDecision, Rejection> {
        let started_at = self.clock.monotonic();
        let (is_cached, outcome) = self.identify(credentials, attributes).await;
        if let Some(auth_metrics) = self.auth_metrics.get() {
            let result = match &outcome {
                Ok((identity, _)) => {
                    auth_metrics.count_user(&identity.user.name);
                    // A client may present a token and a certificate. `expires` is the expiry of the
                    // certificate only if the certificate established the identity.
                    if is_of_certificate(&identity.user)
                        && let Some(expires) = identity.validity.expires
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

    /// Returns the outcome of the cache, or else of authd. The first value: whether the cache had the outcome.
    pub(crate) async fn identify(
        &self,
        credentials: &Credentials<'_>,
        attributes: Option<&Arc<Attributes>>,
    ) -> (bool, Result<IdentityAndDecision, Rejection>) {
        let digests = self.digester.digest(credentials);
        let cache_hit = self
            .connection
            .cache_serves()
            .then(|| self.identities.find(&digests, |validity| self.is_valid(validity)))
            .flatten();
        match cache_hit {
            Some(CachedIdentity { outcome: Ok(user), validity }) => {
                (true, Ok((Identity::of_credentials(user, validity, credentials), None)))
            }
            Some(CachedIdentity { outcome: Err(detail), .. }) => {
                let request_id = credentials.request_id;
                tracing::info!(request_id, %detail, "authentication failed (cached rejection)");
                (true, Err(Rejection::unauthorized(detail)))
            }
            // Boxed, because most requests have a hit and do not need the memory of this future.
            None => (false, Box::pin(self.identify_by_authd(credentials, attributes, &digests)).await),
        }
    }

    /// Authenticates through authd and caches the outcome.
    async fn identify_by_authd(
        &self,
        credentials: &Credentials<'_>,
        attributes: Option<&Arc<Attributes>>,
        digests: &Digests<'_>,
    ) -> Result<IdentityAndDecision, Rejection> {
        let request_id = credentials.request_id;
        let baseline = self.revisions.identity_baseline(self.clock.monotonic());
        let mut request = credentials.authenticate_request(baseline.at_least.clone());
        // The components that the decision needs depend on the user, who is not known yet. So authd must have
        // the newest revision of every component.
        request.next = attributes.map(|attributes| AuthorizeNext {
            attributes: Some((&**attributes).into()),
            at_least: Some(self.revisions.newest()),
        });
        let fetch = self.auth_metrics.get().map(AuthMetrics::begin_fetch);
        let response = self.authd_api.decide(request_id, decide_request::Query::Authenticate(request)).await;
        drop(fetch);
        if let Some(auth_metrics) = self.auth_metrics.get() {
            auth_metrics.count_fetch(response.is_ok());
        }
        let response = response.map_err(Status::from)?;
        let epoch = self.epochs.observe(response.epoch.as_ref());
        let AuthenticateResponse { outcome, ttl_ms, next, .. } = match response.answer {
            Some(decide_response::Answer::Authenticate(response)) => response,
            other => return Err(Status::from(to_authd_error(other)).into()),
        };
        match outcome {
            Some(authenticate_response::Outcome::Identity(identity)) => {
                let (user, validity) =
                    self.accept_identity(identity, digests, &baseline, epoch, ttl_ms, request_id)?;
                let decision = attributes.zip(next).map(|(attributes, decision)| {
                    self.cache_decision(&user, attributes, &decision, &baseline, epoch)
                });
                Ok((Identity::of_credentials(user, validity, credentials), decision))
            }
            Some(authenticate_response::Outcome::Rejected(rejected)) => {
                let detail: Arc<str> = rejected.detail.into();
                tracing::info!(request_id, %detail, "authentication failed");
                if epoch.is_some() {
                    let validity =
                        Validity::new(&baseline, epoch, DependencySet::all_identities(), ttl_ms).into();
                    let outcome = Err(Arc::clone(&detail));
                    self.identities.insert_short_lived(digests, CachedIdentity { outcome, validity });
                }
                Err(Rejection::unauthorized(detail))
            }
            None => Err(Status::from(AuthdError::Malformed).into()),
        }
    }

    /// Accepts an identity from authd, unless its credential has expired or is not valid yet. Caches the
    /// identity, unless an object on which it depends may have changed since the baseline.
    pub(crate) fn accept_identity(
        &self,
        identity: auth::Identity,
        digests: &Digests<'_>,
        baseline: &Baseline,
        epoch: Option<EpochNumber>,
        ttl_ms: u64,
        request_id: &str,
    ) -> Result<(Arc<UserInfo>, Arc<Validity>), Rejection> {
        let Some(user) = identity.user else { return Err(Status::from(AuthdError::Malformed).into()) };
        let user: Arc<UserInfo> = Arc::new(user.into());
        let (dependencies, is_complete) = if identity.anonymous {
            (DependencySet::all_identities(), true)
        } else {
            self.revisions.track_objects(&identity.depends_on, baseline.as_of)
        };
        let time = |ms: i64, out_of_range| {
            (ms != 0).then(|| Timestamp::from_millisecond(ms).unwrap_or(out_of_range))
        };
        let validity = Arc::new(Validity {
            not_before: time(identity.not_before_ms, Timestamp::MAX),
            expires: time(identity.expires_at_ms, Timestamp::MIN),
            ..Validity::new(baseline, epoch, dependencies, ttl_ms)
        });
        if !validity.holds_at(self.clock.now()) {
            let detail = "the credential has expired or is not valid yet";
            tracing::info!(request_id, detail, "authentication failed");
            return Err(Rejection::unauthorized(Arc::from(detail)));
        }
        if epoch.is_some() {
            let cached = CachedIdentity { outcome: Ok(Arc::clone(&user)), validity: Arc::clone(&validity) };
            match (identity.anonymous, is_complete) {
                (true, _) => self.identities.insert_short_lived(digests, cached),
                (false, true) => self.identities.insert_accepted(digests, cached),
                (false, false) => {}
            }
        }
        Ok((user, validity))
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
