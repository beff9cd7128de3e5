//! `Decide.Stream`: the authentication and authorization of every API request.
//!
//! # Contract
//!
//! The task of the stream reads a request. If no wait is needed, it responds before it reads the next one,
//! without a queue or a wake-up of another task. A request that must wait for the mirror or a remote service
//! does not delay later ones; responses carry the id of the request. The task of the stream verifies a token
//! itself if the stream has no other work, else a separate task does. A signature check takes a fraction of a
//! millisecond, so the stream waits for one check at most. A separate task always verifies certificate chains.
//!
//! The response to an authentication also contains the decision on the request, under the same configuration, if apid
//! asked for the decision and no wait is needed. Otherwise apid requests the decision separately.
//!
//! # Invariants
//!
//! INVARIANT (limits): [`MAX_WAITING`] requests of a stream may wait for the mirror or a remote service.
//! Further credentials, and further authorizations and explanations that need a wait, then fail at once. At most
//! [`MAX_VERIFICATIONS`] credentials of a stream are under verification; further credentials fail at once. Credentials that
//! wait for the mirror are not under verification. The limits of one apid, which has one stream, take nothing from others.
//! INVARIANT (every request has a response): each request gets exactly one response; a malformed request gets a failure.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use apimachinery::attributes::Attributes;
use apimachinery::decision::Verdict;
use apimachinery::user::UserInfo;
use authproto::auth::{self, authenticate_response::Outcome, decide_request::Query, decide_response::Answer};
use futures_util::FutureExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming};

use super::{Caller, Components, min_revision, status};
use crate::active_config::ActiveConfig;
use crate::authn::{AuthenticatedIdentity, AuthnContext, AuthnError, Credentials, Rejection, join_checks};
use crate::authz::AuthzRequest;
use crate::mirror::MirrorNotReady;

/// The number of waiting requests of one stream at which further requests fail instead of waiting.
const MAX_WAITING: usize = 10_000;
/// The maximum number of credentials under verification in one stream; further credentials fail at once.
const MAX_VERIFICATIONS: usize = 2048;

pub(super) struct DecideService(pub(super) Components);

#[tonic::async_trait]
impl auth::decide_server::Decide for DecideService {
    type StreamStream = ResponseStream;

    async fn stream(
        &self,
        request: Request<Streaming<auth::DecideRequest>>,
    ) -> Result<Response<ResponseStream>, Status> {
        let components = self.0.caller(request.metadata());
        let requests = request.into_inner();
        Ok(Response::new(ResponseStream {
            components,
            requests,
            ended: false,
            verification: None,
            verification_permits: Arc::new(Semaphore::new(MAX_VERIFICATIONS)),
            waiting: FuturesUnordered::new(),
        }))
    }
}

type PendingResponse = Pin<Box<dyn Future<Output = auth::DecideResponse> + Send>>;

/// The response stream: reads requests and yields responses.
pub(super) struct ResponseStream {
    components: Caller,
    requests: Streaming<auth::DecideRequest>,
    ended: bool,
    /// The verification of the credentials that were read last. If the stream has other work, a separate task
    /// runs it.
    verification: Option<Verification>,
    /// One permit for each credential under verification.
    verification_permits: Arc<Semaphore>,
    waiting: FuturesUnordered<PendingResponse>,
}

impl Stream for ResponseStream {
    type Item = Result<auth::DecideResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if !self.waiting.is_empty()
                && let Poll::Ready(Some(answer)) = Pin::new(&mut self.waiting).poll_next(context)
            {
                return Poll::Ready(Some(Ok(answer)));
            }
            let next_request =
                if self.ended { Poll::Ready(None) } else { Pin::new(&mut self.requests).poll_next(context) };
            if let Some(verification) = self.verification.take() {
                if next_request.is_ready() || !self.waiting.is_empty() {
                    self.waiting.push(verification.spawn_verify());
                } else {
                    match verification.verify_inline() {
                        Ok(answer) => return Poll::Ready(Some(Ok(answer))),
                        Err(pending) => self.waiting.push(pending),
                    }
                }
                if next_request.is_pending() {
                    // The next iteration polls the pushed future, which registers its waker.
                    continue;
                }
            }
            match next_request {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(next_request))) => {
                    let waiting = self.waiting.len();
                    match handle_request(&self.components, &self.verification_permits, next_request, waiting)
                    {
                        Reply::Immediate(answer) => return Poll::Ready(Some(Ok(answer))),
                        // The next iteration polls the pushed future, which registers its waker.
                        Reply::PendingResponse(pending) => self.waiting.push(pending),
                        Reply::Verify(verification) => self.verification = Some(verification),
                    }
                }
                Poll::Ready(Some(Err(status))) => return Poll::Ready(Some(Err(status))),
                Poll::Ready(None) if self.ended && self.waiting.is_empty() => return Poll::Ready(None),
                Poll::Ready(None) if self.ended => return Poll::Pending,
                Poll::Ready(None) => self.ended = true,
            }
        }
    }
}

#[expect(clippy::large_enum_variant, reason = "boxing would cost every request an allocation")]
enum Reply {
    Immediate(auth::DecideResponse),
    PendingResponse(PendingResponse),
    Verify(Verification),
}

/// The verification of credentials, which holds one verification permit except while it waits for the mirror.
struct Verification {
    future: PendingResponse,
    /// The response if the verification panics.
    panic_response: Box<dyn FnOnce() -> auth::DecideResponse + Send>,
}

impl Verification {
    fn new(
        components: &Caller,
        permit: VerificationPermit,
        request: auth::AuthenticateRequest,
        id: u64,
        request_id: String,
    ) -> Self {
        let config = Arc::clone(&components.config);
        let panic_response = move || {
            let failure = status::malformed_request("credential verification panicked");
            respond(id, &config.current(), Answer::Failure(failure))
        };
        let components = components.clone();
        let future =
            Box::pin(async move { authenticate(&components, permit, request, id, &request_id).await });
        Verification { future, panic_response: Box::new(panic_response) }
    }

    /// Verifies in this task. Returns the response, or a future if the verification must wait.
    fn verify_inline(mut self) -> Result<auth::DecideResponse, PendingResponse> {
        match AssertUnwindSafe(&mut self.future).catch_unwind().now_or_never() {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(_panic)) => Ok((self.panic_response)()),
            // The separate task polls the future again and so registers a waker.
            None => Err(self.spawn_verify()),
        }
    }

    /// Verifies in a separate task.
    fn spawn_verify(self) -> PendingResponse {
        let task = tokio::spawn(self.future);
        Box::pin(async move { task.await.unwrap_or_else(|_| (self.panic_response)()) })
    }
}

/// The permit of one credential, which it does not hold while it waits for the mirror.
struct VerificationPermit {
    permits: Arc<Semaphore>,
    /// The permit of the first attempt.
    first: Option<OwnedSemaphorePermit>,
}

impl VerificationPermit {
    /// Takes a permit for the first attempt; None if no permit is free.
    fn take(permits: &Arc<Semaphore>) -> Option<Self> {
        let first = Arc::clone(permits).try_acquire_owned().ok()?;
        Some(VerificationPermit { permits: Arc::clone(permits), first: Some(first) })
    }

    /// Returns the permit for one attempt. A later attempt waits until a permit is free.
    fn hold(&mut self) -> impl Future<Output = Option<OwnedSemaphorePermit>> + Send + use<> {
        let (first, permits) = (self.first.take(), Arc::clone(&self.permits));
        async move {
            match first {
                Some(permit) => Some(permit),
                // The semaphore is never closed, so there is always a permit.
                None => permits.acquire_owned().await.ok(),
            }
        }
    }
}

fn handle_request(
    components: &Caller,
    permits: &Arc<Semaphore>,
    request: auth::DecideRequest,
    waiting: usize,
) -> Reply {
    let id = request.id;
    begin_response(components, permits, request, waiting).unwrap_or_else(|failure| {
        Reply::Immediate(respond(id, &components.config.current(), Answer::Failure(failure)))
    })
}

/// Responds to a request, or begins the work for the response.
///
/// # Errors
///
/// The failure of a request that is malformed or exceeds a limit.
fn begin_response(
    components: &Caller,
    permits: &Arc<Semaphore>,
    request: auth::DecideRequest,
    waiting: usize,
) -> Result<Reply, auth::Failure> {
    let auth::DecideRequest { id, request_id, query } = request;
    let no_query = || status::malformed_request("the request has neither credentials nor attributes");
    match query.ok_or_else(no_query)? {
        Query::Authenticate(request) => {
            if request.certificate_chain.is_empty()
                && request.bearer_token.is_empty()
                && request.proxy_headers.is_empty()
                && request.unreadable.is_empty()
            {
                let active = components.config.current();
                let mut response =
                    authenticate_response(components, active.authn.anonymous(&request.path), &request_id);
                authorize_next(components, &active, request.next, &mut response);
                return Ok(Reply::Immediate(respond(id, &active, Answer::Authenticate(response))));
            }
            if waiting >= MAX_WAITING {
                return Err(status::too_many_waiting());
            }
            let permit = VerificationPermit::take(permits).ok_or_else(status::too_many_verifications)?;
            // The sender of a chain determines the duration of its verification, within the limits of a
            // chain.
            let is_inline = request.certificate_chain.is_empty();
            let verification = Verification::new(components, permit, request, id, request_id);
            Ok(if is_inline {
                Reply::Verify(verification)
            } else {
                Reply::PendingResponse(verification.spawn_verify())
            })
        }
        Query::Authorize(request) => {
            decide(components, waiting, AuthzQuery::from_request(request)?, id, request_id)
        }
        Query::Explain(_) if waiting >= MAX_WAITING => Err(status::too_many_waiting()),
        Query::Explain(auth::ExplainRequest { user, attributes, at_least }) => {
            let query = AuthzQuery::from_request(auth::AuthorizeRequest { user, attributes, at_least })?;
            Ok(Reply::PendingResponse(Box::pin(explain(components.clone(), query, id, request_id))))
        }
    }
}

/// Encodes a TTL for the wire: the TTL in milliseconds plus one, because zero means no TTL.
fn wire_ttl(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).saturating_add(1)
}

/// Builds a response with the epoch of the configuration that decided.
fn respond(id: u64, active: &ActiveConfig, answer: Answer) -> auth::DecideResponse {
    auth::DecideResponse { id, epoch: Some(active.epoch.clone()), answer: Some(answer) }
}

/// Decides a query. Responds at once if no wait is needed, else when the query is decided, or with a failure
/// after [`MIRROR_TIMEOUT`](super::MIRROR_TIMEOUT). `waiting` is the number of waiting requests of the stream.
fn decide(
    components: &Caller,
    waiting: usize,
    query: AuthzQuery,
    id: u64,
    request_id: String,
) -> Result<Reply, auth::Failure> {
    let task_components = components.clone();
    let mut decision: PendingResponse = Box::pin(async move {
        let components = task_components;
        let decide = || async {
            let active = components.config.current();
            authorize(&active, &components, &query).await.map(|answer| (active, answer))
        };
        match components.retry_until_synced(query.at_least, decide).await {
            Ok((active, answer)) => respond(id, &active, Answer::Authorize(answer)),
            Err(error) => {
                components.metrics.count_undecided();
                tracing::warn!(request_id, %error, "authorization timed out waiting for the mirror");
                respond(id, &components.config.current(), Answer::Failure(status::mirror_not_ready(error)))
            }
        }
    });
    match (&mut decision).now_or_never() {
        Some(answer) => Ok(Reply::Immediate(answer)),
        None if waiting >= MAX_WAITING => Err(status::too_many_waiting()),
        // The poll above registered no waker; the response stream polls the future again.
        None => Ok(Reply::PendingResponse(decision)),
    }
}

/// One authorization request with the minimum revision of the mirror.
struct AuthzQuery {
    user: UserInfo,
    attributes: Attributes,
    at_least: u64,
}

impl AuthzQuery {
    /// Decodes an authorization request; the failure says which part the request lacks.
    fn from_request(request: auth::AuthorizeRequest) -> Result<Self, auth::Failure> {
        let malformed = |problem| move || status::malformed_request(problem);
        let at_least = min_revision(request.at_least.as_ref());
        let user = request.user.ok_or_else(malformed("the request has no user"))?.into();
        let attributes = request.attributes.ok_or_else(malformed("the request has no attributes"))?.into();
        Ok(AuthzQuery { user, attributes, at_least })
    }
}

async fn authorize(
    active: &ActiveConfig,
    components: &Caller,
    query: &AuthzQuery,
) -> Result<auth::AuthorizeResponse, MirrorNotReady> {
    let AuthzQuery { user, attributes, at_least } = query;
    let answer = active
        .authz
        .authorize(AuthzRequest { user, attributes, at_least: components.at_least(*at_least) })
        .await?;
    components.metrics.count_decision(answer.decision.verdict);
    let verdict = match answer.decision.verdict {
        Verdict::Allow => auth::Verdict::Allow,
        Verdict::Deny => auth::Verdict::Deny,
        Verdict::NoOpinion => auth::Verdict::NoOpinion,
    };
    let covers = if answer.any_name { auth::Covers::AnyName } else { auth::Covers::This };
    Ok(auth::AuthorizeResponse {
        verdict: verdict.into(),
        reason: answer.decision.reason,
        evaluation_error: answer.decision.evaluation_error,
        depends_on: Some(answer.depends_on),
        ttl_ms: answer.ttl.map_or(0, wire_ttl),
        covers: covers.into(),
    })
}

/// Waits for the mirror and returns the nearest misses of a denied request, or a failure after a timeout.
async fn explain(components: Caller, query: AuthzQuery, id: u64, request_id: String) -> auth::DecideResponse {
    let AuthzQuery { user, attributes, at_least } = &query;
    let explain = || async {
        let active = components.config.current();
        let request = AuthzRequest { user, attributes, at_least: components.at_least(*at_least) };
        active.authz.nearest_misses(request).map(|nearest_misses| (active, nearest_misses))
    };
    match components.retry_until_synced(*at_least, explain).await {
        Ok((active, nearest_misses)) => {
            respond(id, &active, Answer::Explain(auth::ExplainResponse { nearest_misses }))
        }
        Err(error) => {
            tracing::warn!(request_id, %error, "explanation timed out waiting for the mirror");
            respond(id, &components.config.current(), Answer::Failure(status::mirror_not_ready(error)))
        }
    }
}

/// Authenticates credentials, and waits for the mirror if an authenticator needs a newer one.
async fn authenticate(
    components: &Caller,
    mut permit: VerificationPermit,
    request: auth::AuthenticateRequest,
    id: u64,
    request_id: &str,
) -> auth::DecideResponse {
    let credentials = Credentials {
        certificates: &request.certificate_chain,
        token: &request.bearer_token,
        proxy_headers: &request.proxy_headers,
        unreadable: &request.unreadable,
        audiences: &request.audiences,
        path: &request.path,
    };
    let at_least = min_revision(request.at_least.as_ref());
    let identify = || {
        let permit = permit.hold();
        async move {
            let _permit = permit.await;
            let active = components.config.current();
            let at_least = components.at_least(at_least);
            let context = AuthnContext { now: components.clock.now(), at_least };
            active.authn.authenticate(credentials, context).await.map(|outcome| (active, outcome))
        }
    };
    match components.retry_until_synced(at_least, identify).await {
        Ok((active, Err(AuthnError::Undecided(methods)))) => {
            let reasons = join_checks(&methods);
            tracing::info!(request_id, reasons, "authentication undecided; responding 503");
            respond(id, &active, Answer::Failure(status::credentials_undecided(reasons)))
        }
        Ok((active, Err(AuthnError::Rejection(rejection)))) => {
            let response = authenticate_response(components, Err(rejection), request_id);
            respond(id, &active, Answer::Authenticate(response))
        }
        Ok((active, Ok(accepted))) => {
            let mut response = authenticate_response(components, Ok(accepted), request_id);
            authorize_next(components, &active, request.next, &mut response);
            respond(id, &active, Answer::Authenticate(response))
        }
        Err(error) => {
            tracing::warn!(request_id, %error, "authentication timed out waiting for the mirror");
            respond(id, &components.config.current(), Answer::Failure(status::mirror_not_ready(error)))
        }
    }
}

fn authenticate_response(
    components: &Caller,
    outcome: Result<(AuthenticatedIdentity, &'static str), Rejection>,
    request_id: &str,
) -> auth::AuthenticateResponse {
    let (ttl, outcome) = match outcome {
        Ok((accepted, method)) => {
            components.metrics.count_authentication(Some(method));
            tracing::debug!(request_id, method, user = accepted.user.name, "authenticated");
            let identity = auth::Identity {
                user: Some((&accepted.user).into()),
                audiences: accepted.audiences,
                // On the wire zero means none. A time before 1970 has passed, so it restricts nothing.
                not_before_ms: accepted.not_before.map_or(0, |time| time.as_millisecond().max(0)),
                expires_at_ms: accepted.expires_at.map_or(0, |time| time.as_millisecond()),
                depends_on: accepted.depends_on,
                anonymous: accepted.anonymous,
            };
            (accepted.ttl, Outcome::Identity(identity))
        }
        Err(rejection) => {
            components.metrics.count_authentication(None);
            for (method, check) in &rejection.checks {
                tracing::info!(request_id, method, check, "credential rejected");
            }
            (rejection.ttl, Outcome::Rejected(auth::Rejected { detail: rejection.to_string() }))
        }
    };
    // Every result may depend on stored objects: a rejected token becomes valid when its service account is
    // created.
    let depends_on = auth::Dependencies { identity: true, ..auth::Dependencies::default() };
    auth::AuthenticateResponse {
        outcome: Some(outcome),
        depends_on: Some(depends_on),
        ttl_ms: ttl.map_or(0, wire_ttl),
        next: None,
    }
}

/// Adds the decision for the identified user to the response, if apid asked for it and it needs no wait.
fn authorize_next(
    components: &Caller,
    active: &ActiveConfig,
    next: Option<auth::AuthorizeNext>,
    response: &mut auth::AuthenticateResponse,
) {
    let (Some(next), Some(Outcome::Identity(identity))) = (next, &response.outcome) else { return };
    // A webhook call needs a wait. A single poll would start the call and then cancel it.
    if active.authz.uses_remote_service() {
        return;
    }
    let auth::AuthorizeNext { attributes, at_least } = next;
    let user = identity.user.clone();
    // apid then requests the decision separately and gets the error.
    let Ok(query) = AuthzQuery::from_request(auth::AuthorizeRequest { user, attributes, at_least }) else {
        return;
    };
    if let Some(Ok(answer)) = authorize(active, components, &query).now_or_never() {
        response.next = Some(answer);
    }
}
