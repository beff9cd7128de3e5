//! The client of authd: authentication, authorization, caches, policy revisions and the policy mirror.
//!
//! # Contract
//!
//! [`Auth::authenticate`] returns an [`Authenticated`], [`Auth::authorize`] an [`Authorized`]. No other
//! code constructs them, and every verb takes an `Authorized`. [`Authorized::internal`] authorizes work of
//! the process itself, with an identity that the audit log shows. Every open watch holds a [`WatchGuard`].
//!
//! # Invariants
//!
//! INVARIANT (fresh policy): a request that arrives after a policy write was acknowledged is never decided
//! on policy older than that write (design section 2). Three mechanisms ensure this:
//!
//! - The policy vector advances before the writer gets its response ([`revisions`]).
//! - A request to authd carries the vector as read before the request. authd decides at this vector or
//!   fails.
//! - A cached response is used only while the vector has not moved ([`decision`], [`identity`],
//!   [`watches`]).
//!
//! INVARIANT (fail closed): when authd gives no response, the client gets 503, never an allow.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use apimachinery::attributes::Attributes;
use apimachinery::clock::Clock;
use apimachinery::decision::Decision;
use apimachinery::status::Status;
use apimachinery::user::UserInfo;
use authproto::auth::{
    AuthorizeBatchRequest, AuthorizeRequest, AuthorizeResponse, Covers, ReviewRequest, decide_request,
    decide_response, review_response,
};

mod authenticate;
mod authority;
mod credentials;
mod decision;
mod epoch;
mod escalation;
mod foundation;
mod identity;
mod impersonation;
mod link;
mod meters;
mod mirror;
mod presented;
mod reduce;
mod refusal;
mod revisions;
#[cfg(test)]
mod scripted;
mod stream;
#[cfg(test)]
mod tests;
mod tokens;
mod vouched;
mod waiting;
mod watches;

pub use credentials::Credentials;
pub use escalation::Escalation;
pub use mirror::{MirrorOptions, PolicyWriter};
pub use presented::{Presented, ProxyHeaders};
pub use reduce::Reductions;
pub use refusal::Refusal;
pub use revisions::PolicyRevisions;
pub(crate) use stream::check_health;
pub use watches::WatchGuard;

use authority::{Authority, Undecided};
use credentials::Digester;
use decision::{Decided, DecisionCache, Expiry, Validity};
use epoch::Epochs;
use identity::{IdentityCache, Tenure};
use link::Link;
use meters::AuthMeters;
use revisions::Reading;
use vouched::Vouched;
use watches::Watches;

/// A client whose credentials were accepted.
#[derive(Clone, Debug)]
pub struct Authenticated {
    user: Arc<UserInfo>,
    tenure: Arc<Tenure>,
    /// The impersonation rights under which the client acts as this user; empty without impersonation.
    by_right: Vec<Authorized>,
    /// Set when an authentication webhook supplied the identity: open watches re-authenticate.
    vouched: Option<Vouched>,
}

impl Authenticated {
    /// The user of the client's own credentials, without impersonation.
    fn caller(user: Arc<UserInfo>, tenure: Arc<Tenure>) -> Self {
        Authenticated { user, tenure, by_right: Vec::new(), vouched: None }
    }

    /// The user.
    pub fn user(&self) -> &Arc<UserInfo> {
        &self.user
    }
}

/// An authorized request: the user and the allowed attributes.
#[derive(Clone, Debug)]
pub struct Authorized {
    user: Arc<UserInfo>,
    attributes: Arc<Attributes>,
    decided: Arc<Decided>,
    tenure: Arc<Tenure>,
    /// The impersonation rights in use. An open watch ends when any of them ends.
    by_right: Vec<Authorized>,
    vouched: Option<Vouched>,
}

impl Authorized {
    /// Authorizes work of the process itself, which no policy can deny.
    ///
    /// Background loops and the writes that authd requests use this. `reason` describes the work in the
    /// audit log.
    pub fn internal(user: Arc<UserInfo>, attributes: Attributes, reason: &str) -> Self {
        let decision = Decision { reason: reason.to_owned(), ..Decision::default() };
        Authorized {
            user,
            attributes: Arc::new(attributes),
            decided: Arc::new(Decided::new(decision, Validity::internal())),
            tenure: Arc::default(),
            by_right: Vec::new(),
            vouched: None,
        }
    }

    /// Whether this is work of the process itself.
    pub fn is_internal(&self) -> bool {
        self.decided.validity.is_internal()
    }

    /// The user.
    pub fn user(&self) -> &Arc<UserInfo> {
        &self.user
    }

    /// The allowed attributes.
    pub fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// The authorizer's reason, for the audit log.
    pub fn reason(&self) -> &str {
        &self.decided.decision.reason
    }
}

/// How apid connects to authd.
#[derive(Clone, Debug)]
pub struct AuthOptions {
    /// authd's Unix socket.
    pub socket: std::path::PathBuf,
    /// The timeout of a request to authd.
    pub timeout: Duration,
    /// The headers that an authenticating proxy may set.
    pub proxy_headers: ProxyHeaders,
}

/// The client of authd: one per process.
pub struct Auth {
    authority: Arc<dyn Authority>,
    revisions: Arc<PolicyRevisions>,
    clock: Arc<dyn Clock>,
    epochs: Arc<Epochs>,
    link: Arc<Link>,
    digester: Digester,
    proxy_headers: ProxyHeaders,
    identities: IdentityCache,
    decisions: DecisionCache,
    watches: Watches,
    /// Set when the metrics of the process exist.
    meters: OnceLock<AuthMeters>,
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
        let authority = Arc::new(stream::Client::connect(options.socket, options.timeout, link.clone()));
        Self::over(authority, link, revisions, clock, options.proxy_headers)
    }

    fn over(
        authority: Arc<dyn Authority>,
        link: Arc<Link>,
        revisions: Arc<PolicyRevisions>,
        clock: Arc<dyn Clock>,
        proxy_headers: ProxyHeaders,
    ) -> Result<Arc<Self>, aws_lc_rs::error::Unspecified> {
        let auth = Arc::new(Auth {
            authority,
            revisions,
            clock,
            epochs: Arc::new(Epochs::new()),
            link,
            digester: Digester::new()?,
            proxy_headers,
            identities: IdentityCache::new(),
            decisions: DecisionCache::new(),
            watches: Watches::default(),
            meters: OnceLock::new(),
        });
        tokio::spawn(auth.clone().keep_watches());
        tokio::spawn(auth.clone().sweep_decisions());
        Ok(auth)
    }

    /// Checks whether authd can decide requests now, for health checks.
    ///
    /// # Errors
    ///
    /// The reason, for `/readyz?verbose` and the log.
    pub fn health(&self) -> Result<(), String> {
        self.link.health()
    }

    /// Warnings of a ready authd, such as configuration files that it rejected. For `/readyz?verbose`.
    pub fn notes(&self) -> Vec<String> {
        self.link.notes()
    }

    /// authd's counters of configuration reloads in the text format; empty without authd.
    pub fn reload_metrics(&self) -> String {
        self.link.reload_metrics()
    }

    /// Waits until the connection to authd is open.
    pub async fn reached(&self) {
        self.link.wait().await;
    }

    /// Records the start of the shutdown, so that the loss of authd is expected.
    pub fn ending(&self) {
        self.link.ending();
    }

    /// Why authd cannot be reached; None while it can. `/livez` responds by itself only while it cannot.
    pub fn unreachable(&self) -> Option<String> {
        self.link.unreachable()
    }

    /// Authorizes a request.
    ///
    /// # Errors
    ///
    /// 403 when no authorizer allows the request, 503 when authd gives no decision; with the reason for the
    /// audit log.
    pub async fn authorize(
        &self,
        who: &Authenticated,
        attributes: impl Into<Arc<Attributes>>,
        request_id: &str,
    ) -> Result<Authorized, Refusal> {
        let attributes = attributes.into();
        let decided = self
            .decide(&who.user, &attributes, request_id)
            .await
            .map_err(|u| Refusal::from(Status::from(u)))?;
        let Decision { reason, evaluation_error, .. } = &decided.decision;
        if !evaluation_error.is_empty() {
            tracing::warn!(
                request_id,
                problem = %evaluation_error,
                "authorizer reported an evaluation error; its decision stands"
            );
        }
        if !decided.decision.allowed() {
            return Err(refusal::forbidden(&who.user, &attributes, reason));
        }
        Ok(Authorized {
            user: who.user.clone(),
            decided,
            tenure: who.tenure.clone(),
            by_right: who.by_right.clone(),
            vouched: who.vouched.clone(),
            attributes,
        })
    }

    /// Authorizes a further action in the same request (create on update; delete for each object of a
    /// collection).
    ///
    /// # Errors
    ///
    /// As [`Auth::authorize`].
    pub async fn authorize_also(
        &self,
        by: &Authorized,
        attributes: Attributes,
    ) -> Result<Authorized, Refusal> {
        if by.is_internal() {
            return Ok(Authorized::internal(by.user.clone(), attributes, by.reason()));
        }
        let Authorized { user, tenure, by_right, vouched, .. } = by.clone();
        let who = Authenticated { user, tenure, by_right, vouched };
        self.authorize(&who, attributes, "").await
    }

    /// Decides on attributes that are not those of a request; admission plugins use this.
    ///
    /// # Errors
    ///
    /// 503 when authd gives no decision.
    pub async fn decision(&self, user: &Arc<UserInfo>, attributes: Attributes) -> Result<Decision, Status> {
        let decided = self.decide(user, &Arc::new(attributes), "").await?;
        Ok(decided.decision.clone())
    }

    /// Returns a valid decision from the cache or from authd.
    async fn decide(
        &self,
        user: &Arc<UserInfo>,
        attributes: &Arc<Attributes>,
        request_id: &str,
    ) -> Result<Arc<Decided>, Undecided> {
        if self.link.cache_serves() {
            let epoch = self.epochs.count();
            let holds = |validity: &Validity| validity.holds(&self.revisions, epoch, &*self.clock);
            if let Some(decided) = self.decisions.find(user, attributes, holds) {
                return Ok(decided);
            }
        }
        let asked = self.clock.monotonic();
        let reading = self.revisions.reading(user, &attributes.namespace);
        let ask = decide_request::Ask::Authorize(question(user, attributes, &reading));
        let answer = self.authority.decide(request_id, ask).await?;
        let epoch = self.epochs.observe(answer.epoch.as_ref());
        match answer.answer {
            Some(decide_response::Answer::Authorize(response)) => {
                let expiry = Expiry::of_wire(asked, response.ttl_ms);
                Ok(self.keep(user, attributes, &response, reading.as_of, epoch, expiry))
            }
            other => Err(undecided(other)),
        }
    }

    /// Decides on many requests with one request to authd. Open watches use this; it does not read the
    /// cache.
    async fn ask_batch(
        &self,
        asked: &[(Arc<UserInfo>, Arc<Attributes>)],
    ) -> Result<Vec<Arc<Decided>>, Undecided> {
        let begun = self.clock.monotonic();
        let readings: Vec<Reading> =
            asked.iter().map(|(user, a)| self.revisions.reading(user, &a.namespace)).collect();
        let requests = asked
            .iter()
            .zip(&readings)
            .map(|((user, attributes), reading)| question(user, attributes, reading))
            .collect();
        let ask = decide_request::Ask::AuthorizeBatch(AuthorizeBatchRequest { requests });
        let answer = self.authority.decide("", ask).await?;
        let epoch = self.epochs.observe(answer.epoch.as_ref());
        match answer.answer {
            Some(decide_response::Answer::AuthorizeBatch(batch)) if batch.responses.len() == asked.len() => {
                let each = asked.iter().zip(&readings).zip(&batch.responses);
                Ok(each
                    .map(|(((user, a), reading), response)| {
                        let expiry = Expiry::of_wire(begun, response.ttl_ms);
                        self.keep(user, a, response, reading.as_of, epoch, expiry)
                    })
                    .collect())
            }
            other => Err(undecided(other)),
        }
    }

    fn keep(
        &self,
        user: &Arc<UserInfo>,
        attributes: &Arc<Attributes>,
        response: &AuthorizeResponse,
        as_of: u64,
        epoch: Option<u64>,
        expiry: Option<Expiry>,
    ) -> Arc<Decided> {
        let depends = self.revisions.depends(response.depends_on.as_ref());
        let validity = Validity { as_of, depends, epoch, expiry };
        let decided = Arc::new(Decided::new(decision::from_wire(response), validity));
        let covers = Covers::try_from(response.covers).unwrap_or(Covers::This);
        self.decisions.keep(user, attributes, covers, &decided);
        decided
    }

    /// Creates a review.
    ///
    /// `object` is JSON with apiVersion and kind, decoded, pruned and defaulted. The response has the same
    /// form, with its status.
    ///
    /// # Errors
    ///
    /// authd's rejection of the object (422 with causes, 400, 403); 503 when authd does not respond.
    pub async fn review(
        &self,
        by: &Authorized,
        resource: &str,
        object: Vec<u8>,
        request_id: &str,
    ) -> Result<Vec<u8>, Status> {
        let request = ReviewRequest {
            resource: resource.to_owned(),
            namespace: by.attributes.namespace.clone(),
            user: Some((&*by.user).into()),
            object: object.into(),
            at_least: Some(self.revisions.full_reading().at_least),
            request_id: request_id.to_owned(),
        };
        match self.authority.review(request).await?.outcome {
            Some(review_response::Outcome::Object(object)) => Ok(object),
            Some(review_response::Outcome::Status(status)) => Err(authority::from_status_body(&status)),
            None => Err(Undecided::Malformed.into()),
        }
    }

    /// Drops decisions that no request used since the last sweep, until the process ends.
    async fn sweep_decisions(self: Arc<Self>) {
        loop {
            tokio::time::sleep(decision::IDLE).await;
            self.decisions.sweep();
        }
    }

    fn drop_caches(&self) {
        self.identities.clear();
        self.decisions.clear();
    }
}

fn question(user: &UserInfo, attributes: &Attributes, reading: &Reading) -> AuthorizeRequest {
    AuthorizeRequest {
        user: Some(user.into()),
        attributes: Some(attributes.into()),
        at_least: Some(reading.at_least.clone()),
        explain: false,
    }
}

fn undecided(answer: Option<decide_response::Answer>) -> Undecided {
    match answer {
        Some(decide_response::Answer::Failure(failure)) => Undecided::Failed(failure),
        _ => Undecided::Malformed,
    }
}
