//! Who makes a request and whether they may: the client of authd, its caches, the policy revisions and the mirror.
//!
//! # Contract
//!
//! [`Auth::authenticate`] gives an [`Authenticated`], [`Auth::authorize`] an [`Authorized`]; nothing else can make them, and
//! every verb takes an `Authorized`. Work of the process itself is authorized by [`Authorized::internal`], with an
//! identity that the audit log shows. An open watch holds a [`WatchGuard`].
//!
//! # Invariants
//!
//! INVARIANT (fresh policy): a request that arrives after a policy write was acknowledged is never decided on policy
//! older than that write (design section 2). Three things make it so: the vector advances before the writer is answered
//! ([`revisions`]); a question carries the vector as it was read before, and authd answers at it or fails; what is kept of
//! an answer is used only while the vector has not moved ([`decision`], [`identity`], [`watches`]).
//! INVARIANT (fail closed): no answer from authd is a 503, never an allow.

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

/// A caller whose credentials were accepted.
#[derive(Clone, Debug)]
pub struct Authenticated {
    user: Arc<UserInfo>,
    tenure: Arc<Tenure>,
    /// The rights by which somebody else is this user; none: it is the caller.
    by_right: Vec<Authorized>,
    /// Where another service said who it is: what is open asks it again.
    vouched: Option<Vouched>,
}

impl Authenticated {
    /// Whoever made the request, as nobody else.
    fn caller(user: Arc<UserInfo>, tenure: Arc<Tenure>) -> Self {
        Authenticated { user, tenure, by_right: Vec::new(), vouched: None }
    }

    /// The caller.
    pub fn user(&self) -> &Arc<UserInfo> {
        &self.user
    }
}

/// A request that may go on: who, and what exactly.
#[derive(Clone, Debug)]
pub struct Authorized {
    user: Arc<UserInfo>,
    attributes: Arc<Attributes>,
    decided: Arc<Decided>,
    tenure: Arc<Tenure>,
    /// The rights by which somebody else is this user: what is open ends with any of them.
    by_right: Vec<Authorized>,
    vouched: Option<Vouched>,
}

impl Authorized {
    /// Work of the process itself, which no policy can stop: background loops, and writes that authd asks for. `reason`
    /// says in the audit log what it is.
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

    /// The caller.
    pub fn user(&self) -> &Arc<UserInfo> {
        &self.user
    }

    /// What was allowed.
    pub fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// Why, for the audit log.
    pub fn reason(&self) -> &str {
        &self.decided.decision.reason
    }
}

/// How apid reaches authd.
#[derive(Clone, Debug)]
pub struct AuthOptions {
    /// authd's unix socket.
    pub socket: std::path::PathBuf,
    /// How long a question may take.
    pub timeout: Duration,
    /// The headers an authenticating proxy may set.
    pub proxy_headers: ProxyHeaders,
}

/// The client of authd: one for the process.
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
    /// Set once the metrics of the process are there.
    meters: OnceLock<AuthMeters>,
}

impl Auth {
    /// Connects to authd and stays connected; returns at once. The vector must be an observer of the store.
    ///
    /// # Errors
    ///
    /// The system gave no random bytes.
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

    /// Whether requests can be decided now, and if not why. For health checks.
    ///
    /// # Errors
    ///
    /// The reason, for `/readyz?verbose` and the log.
    pub fn health(&self) -> Result<(), String> {
        self.link.health()
    }

    /// What authd wants known though it is ready: configuration files that it does not take. For `/readyz?verbose`.
    pub fn notes(&self) -> Vec<String> {
        self.link.notes()
    }

    /// authd's counters of configuration reloads in the text format; empty without authd.
    pub fn reload_metrics(&self) -> String {
        self.link.reload_metrics()
    }

    /// Waits until authd is reached.
    pub async fn reached(&self) {
        self.link.wait().await;
    }

    /// Tells that the process ends: authd's going is expected.
    pub fn ending(&self) {
        self.link.ending();
    }

    /// Why authd cannot be reached; None when it can. Only while it cannot does `/livez` answer by itself.
    pub fn unreachable(&self) -> Option<String> {
        self.link.unreachable()
    }

    /// Whether a caller may do something.
    ///
    /// # Errors
    ///
    /// 403 when they may not, 503 when authd cannot say; with the reason for the audit log.
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
            tracing::warn!(request_id, problem = %evaluation_error, "policy has a problem");
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

    /// A further right of the same caller in the same request (create on update; delete of what a collection holds).
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

    /// Whether a user may do something that is no request of theirs: what admission asks about.
    ///
    /// # Errors
    ///
    /// 503 when authd cannot say.
    pub async fn decision(&self, user: &Arc<UserInfo>, attributes: Attributes) -> Result<Decision, Status> {
        let decided = self.decide(user, &Arc::new(attributes), "").await?;
        Ok(decided.decision.clone())
    }

    /// A decision that holds now: kept, or asked for.
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

    /// Decisions on many requests with one question. For open watches: nothing kept is used.
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

    /// Answers a review object: `object` is JSON with apiVersion and kind, decoded, pruned and defaulted; so is the answer,
    /// with its status.
    ///
    /// # Errors
    ///
    /// What authd finds wrong with the object (422 with causes, 400, 403); 503 when it cannot say.
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

    /// Drops decisions that nobody needs any more, until the process ends.
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
