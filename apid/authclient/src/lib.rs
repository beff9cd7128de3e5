//! The client of authd: authentication, authorization, caches, policy revisions and the policy mirror.
//!
//! # Contract
//!
//! [`Auth::authenticate`] returns an [`Authenticated`], and [`Auth::authorize`] an [`Authorized`]. Only this
//! crate constructs these types, and every verb requires an `Authorized`. [`Authorized::internal`]
//! authorizes work of the process itself, with an identity that the audit log shows. Every open watch holds a
//! [`WatchGuard`].
//!
//! # Invariants
//!
//! INVARIANT (fresh policy): a request that arrives after a policy write was acknowledged is never decided
//! on policy older than that write (design section 2). Three mechanisms ensure this:
//!
//! - The policy vector advances before the writer gets its response ([`decisions::revisions`]).
//! - A request to authd carries a reading of the vector from before the request. authd decides on policy at
//!   least as new, or fails.
//! - A cached response is used only while its components have not advanced ([`decisions::cache`],
//!   [`identity::cache`], [`watches::authorization`]).
//!
//! INVARIANT (fail closed): a request that needs a response of authd and gets none fails with 503. Cached
//! responses serve only for a limited time after the loss of authd ([`transport::link`]).

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use apimachinery::attributes::Attributes;
use apimachinery::clock::Clock;
use apimachinery::decision::Decision;
use apimachinery::names::Names;
use apimachinery::status::Status;
use apimachinery::user::UserInfo;
use authproto::auth::{
    AuthorizeBatchRequest, AuthorizeRequest, AuthorizeResponse, Covers, ReviewRequest, decide_request,
    decide_response, review_response,
};

mod decisions;
mod identity;
mod reduce;
#[cfg(test)]
mod tests;
mod transport;
mod watches;
pub use decisions::escalation::Escalation;
pub use decisions::rejection::Rejection;
pub use decisions::revisions::PolicyRevisions;
pub use identity::authenticate::PrefetchedDecision;
pub use identity::credentials::Credentials;
pub use identity::header_credentials::{HeaderCredentials, ProxyHeaders};
pub use reduce::Reductions;
pub use transport::link::AuthdProblem;
pub use transport::mirror::{MirrorOptions, PolicyWriter};
pub use transport::stream::check_health;
pub use watches::authorization::WatchGuard;

use decisions::cache::{CachedDecision, DecisionCache, Expiry, Validity};
use decisions::epoch::Epochs;
use decisions::revisions::Reading;
use identity::cache::{IdentityCache, IdentityLifetime};
use identity::credentials::Digester;
use identity::metrics::AuthMetrics;
use transport::authd_api::{AuthdApi, AuthdError};
use transport::link::Link;
use transport::peer::ExpectedAuthd;
use watches::authorization::Watches;
use watches::webhook_identity::WebhookIdentity;

/// A client whose credentials were accepted.
#[derive(Clone, Debug)]
pub struct Authenticated {
    user: Arc<UserInfo>,
    lifetime: Arc<IdentityLifetime>,
    /// The impersonation rights under which the client acts as this user; empty without impersonation. An open
    /// watch ends when any of them ends.
    impersonation_rights: Vec<Authorized>,
    /// Set when an authentication webhook supplied the identity: open watches re-authenticate after its TTL.
    webhook_identity: Option<WebhookIdentity>,
}

impl Authenticated {
    /// The client as the user of its own credentials.
    fn without_impersonation(user: Arc<UserInfo>, lifetime: Arc<IdentityLifetime>) -> Self {
        Authenticated { user, lifetime, impersonation_rights: Vec::new(), webhook_identity: None }
    }

    /// The user.
    pub fn user(&self) -> &Arc<UserInfo> {
        &self.user
    }
}

/// An authorized request: the user and the allowed attributes.
#[derive(Clone, Debug)]
pub struct Authorized {
    client: Authenticated,
    attributes: Arc<Attributes>,
    cached_decision: Arc<CachedDecision>,
}

impl Authorized {
    /// Authorizes work of the process itself, which no policy can deny.
    ///
    /// Background tasks and the writes that authd requests use this function. `reason` describes the work in
    /// the audit log.
    pub fn internal(user: Arc<UserInfo>, attributes: impl Into<Arc<Attributes>>, reason: &str) -> Self {
        let decision = Decision { reason: reason.to_owned(), ..Decision::default() };
        Authorized {
            client: Authenticated::without_impersonation(user, Arc::default()),
            attributes: attributes.into(),
            cached_decision: Arc::new(CachedDecision::new(decision, Validity::internal())),
        }
    }

    /// Whether this is work of the process itself.
    pub fn is_internal(&self) -> bool {
        self.cached_decision.validity.is_internal()
    }

    /// The user.
    pub fn user(&self) -> &Arc<UserInfo> {
        &self.client.user
    }

    /// The allowed attributes.
    pub fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// The authorizer's reason, for the audit log.
    pub fn reason(&self) -> &str {
        &self.cached_decision.decision.reason
    }
}

/// Statistics of the caches and of the mirror, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthStats {
    /// The number of cached decisions.
    pub decisions: u64,
    /// The approximate size of the cached decisions in bytes.
    pub decision_bytes: u64,
    /// The number of revisions by which the policy mirror of authd lags behind the store.
    pub mirror_lag: u64,
    /// Whether authd has a complete snapshot of the policy.
    pub is_mirror_synced: bool,
}

/// The options of the connection to authd.
#[derive(Clone, Debug)]
pub struct AuthOptions {
    /// The path of the Unix socket of authd.
    pub socket: std::path::PathBuf,
    /// The timeout of a request to authd.
    pub timeout: Duration,
    /// The names of apid, which authd must share.
    pub names: Arc<Names>,
    /// The headers that an authenticating proxy may set.
    pub proxy_headers: ProxyHeaders,
}

/// The client of authd: one per process.
pub struct Auth {
    authd_api: Arc<dyn AuthdApi>,
    revisions: Arc<PolicyRevisions>,
    clock: Arc<dyn Clock>,
    epochs: Arc<Epochs>,
    link: Arc<Link>,
    digester: Digester,
    proxy_headers: ProxyHeaders,
    identities: IdentityCache,
    decisions: DecisionCache,
    watches: Watches,
    /// The metrics, set by [`Auth::register_metrics`]; without them, nothing is counted.
    auth_metrics: OnceLock<AuthMetrics>,
}

impl Auth {
    /// Connects to authd and reconnects after failures; returns at once.
    ///
    /// `revisions` must be an observer of the store.
    ///
    /// # Errors
    ///
    /// The system supplied no random bytes.
    pub fn connect(
        options: AuthOptions,
        revisions: Arc<PolicyRevisions>,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Self>, aws_lc_rs::error::Unspecified> {
        let link = Arc::new(Link::new(clock.clone()));
        let expected = ExpectedAuthd::new(&options.names);
        let authd_api = Arc::new(transport::stream::Client::connect(
            options.socket,
            options.timeout,
            expected,
            link.clone(),
        ));
        Self::with_api(authd_api, link, revisions, clock, options.proxy_headers)
    }

    fn with_api(
        authd_api: Arc<dyn AuthdApi>,
        link: Arc<Link>,
        revisions: Arc<PolicyRevisions>,
        clock: Arc<dyn Clock>,
        proxy_headers: ProxyHeaders,
    ) -> Result<Arc<Self>, aws_lc_rs::error::Unspecified> {
        let auth = Arc::new(Auth {
            authd_api,
            revisions,
            clock,
            epochs: Arc::clone(&link.epochs),
            link,
            digester: Digester::new()?,
            proxy_headers,
            identities: IdentityCache::new(),
            decisions: DecisionCache::new(),
            watches: Watches::default(),
            auth_metrics: OnceLock::new(),
        });
        tokio::spawn(auth.clone().run_reauthorization_task());
        let auth_of_task = auth.clone();
        tokio::spawn(async move { auth_of_task.decisions.maintain().await });
        Ok(auth)
    }

    /// Checks whether authd can decide requests now, for health checks.
    ///
    /// # Errors
    ///
    /// The reason, for `/readyz?verbose` and the log.
    pub fn health(&self) -> Result<(), AuthdProblem> {
        self.link.health()
    }

    /// Waits until authd can decide requests.
    pub async fn wait_until_healthy(&self) {
        self.link.wait_until_healthy().await;
    }

    /// Warnings of a ready authd, such as configuration files that it rejected. For `/readyz?verbose`.
    pub fn notes(&self) -> Vec<String> {
        self.link.notes()
    }

    /// The metrics of authd that apid exports, in the text format; empty without authd.
    pub fn authd_metrics(&self) -> String {
        self.link.shared_metrics()
    }

    /// Reads the statistics of the decision cache and of the mirror.
    pub fn cache_stats(&self) -> AuthStats {
        let (decisions, decision_bytes) = self.decisions.size();
        let (sent_revision, is_mirror_synced) = self.link.mirror_progress();
        let mirror_lag = self.revisions.observed().saturating_sub(sent_revision);
        AuthStats { decisions, decision_bytes, mirror_lag, is_mirror_synced }
    }

    /// Waits until the decision stream to authd is open.
    pub async fn wait_for_connection(&self) {
        self.link.wait_for_connection().await;
    }

    /// Declares that the caller sends the policy to the process of the decision stream, for benchmarks without
    /// [`Auth::run_mirror`].
    pub fn adopt_mirror(&self) {
        self.link.adopt_mirror();
    }

    /// Records the start of the shutdown: from now on the loss of authd is expected and not logged.
    pub fn begin_shutdown(&self) {
        self.link.begin_shutdown();
    }

    /// The reason why apid and authd are not connected; None while they are.
    pub fn unreachable(&self) -> Option<AuthdProblem> {
        self.link.unreachable()
    }

    /// Whether apid answers `/livez` and `/readyz` without authentication: authd is not connected, or has no
    /// complete snapshot of the policy. A request to authd could then wait until its timeout.
    pub fn answers_health_alone(&self) -> bool {
        matches!(
            self.link.health(),
            Err(AuthdProblem::Unreachable(_) | AuthdProblem::Mismatched(_) | AuthdProblem::NoPolicy(_))
        )
    }

    /// Authorizes a request.
    ///
    /// # Errors
    ///
    /// 403 when no authorizer allows the request, 503 when authd gives no decision; with the reason for the
    /// audit log.
    pub async fn authorize(
        &self,
        client: &Authenticated,
        attributes: impl Into<Arc<Attributes>>,
        request_id: &str,
    ) -> Result<Authorized, Rejection> {
        self.authorize_prefetched(client, attributes.into(), None, request_id).await
    }

    /// Authorizes a request with the decision of [`Auth::authenticate_for`] if this decision is current and
    /// on the same request; otherwise as [`Auth::authorize`].
    ///
    /// # Errors
    ///
    /// As [`Auth::authorize`].
    pub async fn authorize_prefetched(
        &self,
        client: &Authenticated,
        attributes: Arc<Attributes>,
        prefetched: Option<PrefetchedDecision>,
        request_id: &str,
    ) -> Result<Authorized, Rejection> {
        let started_at = self.clock.monotonic();
        let outcome = self.decide_prefetched(client, &attributes, prefetched, request_id).await;
        if let Some(auth_metrics) = self.auth_metrics.get() {
            let duration = self.clock.monotonic().saturating_sub(started_at);
            let result = outcome.as_ref().map(|decision| decision.decision.verdict).ok();
            auth_metrics.record_authorization(result, duration);
        }
        let cached_decision = outcome.map_err(|error| Rejection::from(Status::from(error)))?;
        let decision = &cached_decision.decision;
        if !decision.evaluation_error.is_empty() {
            tracing::warn!(
                request_id,
                problem = %decision.evaluation_error,
                "authorizer reported an evaluation error; the decision stands"
            );
        }
        if !decision.allowed() {
            return Err(decisions::rejection::forbidden(&client.user, &attributes, decision));
        }
        Ok(Authorized { client: client.clone(), attributes, cached_decision })
    }

    /// Returns the prefetched decision if it is current, otherwise a decision from the cache or from authd.
    async fn decide_prefetched(
        &self,
        client: &Authenticated,
        attributes: &Arc<Attributes>,
        prefetched: Option<PrefetchedDecision>,
        request_id: &str,
    ) -> Result<Arc<CachedDecision>, AuthdError> {
        let prefetched = prefetched.and_then(|prefetched| {
            prefetched.into_decision(&client.user, attributes, &self.revisions, self.epochs.count())
        });
        match prefetched {
            Some(cached_decision) => Ok(cached_decision),
            None => self.decide(&client.user, attributes, request_id).await,
        }
    }

    /// Authorizes a further action of the same request, for example the create by an update of a missing
    /// object, or the delete of each object by a deletecollection.
    ///
    /// # Errors
    ///
    /// As [`Auth::authorize`].
    pub async fn authorize_also(
        &self,
        authorized: &Authorized,
        attributes: Attributes,
    ) -> Result<Authorized, Rejection> {
        if authorized.is_internal() {
            return Ok(Authorized::internal(authorized.user().clone(), attributes, authorized.reason()));
        }
        self.authorize(&authorized.client, attributes, "").await
    }

    /// Returns the decision on attributes other than those of the request, for admission plugins.
    ///
    /// # Errors
    ///
    /// 503 when authd gives no decision.
    pub async fn decision(&self, user: &Arc<UserInfo>, attributes: Attributes) -> Result<Decision, Status> {
        let cached_decision = self.decide(user, &Arc::new(attributes), "").await?;
        Ok(cached_decision.decision.clone())
    }

    /// Returns a valid decision from the cache or from authd.
    async fn decide(
        &self,
        user: &Arc<UserInfo>,
        attributes: &Arc<Attributes>,
        request_id: &str,
    ) -> Result<Arc<CachedDecision>, AuthdError> {
        if self.link.cache_serves() {
            let epoch = self.epochs.count();
            let is_valid =
                |validity: &Validity| validity.is_valid(&self.revisions, epoch, &*self.clock, Duration::ZERO);
            let cache_hit = self.decisions.find(user, attributes, is_valid);
            if let Some(auth_metrics) = self.auth_metrics.get() {
                auth_metrics.count_decision_lookup(cache_hit.is_some());
            }
            if let Some(cached_decision) = cache_hit {
                return Ok(cached_decision);
            }
        }
        // Boxed, because most requests have a hit and do not need the memory of this future.
        Box::pin(self.decide_uncached(user, attributes, request_id)).await
    }

    /// Returns a decision from authd and caches it.
    async fn decide_uncached(
        &self,
        user: &Arc<UserInfo>,
        attributes: &Arc<Attributes>,
        request_id: &str,
    ) -> Result<Arc<CachedDecision>, AuthdError> {
        let requested_at = self.clock.monotonic();
        let reading = self.revisions.reading(user, &attributes.namespace);
        let ask = decide_request::Ask::Authorize(authorize_request(user, attributes, &reading));
        let response = self.authd_api.decide(request_id, ask).await?;
        let epoch = self.epochs.observe(response.epoch.as_ref());
        match response.answer {
            Some(decide_response::Answer::Authorize(response)) => {
                let expiry = Expiry::from_wire(requested_at, response.ttl_ms);
                Ok(self.cache_decision(user, attributes, &response, reading.as_of, epoch, expiry))
            }
            other => Err(to_authd_error(other)),
        }
    }

    /// Gets the decisions on many requests with one request to authd, without reading the decision cache.
    ///
    /// The re-authorization of open watches uses this function.
    async fn decide_batch(
        &self,
        batch_keys: &[(Arc<UserInfo>, Arc<Attributes>)],
    ) -> Result<Vec<Arc<CachedDecision>>, AuthdError> {
        let started_at = self.clock.monotonic();
        let readings: Vec<Reading> =
            batch_keys.iter().map(|(user, a)| self.revisions.reading(user, &a.namespace)).collect();
        let requests = batch_keys
            .iter()
            .zip(&readings)
            .map(|((user, attributes), reading)| authorize_request(user, attributes, reading))
            .collect();
        let ask = decide_request::Ask::AuthorizeBatch(AuthorizeBatchRequest { requests });
        let response = self.authd_api.decide("", ask).await?;
        let epoch = self.epochs.observe(response.epoch.as_ref());
        match response.answer {
            Some(decide_response::Answer::AuthorizeBatch(batch))
                if batch.responses.len() == batch_keys.len() =>
            {
                let entries = batch_keys.iter().zip(&readings).zip(&batch.responses);
                Ok(entries
                    .map(|(((user, a), reading), response)| {
                        let expiry = Expiry::from_wire(started_at, response.ttl_ms);
                        self.cache_decision(user, a, response, reading.as_of, epoch, expiry)
                    })
                    .collect())
            }
            other => Err(to_authd_error(other)),
        }
    }

    /// Converts the response of authd to a decision and caches the decision.
    fn cache_decision(
        &self,
        user: &Arc<UserInfo>,
        attributes: &Arc<Attributes>,
        response: &AuthorizeResponse,
        as_of: u64,
        epoch: Option<u64>,
        expiry: Option<Expiry>,
    ) -> Arc<CachedDecision> {
        let dependencies = self.revisions.dependencies(response.depends_on.as_ref());
        let validity = Validity { as_of, dependencies, epoch, expiry };
        let cached_decision = Arc::new(CachedDecision::new(decisions::cache::from_wire(response), validity));
        let covers = Covers::try_from(response.covers).unwrap_or(Covers::This);
        self.decisions.insert(user, attributes, covers, &cached_decision);
        cached_decision
    }

    /// Creates a review.
    ///
    /// `object` is the review as JSON with apiVersion and kind, pruned and defaulted. Returns the review in
    /// the same form, with its status.
    ///
    /// # Errors
    ///
    /// authd's rejection of the object (422 with causes, 400, 403); 503 when authd does not respond.
    pub async fn review(
        &self,
        authorized: &Authorized,
        resource: &str,
        object: Vec<u8>,
        request_id: &str,
    ) -> Result<Vec<u8>, Status> {
        let request = ReviewRequest {
            resource: resource.to_owned(),
            namespace: authorized.attributes.namespace.clone(),
            user: Some((&**authorized.user()).into()),
            object: object.into(),
            at_least: Some(self.revisions.full_reading().at_least),
            request_id: request_id.to_owned(),
        };
        match self.authd_api.review(request).await?.outcome {
            Some(review_response::Outcome::Object(object)) => Ok(object),
            Some(review_response::Outcome::Status(status)) => {
                Err(transport::authd_api::from_status_body(&status))
            }
            None => Err(AuthdError::Malformed.into()),
        }
    }

    fn drop_caches(&self) {
        self.identities.clear();
        self.decisions.clear();
    }
}

fn authorize_request(user: &UserInfo, attributes: &Attributes, reading: &Reading) -> AuthorizeRequest {
    AuthorizeRequest {
        user: Some(user.into()),
        attributes: Some(attributes.into()),
        at_least: Some(reading.at_least.clone()),
    }
}

fn to_authd_error(response: Option<decide_response::Answer>) -> AuthdError {
    match response {
        Some(decide_response::Answer::Failure(failure)) => AuthdError::Failed(failure),
        _ => AuthdError::Malformed,
    }
}
