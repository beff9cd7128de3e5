//! Authentication and authorization of a request in one call.
//!
//! # Contract
//!
//! [`Auth::admit`] authenticates and authorizes a request, with one request to authd when no cache has the
//! identity. [`Auth::authorize`] and [`Auth::check`] decide further actions of the same identity. Only this
//! crate constructs an [`Authorized`], and every verb requires one. [`Authorized::internal`] authorizes work of
//! the process itself, with an identity that the audit log shows.
//!
//! # Flow
//!
//! 1. The identity comes from the identity cache, or from authd, which then decides in the same response.
//! 2. With impersonation headers, the client must have the rights to impersonate; then the request is decided
//!    for the impersonated user.
//! 3. The decision comes from step 1, from the decision cache, or from authd.
//!
//! A cached identity or decision serves while its [`Validity`] holds.

use std::sync::Arc;
use std::time::Duration;

use apimachinery::attributes::Attributes;
use apimachinery::decision::Decision;
use apimachinery::status::Status;
use apimachinery::user::UserInfo;
use authproto::auth::{AuthorizeRequest, AuthorizeResponse, Covers, decide_request, decide_response};

use crate::decisions::cache::{self, CachedDecision};
use crate::decisions::epoch::EpochNumber;
use crate::decisions::rejection::{Rejection, forbidden};
use crate::decisions::revisions::Baseline;
use crate::identity::credentials::{Credentials, RetainedCredentials};
use crate::identity::metrics::AuthMetrics;
use crate::transport::authd_api::AuthdError;
use crate::validity::Validity;
use crate::{Auth, to_authd_error};

/// The user of a request, and the conditions under which the credentials name this user.
#[derive(Clone, Debug)]
pub struct Identity {
    pub(crate) user: Arc<UserInfo>,
    pub(crate) validity: Arc<Validity>,
    /// The impersonation rights under which the client acts as this user; empty without impersonation. An open
    /// watch ends when any of them ends.
    pub(crate) impersonation_rights: Vec<Authorized>,
    /// Set when an authentication webhook supplied the identity: open watches re-authenticate after its TTL.
    pub(crate) retained_credentials: Option<Arc<RetainedCredentials>>,
}

impl Identity {
    /// The identity of credentials, without impersonation.
    pub(crate) fn of_credentials(
        user: Arc<UserInfo>,
        validity: Arc<Validity>,
        credentials: &Credentials<'_>,
    ) -> Self {
        let retained_credentials =
            validity.ttl.map(|_| Arc::new(RetainedCredentials::new(credentials, Arc::clone(&user))));
        Identity { user, validity, impersonation_rights: Vec::new(), retained_credentials }
    }

    /// The identity of work of the process itself.
    pub(crate) fn internal(user: Arc<UserInfo>) -> Self {
        let validity = Arc::new(Validity::internal());
        Identity { user, validity, impersonation_rights: Vec::new(), retained_credentials: None }
    }

    /// The user.
    pub fn user(&self) -> &Arc<UserInfo> {
        &self.user
    }

    /// Whether a client acts as this user by impersonation.
    pub fn is_impersonated(&self) -> bool {
        !self.impersonation_rights.is_empty()
    }
}

/// A request whose client is known.
#[derive(Debug)]
pub struct Admitted {
    /// The identity of the credentials.
    pub caller: Identity,
    /// The identity under which the request was decided, if it is not that of the credentials.
    pub impersonated: Option<Identity>,
    /// Whether the decision rejects the impersonation, before any decision on the request.
    pub is_impersonation_rejected: bool,
    /// The authorized request, or its rejection: 403 when no authorizer allows it, 400 for invalid impersonation
    /// headers, 503 when authd does not respond.
    pub decision: Result<Authorized, Rejection>,
}

impl Admitted {
    /// The user for whom the request was decided.
    pub fn user(&self) -> &Arc<UserInfo> {
        self.impersonated.as_ref().unwrap_or(&self.caller).user()
    }
}

/// An authorized request: the identity and the allowed attributes.
#[derive(Clone, Debug)]
pub struct Authorized {
    pub(crate) identity: Identity,
    pub(crate) attributes: Arc<Attributes>,
    pub(crate) cached_decision: Arc<CachedDecision>,
}

impl Authorized {
    /// Authorizes work of the process itself, which no policy can deny.
    ///
    /// Background tasks and the writes that authd requests use this function. `reason` describes the work in
    /// the audit log.
    pub fn internal(user: Arc<UserInfo>, attributes: impl Into<Arc<Attributes>>, reason: &str) -> Self {
        let decision = Decision { reason: reason.to_owned(), ..Decision::default() };
        Authorized {
            identity: Identity::internal(user),
            attributes: attributes.into(),
            cached_decision: Arc::new(CachedDecision { decision, validity: Validity::internal() }),
        }
    }

    /// Whether this is work of the process itself.
    pub fn is_internal(&self) -> bool {
        self.cached_decision.validity.is_internal()
    }

    /// The user.
    pub fn user(&self) -> &Arc<UserInfo> {
        &self.identity.user
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

impl Auth {
    /// Authenticates and authorizes a request.
    ///
    /// Calls `identified` for the identity of the credentials, and then for the impersonated identity, before the
    /// decision. The audit log thus names the user of a request that ends before its decision.
    ///
    /// # Errors
    ///
    /// 401 for rejected credentials, 503 when authd does not identify them.
    pub async fn admit(
        &self,
        credentials: &Credentials<'_>,
        attributes: &Arc<Attributes>,
        identified: impl Fn(&Identity),
    ) -> Result<Admitted, Rejection> {
        self.admit_counted(credentials, attributes, identified, true).await
    }

    /// Decides a request again that was admitted and had to wait. The metrics count it once.
    ///
    /// # Errors
    ///
    /// As [`Auth::admit`].
    pub async fn admit_again(
        &self,
        credentials: &Credentials<'_>,
        attributes: &Arc<Attributes>,
    ) -> Result<Admitted, Rejection> {
        self.admit_counted(credentials, attributes, |_| (), false).await
    }

    async fn admit_counted(
        &self,
        credentials: &Credentials<'_>,
        attributes: &Arc<Attributes>,
        identified: impl Fn(&Identity),
        is_counted: bool,
    ) -> Result<Admitted, Rejection> {
        // The right to impersonate is decided first, for the user of the credentials.
        let impersonation = credentials.impersonation_headers;
        let decided = impersonation.is_none().then_some(attributes);
        let (caller, decision) = match is_counted {
            true => self.authenticate_with(credentials, decided).await?,
            false => self.identify(credentials, decided).await.1?,
        };
        identified(&caller);
        let impersonated = match impersonation {
            Some(headers) => {
                match Box::pin(self.impersonate(&caller, headers, credentials.request_id)).await {
                    Ok(impersonated) => impersonated,
                    Err(status) => {
                        let decision = Err(status.into());
                        let is_impersonation_rejected = true;
                        return Ok(Admitted {
                            caller,
                            impersonated: None,
                            is_impersonation_rejected,
                            decision,
                        });
                    }
                }
            }
            None => None,
        };
        impersonated.iter().for_each(identified);
        let identity = impersonated.as_ref().unwrap_or(&caller);
        let metrics = self.auth_metrics.get().filter(|_| is_counted);
        let mut decision = self
            .authorize_with(identity, Arc::clone(attributes), decision, credentials.request_id, metrics)
            .await;
        if decision.as_ref().is_err_and(|rejection| rejection.is_denial) {
            let explanation =
                Box::pin(self.authorize_own_explanation(identity, attributes, credentials.request_id)).await;
            decision = explanation.map_or(decision, Ok);
        }
        Ok(Admitted { caller, impersonated, is_impersonation_rejected: false, decision })
    }

    /// Authorizes a request of an identity.
    ///
    /// # Errors
    ///
    /// 403 when no authorizer allows the request, 503 when authd does not decide; with the reason for the
    /// audit log.
    pub async fn authorize(
        &self,
        identity: &Identity,
        attributes: impl Into<Arc<Attributes>>,
        request_id: &str,
    ) -> Result<Authorized, Rejection> {
        self.authorize_with(identity, attributes.into(), None, request_id, self.auth_metrics.get()).await
    }

    /// Authorizes a further action of the same identity. Examples are the create by an update of a missing
    /// object, and the delete of each object by a deletecollection.
    ///
    /// # Errors
    ///
    /// As [`Auth::authorize`].
    pub async fn check(
        &self,
        authorized: &Authorized,
        attributes: Attributes,
    ) -> Result<Authorized, Rejection> {
        if authorized.is_internal() {
            return Ok(Authorized::internal(authorized.user().clone(), attributes, authorized.reason()));
        }
        self.authorize(&authorized.identity, attributes, "").await
    }

    /// Returns the decision on attributes other than those of the request, for admission plugins.
    ///
    /// # Errors
    ///
    /// 503 when authd does not decide.
    pub async fn decision(&self, user: &Arc<UserInfo>, attributes: Attributes) -> Result<Decision, Status> {
        let cached_decision = self.decide(user, &Arc::new(attributes), "").await?;
        Ok(cached_decision.decision.clone())
    }

    /// Authorizes a request, and records it in `metrics`. `decision`: the decision that authd made with the
    /// authentication. Its TTL does not count, because authd made the decision for this request.
    async fn authorize_with(
        &self,
        identity: &Identity,
        attributes: Arc<Attributes>,
        decision: Option<Arc<CachedDecision>>,
        request_id: &str,
        metrics: Option<&AuthMetrics>,
    ) -> Result<Authorized, Rejection> {
        let started_at = self.clock.monotonic();
        let is_current =
            |made: &Arc<CachedDecision>| made.validity.is_current(&self.revisions, self.epochs.number());
        let outcome = match decision.filter(is_current) {
            Some(decision) => Ok(decision),
            None => self.decide(&identity.user, &attributes, request_id).await,
        };
        if let Some(auth_metrics) = metrics {
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
            return Err(forbidden(&identity.user, &attributes, decision));
        }
        Ok(Authorized { identity: identity.clone(), attributes, cached_decision })
    }

    /// Returns a valid decision from the cache or from authd.
    pub(crate) async fn decide(
        &self,
        user: &Arc<UserInfo>,
        attributes: &Arc<Attributes>,
        request_id: &str,
    ) -> Result<Arc<CachedDecision>, AuthdError> {
        if self.connection.cache_serves() {
            let cache_hit = self.decisions.find(user, attributes, |validity| self.is_valid(validity));
            if let Some(auth_metrics) = self.auth_metrics.get() {
                auth_metrics.count_decision_lookup(cache_hit.is_some());
            }
            if let Some(cached_decision) = cache_hit {
                return Ok(cached_decision);
            }
        }
        // Boxed, because most requests have a hit and do not need the memory of this future.
        Box::pin(self.decide_by_authd(user, attributes, request_id)).await
    }

    /// Returns a decision from authd and caches it.
    pub(crate) async fn decide_by_authd(
        &self,
        user: &Arc<UserInfo>,
        attributes: &Arc<Attributes>,
        request_id: &str,
    ) -> Result<Arc<CachedDecision>, AuthdError> {
        let baseline = self.revisions.baseline(user, &attributes.namespace, self.clock.monotonic());
        let query = decide_request::Query::Authorize(AuthorizeRequest {
            user: Some((&**user).into()),
            attributes: Some((&**attributes).into()),
            at_least: Some(baseline.at_least.clone()),
        });
        let response = self.authd_api.decide(request_id, query).await?;
        let epoch = self.epochs.observe(response.epoch.as_ref());
        match response.answer {
            Some(decide_response::Answer::Authorize(response)) => {
                Ok(self.cache_decision(user, attributes, &response, &baseline, epoch))
            }
            other => Err(to_authd_error(other)),
        }
    }

    /// Converts the response of authd to a decision and caches the decision.
    pub(crate) fn cache_decision(
        &self,
        user: &Arc<UserInfo>,
        attributes: &Arc<Attributes>,
        response: &AuthorizeResponse,
        baseline: &Baseline,
        epoch: Option<EpochNumber>,
    ) -> Arc<CachedDecision> {
        let dependencies = self.revisions.dependencies(response.depends_on.as_ref());
        let validity = Validity::new(baseline, epoch, dependencies, response.ttl_ms);
        let cached_decision = Arc::new(CachedDecision { decision: cache::from_wire(response), validity });
        let covers = Covers::try_from(response.covers).unwrap_or(Covers::This);
        self.decisions.insert(user, attributes, covers, &cached_decision);
        cached_decision
    }

    /// Whether a cached response is valid now.
    pub(crate) fn is_valid(&self, validity: &Validity) -> bool {
        validity.is_valid(&self.revisions, self.epochs.number(), &*self.clock, Duration::ZERO)
    }
}
