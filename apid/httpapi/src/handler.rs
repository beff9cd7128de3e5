//! The request handler: authentication, authorization, execution and response in order.

use std::future::poll_fn;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use apimachinery::decision::explain_reason;
use apimachinery::status::{Details, Reason, Status};
use flowcontrol::Schema;
use futures_util::future::BoxFuture;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Request, Response, Uri, Version};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use kinds::Kind;
use parking_lot::Mutex;
use serving::body::Body;
use serving::listener::Listener;
use serving::metrics::Histogram;
use serving::server::{ConnectionInfo, Handler, ServerOptions, ShutdownResult};
use serving::tls::ServingTls;
use tokio::task::coop;
use tracing::Span;

#[cfg(test)]
use super::work_pool::WorkPool;
use super::{aggregated, audited_request, forwarded, head_limits, openapi, routes};
use crate::body::{FirstReceived, ReceivedBody, RequestBody};
use crate::deadline::{self, RequestDeadline, TimeLimit};
use crate::execution::{self, Executor, Place};
use crate::metrics::RequestOutcome;
use crate::query::Query;
use crate::request_context::{AuditRecord, RequestContext, address_flow};
use crate::request_info::RequestInfo;
use crate::response::chunk_producer::{self, ChunkProducer};
use crate::response::respond::{AUDIT_ID, ApiResponse, Delivery, ResponseOptions};
use crate::shares::Shares;
use crate::state::HttpState;
use authclient::{Admitted, Authorized, Credentials, Identity, Rejection};
use verbs::{ApiState, ServedKinds};

/// The request handler of a server.
pub struct Api {
    http_state: Arc<HttpState>,
    shares: Shares,
    executor: Executor,
}

impl Handler for Api {
    fn handle(
        &self,
        request: Request<Incoming>,
        connection: Arc<ConnectionInfo>,
    ) -> BoxFuture<'_, Response<Body>> {
        // The future of the request is boxed where it is created: a surrounding block would copy it once more.
        let (head, body) = request.into_parts();
        Box::pin(self.handle_request(head, body.into(), connection))
    }
}

impl Api {
    /// Creates a handler. Must be called within the serving runtime.
    ///
    /// # Errors
    ///
    /// The system cannot start a worker thread.
    pub fn new(http_state: Arc<HttpState>) -> io::Result<Self> {
        Ok(Api { http_state, shares: Shares::new(), executor: Executor::start()? })
    }

    fn api_state(&self) -> &ApiState {
        &self.http_state.api_state
    }

    /// Serves the requests of a listener until `shutdown` is ready and all connections have ended.
    pub fn serve(
        self,
        listener: Listener,
        tls: Option<Arc<ServingTls>>,
        options: ServerOptions,
        shutdown: BoxFuture<'static, ()>,
    ) -> BoxFuture<'static, ShutdownResult> {
        serving::server::serve(listener, tls, Arc::new(self), options, shutdown)
    }

    /// Handles one request and returns its response.
    pub async fn handle_request(
        &self,
        mut head: Parts,
        body: RequestBody,
        connection: Arc<ConnectionInfo>,
    ) -> Response<Body> {
        let http_state = &self.http_state;
        let api_state = &*http_state.api_state;
        let started = api_state.clock.monotonic();
        let received = http_state.audit.is_on().then(|| api_state.clock.now());
        let (uri, rejection) = if head_limits::has_long_query(&head.uri) {
            match Box::pin(self.parse_on_pool(&head, &connection)).await {
                Ok(uri) => (uri, None),
                Err(status) => (ParsedUri::new(&head.method, &head.uri, Query::default()), Some(status)),
            }
        } else {
            (ParsedUri::new(&head.method, &head.uri, Query::parse(head.uri.query())), None)
        };
        let ParsedUri { query, mut info } = uri;
        let rejection = match (&http_state.freshness, rejection) {
            (Some(freshness), None) if !info.is_for_health() => {
                Box::pin(freshness.await_arrival(api_state, &info, &query)).await.err()
            }
            (_, rejection) => rejection,
        };
        let remote = aggregated::remote_of(&http_state.aggregation, &info);
        if remote.is_some() {
            info.read_object_watch_as_get();
        }
        let header_credentials = api_state.auth.take_credentials(&mut head.headers);
        let audit_id = audit_id(&head, api_state);
        let compression = api_state.gates.enabled(serving::gates::Gate::ApiResponseCompression);
        let response_options = ResponseOptions::new(&head.headers, &query, compression);
        let time_limit = TimeLimit::for_request(started, &query, &info, http_state.settings.request_timeout);
        let deadline = RequestDeadline::new(&*api_state.clock, &time_limit);
        let kinds = api_state.kinds.get();
        let resource = if remote.is_none() { resource_of(&kinds, &info) } else { None };
        let context = Arc::new(RequestContext {
            response_options,
            time_limit,
            info,
            remote,
            resource,
            kinds,
            http_state: Arc::clone(http_state),
            head,
            header_credentials,
            query,
            connection: Arc::clone(&connection),
            id: audit_id.to_str().unwrap_or_default().to_owned(),
            audit: AuditRecord::default(),
            pool: Arc::clone(self.executor.pool()),
            user: OnceLock::new(),
            share: OnceLock::new(),
            flow_schema: OnceLock::new(),
            list_scope: OnceLock::new(),
            reserved: Mutex::default(),
            forwarded: Mutex::default(),
            unread_body: Mutex::default(),
        });
        if let Some(received) = received {
            context.begin_audit(received);
        }
        let span = context.span();
        let mut response = match rejection {
            Some(status) => context.status_response(status),
            None => {
                let time = if context.info.is_unlimited() { Duration::MAX } else { deadline.remaining() };
                self.run_to_end(&context, body, time, &span).await
            }
        };

        if let Some(schema) = context.flow_schema.get() {
            add_flow_headers(&mut response, &http_state.flow_headers, schema);
        }
        let latency = deadline.elapsed();
        span.in_scope(|| {
            tracing::debug!(code = response.code(), latency_ms = latency.as_millis(), "request")
        });
        let (info, head) = (&context.info, &context.head);
        let resource = context.resource.as_deref();
        let code = response.code();
        let is_terminated = is_terminated(info, code, latency, http_state.settings.request_timeout);
        let is_stream = response.is_stream();
        let mut stream_audit = None;
        if is_stream {
            stream_audit = context.begin_stream_audit(code).await;
        } else {
            context.complete_audit(response.code(), response.status.as_deref()).await;
        }
        let send = |chunks| {
            let count_abort = http_state.request_metrics.abort_counter(info, &context.query, head, resource);
            let id = context.id.clone();
            // HTTP/2 resets the stream instead of cutting the connection.
            let cut = (head.version < Version::HTTP_2).then(|| connection.cut.clone());
            deadline::body(chunks, &deadline, self.chunk_producer(&context), move |reason| {
                tracing::debug!(request_id = id, reason, "response not sent completely; aborting the rest");
                count_abort();
                if let Some(cut) = cut {
                    cut.now();
                }
            })
        };
        let is_head = head.method == Method::HEAD;
        let response =
            response.into_response(&Delivery { audit_id: &audit_id, is_head, response_options, send: &send });
        let response_bytes = if is_stream { Some(0) } else { known_size(&response) };
        let outcome = RequestOutcome { code, latency, response_bytes, is_terminated };
        let size_histogram = http_state.request_metrics.count(info, &context.query, head, resource, outcome);
        let response = match size_histogram {
            Some(sizes) => response.map(|body| observe_size(body, sizes)),
            None => response,
        };
        if !is_stream && !chunk_producer::is_counted(response.body()) {
            return response;
        }
        let producer = self.chunk_producer(&context);
        let response = match stream_audit {
            Some(audit) => response.map(|body| audit.follow(body)),
            None => response,
        };
        response.map(|body| if is_stream { producer.track_stream(body) } else { producer.track(body) })
    }

    /// Returns a producer of response chunks that counts against the share of the authenticated user.
    fn chunk_producer(&self, context: &RequestContext) -> ChunkProducer {
        let share = context.share.get().cloned().unwrap_or_else(|| self.shares.share_of(""));
        let unsent_bytes = Arc::clone(&context.connection.unsent_bytes);
        ChunkProducer::new(Arc::clone(&context.pool), context.flow(), share, unsent_bytes)
    }

    /// Parses a long query on the work pool. The requests of one client address share a queue there, because the
    /// user is not known yet.
    ///
    /// # Errors
    ///
    /// 429: the queue is full. 504: the request timeout elapsed. 503: the server is shutting down.
    async fn parse_on_pool(&self, head: &Parts, connection: &ConnectionInfo) -> Result<ParsedUri, Status> {
        let pool = self.executor.pool();
        let flow = address_flow(pool, connection);
        let (method, uri) = (head.method.clone(), head.uri.clone());
        let parsed = async {
            let slot = pool.take_slot(flow).await.map_err(execution::queue_full_status)?;
            let work = async move {
                let _slot = slot;
                ParsedUri::new(&method, &uri, Query::parse(uri.query()))
            };
            pool.run(flow, work).await.map_err(execution::shut_down_status)
        };
        let timeout = self.http_state.settings.request_timeout;
        tokio::time::timeout(timeout, parsed).await.unwrap_or_else(|_elapsed| Err(timeout_status()))
    }

    /// Runs the work of a request in its span, and returns the response in every case: 500 after a panic, 504 after a
    /// timeout.
    async fn run_to_end(
        &self,
        context: &Arc<RequestContext>,
        body: RequestBody,
        time: Duration,
        span: &Span,
    ) -> ApiResponse {
        // Boxed, so that the future of the handler stays small.
        let mut work = Box::pin(self.run(context, body));
        // Work that uses up the budget of the task does not delay its timeout.
        let mut timeout = pin!(coop::unconstrained(tokio::time::sleep(time)));
        let end = poll_fn(|task| {
            let _entered = span.enter();
            match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(task))) {
                Ok(Poll::Ready(result)) => Poll::Ready(result),
                Ok(Poll::Pending) => timeout.as_mut().poll(task).map(|()| Err(timeout_status())),
                Err(panic) => {
                    // The panic hook has logged the message and the location.
                    context.audit.update(|event| event.panic = Some(audited_request::panic_message(&*panic)));
                    tracing::error!(
                        path = context.head.uri.path(),
                        "request handler panicked; responding 500"
                    );
                    Poll::Ready(Err(Status::internal("the request handler failed")))
                }
            }
        });
        let result = end.await;
        span.in_scope(|| {
            drop(work);
            result.unwrap_or_else(|status| context.status_response(status))
        })
    }

    /// Handles a request up to its response.
    ///
    /// The futures of less frequent steps are boxed, so that the future of a small read stays small. Its memory
    /// is allocated and written once for each request.
    async fn run(&self, context: &Arc<RequestContext>, body: RequestBody) -> Result<ApiResponse, Status> {
        context.query.check()?;
        context.time_limit.check()?;
        head_limits::check_path(&context.head.uri)?;
        head_limits::check(context.head.version, &context.head.headers, &context.header_credentials)?;
        let credentials = Credentials {
            header_credentials: &context.header_credentials,
            certificate_chain: &context.connection.client_chain,
            chain_fingerprint: context.connection.client_fingerprint.as_ref(),
            impersonation_headers: context.requests_impersonation().then_some(&context.head.headers),
            path: context.head.uri.path(),
            request_id: &context.id,
        };
        if context.is_for_health_summary() && self.api_state().auth.connection().answers_health_alone() {
            return routes::handle(context).await;
        }
        let record_user = |identity: &Identity| {
            context.audit.update(|event| match identity.is_impersonated() {
                true => event.impersonated = Some(Arc::clone(identity.user())),
                false => event.user = Some(Arc::clone(identity.user())),
            });
        };
        let (auth, attributes) = (&self.api_state().auth, &context.info.attributes);
        let admitted = auth.admit(&credentials, attributes, record_user).await;
        let admitted = admitted.map_err(|rejection| self.authentication_failure(context, rejection));
        if !context.audit_receipt().await {
            return Ok(audited_request::rejection(context));
        }
        let mut admitted = admitted?;
        // A rejected impersonation has no user to classify.
        if !admitted.is_impersonation_rejected {
            self.http_state.flow.classify(context, admitted.user());
        }
        // Limits apply to the caller, not to the impersonated user.
        let caller = Arc::clone(admitted.caller.user());
        let share = || context.share.get_or_init(|| self.shares.share_of(&caller.name));
        let (is_allowed, has_body) = (admitted.decision.is_ok(), !body.is_empty());
        let mut received = ReceivedBody::EMPTY;
        if is_allowed && !context.is_for_health() {
            let share = share();
            context.check_unsent_responses(false)?;
            // The body arrives before the request takes its place, so that a slow client occupies none.
            let stopping = &self.api_state().stopping;
            if forwarded::streams_body(context) {
                *context.unread_body.lock() = Some(body);
            } else if context.remote.is_some() {
                let unread = match body.receive_first(share, stopping).await? {
                    FirstReceived::Whole(whole) => {
                        received = whole;
                        RequestBody::Whole(received.clone())
                    }
                    FirstReceived::Unfinished(unfinished) => unfinished,
                };
                *context.unread_body.lock() = Some(unread);
            } else {
                received = body.receive(share, stopping).await?;
            }
            if context.info.attributes.path.starts_with(openapi::PATH_PREFIX) {
                Box::pin(openapi::prepare(context)).await?;
            }
        }
        let place = if has_body && !is_allowed {
            // The body of a rejected request is not read, so the rejection needs no seat.
            Place::NONE
        } else {
            match self.executor.enter(context, admitted.user(), &received, is_allowed).await {
                Ok(place) => place,
                Err(rejection) => return Ok(*rejection),
            }
        };
        // A rejection is not decided again: its request has no body and no heavy place for an execution.
        if place.waited && is_allowed {
            if let Some(freshness) = &self.http_state.freshness {
                Box::pin(freshness.await_policy()).await?;
            }
            let again = Box::pin(place.hold(auth.admit_again(&credentials, attributes))).await;
            admitted = again.map_err(|rejection| self.authentication_failure(context, rejection))?;
        }
        let authorized = match self.decision(context, admitted).await {
            Ok(authorized) => authorized,
            Err(denial) => return Ok(*denial),
        };
        self.annotate_decision(context, "allow", authorized.reason());
        if context.is_for_health() {
            return execution::route(context, &authorized, &[]).await;
        }
        share();
        self.http_state.request_metrics.observe_body(
            &context.info,
            context.resource.as_deref(),
            received.len(),
        );
        self.executor.execute(context, authorized, received, place).await
    }

    /// Returns the authorized request, or the response to a denied one, with explanations.
    async fn decision(
        &self,
        context: &RequestContext,
        admitted: Admitted,
    ) -> Result<Authorized, Box<ApiResponse>> {
        let Admitted { caller, impersonated, decision, .. } = admitted;
        let rejection = match decision {
            Ok(authorized) => return Ok(authorized),
            Err(rejection) => rejection,
        };
        let user = impersonated.as_ref().unwrap_or(&caller);
        let warnings = Box::pin(self.explain_denial(context, &caller, user, &rejection)).await;
        Err(Box::new(context.status_response(*rejection.status).with_warnings(warnings)))
    }

    /// Records why the credentials were rejected, and returns the response.
    fn authentication_failure(&self, context: &RequestContext, rejection: Rejection) -> Status {
        context.audit.update(|event| {
            let domain = self.api_state().names.group("authentication");
            event.annotate(format!("{domain}/reason"), rejection.reason.as_ref());
        });
        with_client_audit_id(*rejection.status, &context.head)
    }

    /// Adds the rejection to the audit event, and returns explanations as warnings for the caller.
    ///
    /// authd explains a denial only for the audit log and for callers who may create SubjectAccessReviews.
    /// This permission is a cached decision. A cached denial does not wait for an authd that cannot be
    /// reached.
    async fn explain_denial(
        &self,
        context: &RequestContext,
        caller: &Identity,
        user: &Identity,
        rejection: &Rejection,
    ) -> Vec<String> {
        let auth = &self.api_state().auth;
        if !rejection.is_denial || auth.connection().unreachable().is_some() {
            self.annotate_decision(context, "forbid", &rejection.reason);
            return Vec::new();
        }
        // The same authorizers decide the permission: after an evaluation error the decision would wait for the
        // failing webhook a second time.
        let can_read_explanations = async {
            !rejection.has_evaluation_error && auth.can_read_explanations(caller.user(), &context.id).await
        };
        let misses = auth.nearest_misses(user.user(), &context.info.attributes, &context.id);
        let (can_read_explanations, misses) = if context.audit.is_on() {
            tokio::join!(can_read_explanations, misses)
        } else if can_read_explanations.await {
            (true, misses.await)
        } else {
            (false, Vec::new())
        };
        self.annotate_decision(context, "forbid", &explain_reason(&rejection.reason, &misses));
        if can_read_explanations { misses } else { Vec::new() }
    }

    /// Adds a decision and its reason to the audit event.
    fn annotate_decision(&self, context: &RequestContext, decision: &str, reason: &str) {
        let keys = &self.http_state.decision_keys;
        context.audit.update(|event| {
            event.annotate(keys.decision.clone(), decision);
            event.annotate(keys.reason.clone(), reason);
        });
    }
}

/// The query and the attributes of a request.
struct ParsedUri {
    query: Query,
    info: RequestInfo,
}

impl ParsedUri {
    /// Resolves the request info. `query` is empty if the request is rejected before the work pool parses its query.
    fn new(method: &Method, uri: &Uri, query: Query) -> Self {
        let info = RequestInfo::resolve(method, head_limits::path_within_limit(uri), &query);
        ParsedUri { query, info }
    }
}

fn timeout_status() -> Status {
    let text = "Timeout: request did not complete within the allotted timeout";
    Status::failure(Reason::Timeout, text)
}

/// Whether the server refused or ended a request to protect itself. A 429 to an eviction is a
/// decision of a disruption budget.
fn is_terminated(info: &RequestInfo, code: u16, latency: Duration, timeout: Duration) -> bool {
    match code {
        429 => info.attributes.subresource != "eviction",
        504 => latency >= timeout,
        _ => false,
    }
}

/// The size of a response body, if it is known before it is sent.
fn known_size(response: &Response<Body>) -> Option<u64> {
    if let Some(body) = response.body().as_whole() {
        return u64::try_from(body.len()).ok();
    }
    response.headers().get(http::header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Wraps a response body so that its size is recorded when the body ends or is dropped.
fn observe_size(body: Body, sizes: Histogram) -> Body {
    let mut sent = SentBytes { bytes: 0, sizes };
    Body::stream(body.map_frame(move |frame| {
        sent.add(frame.data_ref().map_or(0, |data| data.len() as u64));
        frame
    }))
}

/// Counts the bytes of a response body, and records the sum in `sizes` when it is dropped.
struct SentBytes {
    bytes: u64,
    sizes: Histogram,
}

impl SentBytes {
    fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
    }
}

impl Drop for SentBytes {
    fn drop(&mut self) {
        self.sizes.observe(self.bytes as f64);
    }
}

/// Returns the served resource of a request; None for other paths.
fn resource_of(kinds: &ServedKinds, info: &RequestInfo) -> Option<Arc<Kind>> {
    let attributes = &info.attributes;
    if !attributes.resource_request {
        return None;
    }
    kinds.registry.find(&attributes.group, &attributes.version, &attributes.resource).cloned()
}

/// Adds the headers that name the flow schema and the priority level of a request, as far as their objects exist.
fn add_flow_headers(response: &mut ApiResponse, headers: &[HeaderName; 2], schema: &Schema) {
    for (name, uid) in headers.iter().zip([schema.uid(), schema.level_uid()]) {
        if let Ok(value) = HeaderValue::from_str(uid)
            && !uid.is_empty()
        {
            response.add_header(name.clone(), value);
        }
    }
}

/// Adds the audit ID of the client to a 401 as `details.uid`.
///
/// Without an audit ID of the client, a 401 has the body of kube-apiserver; the new audit ID is only in the
/// header.
fn with_client_audit_id(status: Status, head: &Parts) -> Status {
    let audit_id = client_audit_id(head).filter(|_| status.code == 401).and_then(|id| id.to_str().ok());
    match audit_id {
        Some(id) => status.with_details(Details { uid: id.to_owned(), ..Details::default() }),
        None => status,
    }
}

/// Returns the audit ID of the client if it is valid.
fn client_audit_id(head: &Parts) -> Option<&HeaderValue> {
    let is_valid = |value: &&HeaderValue| {
        let bytes = value.as_bytes();
        (1..=64).contains(&bytes.len())
            && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
    };
    head.headers.get(AUDIT_ID).filter(is_valid)
}

/// Returns the audit ID of the client if it is valid, else a new one.
fn audit_id(head: &Parts, api_state: &ApiState) -> HeaderValue {
    match client_audit_id(head) {
        Some(value) => value.clone(),
        None => HeaderValue::from_str(&api_state.rng.uuid())
            .unwrap_or_else(|_| HeaderValue::from_static("unknown")),
    }
}

#[cfg(test)]
impl Api {
    /// The work pool.
    pub(super) fn pool(&self) -> &WorkPool {
        self.executor.pool()
    }
}
