//! A scripted authd for tests of all layers above the wire.
//!
//! # Invariants
//!
//! INVARIANT (absent from releases): programs without debug assertions do not contain this module, because it decides
//! requests without authd.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg_attr(not(test), expect(dead_code, reason = "some scripts are for the tests of this crate"))]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use apimachinery::clock::Clock;
use apimachinery::user::UserInfo;
use async_trait::async_trait;
use authproto::auth::decide_request::Query;
use authproto::auth::{
    AuthenticateResponse, AuthorizeNext, AuthorizeRequest, AuthorizeResponse, CoversRequest, CoversResponse,
    DecideResponse, Dependencies, Epoch, ExplainResponse, Failure, Identity, IssueTokenRequest,
    IssueTokenResponse, KeysRequest, KeysResponse, Rejected, ReviewRequest, ReviewResponse, Verdict,
    authenticate_response, decide_response, review_response,
};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::transport::authd_api::{AuthdApi, AuthdError};
use crate::transport::connection::AuthdConnection;
use crate::*;

type Predicate = Arc<dyn Fn(&AuthorizeRequest) -> bool + Send + Sync>;
type Authorizer = Box<dyn FnMut(&AuthorizeRequest) -> Result<AuthorizeResponse, AuthdError> + Send>;

/// A scripted authd: a bearer token is a user name or `name@group`, and the token `bad` is rejected.
pub(crate) struct ScriptedAuthd {
    /// Decides authorization requests.
    pub(crate) authorize: Mutex<Authorizer>,
    /// The identity of each accepted token, without the user.
    pub(crate) identity: Mutex<Identity>,
    /// The TTL of identities and rejections in milliseconds.
    pub(crate) ttl: AtomicU64,
    /// The epoch of the responses.
    pub(crate) epoch: Mutex<Epoch>,
    /// The number of requests so far.
    pub(crate) request_count: AtomicUsize,
    /// The rejected token: `bad` unless a test sets another.
    rejected_token: Mutex<String>,
    /// Selects the authorization requests that get no response, until a test changes the predicate.
    hangs: watch::Sender<Predicate>,
    /// The number of further authentications that fail with 503.
    failing_authentications: AtomicUsize,
    /// The nearest misses of every denial.
    pub(crate) nearest_misses: Mutex<Vec<String>>,
    /// The number of requested explanations.
    pub(crate) explanation_count: Arc<AtomicUsize>,
}

impl ScriptedAuthd {
    /// A scripted authd that decides authorization requests with `authorize`.
    pub(crate) fn new(
        authorize: impl FnMut(&AuthorizeRequest) -> Result<AuthorizeResponse, AuthdError> + Send + 'static,
    ) -> Arc<Self> {
        Arc::new(ScriptedAuthd {
            authorize: Mutex::new(Box::new(authorize)),
            identity: Mutex::default(),
            ttl: AtomicU64::new(0),
            epoch: Mutex::new(Epoch { instance: "one".into(), generation: 1, identities: 1 }),
            request_count: AtomicUsize::new(0),
            rejected_token: Mutex::new("bad".to_owned()),
            hangs: watch::Sender::new(Arc::new(|_| false)),
            failing_authentications: AtomicUsize::new(0),
            nearest_misses: Mutex::default(),
            explanation_count: Arc::default(),
        })
    }

    /// Rejects only this token from now on.
    pub(crate) fn reject_token(&self, token: &str) {
        token.clone_into(&mut self.rejected_token.lock());
    }

    /// Withholds the response to the selected authorization requests from now on, and responds to pending
    /// requests that are not selected.
    pub(crate) fn hang(&self, is_selected: impl Fn(&AuthorizeRequest) -> bool + Send + Sync + 'static) {
        self.hangs.send_replace(Arc::new(is_selected));
    }

    /// Withholds the response to authorization requests of this user.
    pub(crate) fn hang_requests_of(&self, user: &'static str) {
        self.hang(move |request| request.user.as_ref().is_some_and(|info| info.name == user));
    }

    /// Fails the next authentications with 503.
    pub(crate) fn fail_authentications(&self, count: usize) {
        self.failing_authentications.store(count, Ordering::SeqCst);
    }

    /// The number of requests since the last call.
    pub(crate) fn take_request_count(&self) -> usize {
        self.request_count.swap(0, Ordering::SeqCst)
    }
}

/// A response with a verdict and nothing else.
pub(crate) fn verdict(allowed: bool) -> AuthorizeResponse {
    let verdict = if allowed { Verdict::Allow } else { Verdict::Deny };
    AuthorizeResponse { verdict: verdict.into(), ..AuthorizeResponse::default() }
}

#[async_trait]
impl AuthdApi for ScriptedAuthd {
    async fn decide(&self, _request_id: &str, query: Query) -> Result<DecideResponse, AuthdError> {
        self.request_count.fetch_add(1, Ordering::SeqCst);
        let answer = match query {
            Query::Authenticate(request) => {
                use authenticate_response::Outcome;
                let decrement = |count: usize| count.checked_sub(1);
                if self
                    .failing_authentications
                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, decrement)
                    .is_ok()
                {
                    return Err(AuthdError::Failed(Failure { code: 503, ..Failure::default() }));
                }
                let outcome = match request.bearer_token.as_str() {
                    token if token == *self.rejected_token.lock() => {
                        Outcome::Rejected(Rejected { detail: "a bad token".into() })
                    }
                    token => {
                        let mut identity = self.identity.lock().clone();
                        let mut user = UserInfo::anonymous();
                        if !token.is_empty() {
                            let (name, group) = token.split_once('@').unwrap_or((token, ""));
                            let groups = (!group.is_empty()).then(|| group.to_owned());
                            let groups = groups.into_iter().collect();
                            user = UserInfo { name: name.into(), groups, ..UserInfo::default() };
                        }
                        identity.anonymous = token.is_empty();
                        identity.user = Some((&user).into());
                        Outcome::Identity(identity)
                    }
                };
                let user = match &outcome {
                    Outcome::Identity(identity) => identity.user.clone(),
                    Outcome::Rejected(_) => None,
                };
                let next = request.next.filter(|_| user.is_some()).map(|next| {
                    let AuthorizeNext { attributes, at_least } = next;
                    (self.authorize.lock())(&AuthorizeRequest { user, attributes, at_least })
                });
                decide_response::Answer::Authenticate(AuthenticateResponse {
                    outcome: Some(outcome),
                    depends_on: None,
                    ttl_ms: self.ttl.load(Ordering::SeqCst),
                    next: next.transpose()?,
                })
            }
            Query::Authorize(request) => {
                // Cannot fail: the script owns the sender.
                let _ = self.hangs.subscribe().wait_for(|hangs| !hangs(&request)).await.is_ok();
                decide_response::Answer::Authorize((self.authorize.lock())(&request)?)
            }
            Query::Explain(_) => {
                self.explanation_count.fetch_add(1, Ordering::SeqCst);
                let nearest_misses = self.nearest_misses.lock().clone();
                decide_response::Answer::Explain(ExplainResponse { nearest_misses })
            }
        };
        Ok(DecideResponse { id: 0, epoch: Some(self.epoch.lock().clone()), answer: Some(answer) })
    }

    async fn covers(&self, _request: CoversRequest) -> Result<CoversResponse, AuthdError> {
        Ok(CoversResponse { allowed: true, ..CoversResponse::default() })
    }

    async fn issue_token(&self, _request: IssueTokenRequest) -> Result<IssueTokenResponse, AuthdError> {
        Err(AuthdError::Unreachable("the script issues no tokens".to_owned()))
    }

    async fn keys(&self, _request: KeysRequest) -> Result<KeysResponse, AuthdError> {
        Ok(KeysResponse::default())
    }

    async fn review(&self, request: ReviewRequest) -> Result<ReviewResponse, AuthdError> {
        Ok(ReviewResponse { outcome: Some(review_response::Outcome::Object(request.object.to_vec())) })
    }
}

impl Auth {
    /// Uses a script instead of authd. Call inside a tokio runtime.
    pub(crate) fn scripted(
        script: Arc<ScriptedAuthd>,
        revisions: Arc<PolicyRevisions>,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        let connection = Arc::new(AuthdConnection::new(clock.clone()));
        connection.set_decisions_open(&"one".into());
        connection.set_mirror_open(&"one".into());
        connection.set_mirror_synced();
        connection.set_ready(true, Vec::new());
        let options = AuthOptions {
            servers: Vec::new(),
            instance: String::new(),
            timeout: Duration::ZERO,
            names: Arc::new(Names::new("svc".parse().unwrap(), "example.test").unwrap()),
            proxy_headers: ProxyHeaders::default(),
        };
        Auth::with_api(script, connection, Servers::new(Vec::new(), ""), revisions, clock, options).unwrap()
    }

    /// Allows everything: tokens are user names, no token is anonymous, `bad` is rejected.
    pub fn allow_all(clock: Arc<dyn Clock>) -> Arc<Self> {
        let revisions = Arc::new(PolicyRevisions::new(Reductions::for_tests()));
        Auth::scripted(ScriptedAuthd::new(|_| Ok(verdict(true))), revisions, clock)
    }

    /// Decides by a predicate and explains every denial with the same nearest misses. Also returns the
    /// counter of requested explanations.
    pub fn with_explanations(
        clock: Arc<dyn Clock>,
        is_allowed: impl Fn(&AuthorizeRequest) -> bool + Send + 'static,
        nearest_misses: &[&str],
    ) -> (Arc<Self>, Arc<AtomicUsize>) {
        let script = ScriptedAuthd::new(move |request| Ok(verdict(is_allowed(request))));
        *script.nearest_misses.lock() = nearest_misses.iter().map(|&line| line.to_owned()).collect();
        let count = Arc::clone(&script.explanation_count);
        let revisions = Arc::new(PolicyRevisions::new(Reductions::for_tests()));
        (Auth::scripted(script, revisions, clock), count)
    }

    /// Decides by a predicate on policy whose revisions are [`Auth::policy_revisions`]. While the returned function was
    /// last called with true, requests that ask only for a decision get no response.
    pub fn on_policy(
        clock: Arc<dyn Clock>,
        revisions: &Arc<PolicyRevisions>,
        is_allowed: impl Fn(&AuthorizeRequest) -> bool + Send + 'static,
    ) -> (Arc<Self>, Box<dyn Fn(bool)>) {
        let depends_on = Dependencies { rbac_cluster: true, ..Dependencies::default() };
        let script = ScriptedAuthd::new(move |request| {
            let depends_on = Some(depends_on.clone());
            Ok(AuthorizeResponse { depends_on, ..verdict(is_allowed(request)) })
        });
        let auth = Auth::scripted(Arc::clone(&script), Arc::clone(revisions), clock);
        (auth, Box::new(move |is_withheld| script.hang(move |_| is_withheld)))
    }

    /// The revisions of policy for [`Auth::on_policy`]; the keys of the kinds begin with their resources.
    pub fn policy_revisions() -> Arc<PolicyRevisions> {
        Arc::new(PolicyRevisions::new(Reductions::for_tests()))
    }

    /// Ends the connection to authd.
    pub fn disconnect_authd(&self) {
        self.connection.set_decisions_lost(AuthdProblem::Unreachable("gone".to_owned()));
    }

    /// Allows everything except requests for a path.
    pub fn allow_except(clock: Arc<dyn Clock>, path: &'static str) -> Arc<Self> {
        Auth::allow_if(clock, move |request| {
            request.attributes.as_ref().is_none_or(|attributes| attributes.path != path)
        })
    }

    /// Allows the requests for which a predicate is true.
    pub fn allow_if(
        clock: Arc<dyn Clock>,
        is_allowed: impl Fn(&AuthorizeRequest) -> bool + Send + 'static,
    ) -> Arc<Self> {
        let revisions = Arc::new(PolicyRevisions::new(Reductions::for_tests()));
        Auth::scripted(ScriptedAuthd::new(move |request| Ok(verdict(is_allowed(request)))), revisions, clock)
    }
}
