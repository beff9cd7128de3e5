//! The request handler: authentication, authorization, routing and response in order.

use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};

use apimachinery::status::{Reason, Status};
use futures_util::FutureExt as _;
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, Version};
use hyper::body::Incoming;
use kinds::Resource;
use serving::body::Body;
use serving::server::{ConnectionInfo, Handler};
use tracing::Instrument as _;

use super::body::{ReceivedBody, RequestBody};
use super::deadline::{self, RequestDeadline};
use super::in_flight::{self, InFlight};
use super::negotiate::{self, BodySyntax};
use super::query::Query;
use super::request_context::{AuditRecord, RequestContext};
use super::request_info::RequestInfo;
use super::respond::{AUDIT_ID, ApiResponse, Delivery, ResponseOptions};
use super::response_chunks::{self, ChunkProducer};
use super::shares::{Shares, UserShare};
use super::work_pool::{PoolError, PoolLimits, WorkPool};
use super::{head_limits, openapi, openid, paths, request_cost, resources};
use crate::auth::{Authenticated, Authorized, Credentials};
use crate::server_state::{ServedKinds, ServerState};

/// Memory cost of preparing the first bytes of a small response, in bytes.
const PREPARE_COST: usize = 1 << 20;

/// A request whose work is too large for an I/O thread.
struct LargeRequest {
    context: Arc<RequestContext>,
    authorized: Authorized,
    caller: Authenticated,
    body: ReceivedBody,
    /// Estimated memory cost of the work, in bytes.
    bytes: usize,
}

/// Cheap preparation steps between two yields of an I/O thread: at most about one millisecond.
const CHEAP_STEPS: usize = 5;

/// The request handler of a server.
pub struct Api {
    server_state: Arc<ServerState>,
    in_flight: Arc<InFlight>,
    shares: Shares,
    pool: Arc<WorkPool>,
}

impl Handler for Api {
    async fn handle(&self, request: Request<Incoming>, connection: Arc<ConnectionInfo>) -> Response<Body> {
        let (head, body) = request.into_parts();
        self.handle_request(head, body.into(), &connection).await
    }
}

impl Api {
    /// Creates a handler without in-flight limits. Must be called within the serving runtime.
    ///
    /// # Errors
    ///
    /// The system cannot start a worker thread.
    pub fn new(server_state: Arc<ServerState>) -> io::Result<Self> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let pool = Arc::new(WorkPool::start(threads, PoolLimits::SERVER)?);
        Ok(Api { server_state, in_flight: Arc::new(InFlight::new((0, 0))), shares: Shares::new(), pool })
    }

    /// Sets the in-flight limits for reads and writes; 0 means no limit.
    #[must_use]
    pub fn with_limits(self, reading: usize, writing: usize) -> Self {
        Api { in_flight: Arc::new(InFlight::new((reading, writing))), ..self }
    }

    /// Handles one request and returns its response.
    pub async fn handle_request(
        &self,
        mut head: Parts,
        body: RequestBody,
        connection: &Arc<ConnectionInfo>,
    ) -> Response<Body> {
        let server_state = &self.server_state;
        let header_credentials = server_state.auth.take_credentials(&mut head.headers, &server_state.names);
        let time = RequestDeadline::begin(&*server_state.clock, server_state.request_timeout);
        let audit_id = audit_id(&head, server_state);
        let query = Query::parse(head.uri.query());
        let compression = server_state.gates.enabled(serving::gates::Gate::ApiResponseCompression);
        let response_options = ResponseOptions::new(&head.headers, &query, compression);
        let info = RequestInfo::resolve(&head.method, head_limits::path_within_limit(&head.uri), &query);
        let kinds = server_state.kinds();
        let resource = resource_of(&kinds, &info);
        let context = Arc::new(RequestContext {
            response_options,
            info,
            resource,
            kinds,
            server_state: Arc::clone(server_state),
            head,
            header_credentials,
            query,
            connection: Arc::clone(connection),
            id: audit_id.to_str().unwrap_or_default().to_owned(),
            audit: AuditRecord::new(Arc::clone(server_state)),
            share: OnceLock::new(),
        });
        context.begin_audit();
        let span = context.span();
        let mut response = self.run_with_timeout(&context, body).instrument(span.clone()).await;

        let latency = time.elapsed();
        span.in_scope(|| {
            tracing::debug!(code = response.code(), latency_ms = latency.as_millis(), "request")
        });
        let (info, head) = (&context.info, &context.head);
        let resource = context.resource.as_deref();
        server_state.request_metrics.count(info, &context.query, resource, response.code(), latency);
        let is_stream = response.is_stream();
        if is_stream {
            context.audit.discard();
        } else {
            let failure = response.failure.take();
            context.audit.complete(response.code(), failure.as_deref()).await;
        }
        let send = |chunks| {
            let aborts = server_state.request_metrics.aborts(info, resource);
            let id = context.id.clone();
            // HTTP/2 resets the stream instead of cutting the connection.
            let cut = (head.version < Version::HTTP_2).then(|| connection.cut.clone());
            deadline::body(chunks, &time, self.chunk_producer(&context), move || {
                tracing::debug!(request_id = id, "response deadline exceeded; aborting the unsent response");
                aborts();
                if let Some(cut) = cut {
                    cut.now();
                }
            })
        };
        let is_head = head.method == Method::HEAD;
        let response = response.into_response(&Delivery {
            audit_id: &audit_id,
            head: is_head,
            response_options,
            send: &send,
        });
        if !is_stream && !response_chunks::is_counted(response.body()) {
            return response;
        }
        let producer = self.chunk_producer(&context);
        response.map(|body| if is_stream { producer.track_stream(body) } else { producer.track(body) })
    }

    /// Returns a producer that makes response chunks in the name of the authenticated user.
    fn chunk_producer(&self, context: &RequestContext) -> ChunkProducer {
        let share = context.share.get().cloned().unwrap_or_else(|| self.shares.of(""));
        ChunkProducer::new(Arc::clone(&self.pool), share, Arc::clone(&context.connection.unsent_bytes))
    }

    /// Returns the response in every case: a panic gives 500, a timeout gives 504.
    async fn run_with_timeout(&self, context: &Arc<RequestContext>, body: RequestBody) -> ApiResponse {
        // Boxed, so that the combinators below move a pointer and not the large future of a verb.
        let work = AssertUnwindSafe(Box::pin(self.run(context, body))).catch_unwind();
        let result = match tokio::time::timeout(self.server_state.request_timeout, work).await {
            Ok(Ok(result)) => result,
            Ok(Err(_panic)) => {
                // The panic hook has logged the message and the location.
                tracing::error!(path = context.head.uri.path(), "request handler panicked; responding 500");
                Err(Status::internal("the request handler failed"))
            }
            Err(_elapsed) => {
                let text = "Timeout: request did not complete within the allotted timeout";
                Err(Status::failure(Reason::Timeout, text))
            }
        };
        result.unwrap_or_else(|status| {
            ApiResponse::status(
                status,
                negotiate::error_format(&context.head.headers, context.encoding_support()),
            )
        })
    }

    async fn run(&self, context: &Arc<RequestContext>, body: RequestBody) -> Result<ApiResponse, Status> {
        context.query.check()?;
        head_limits::check_path(&context.head.uri)?;
        head_limits::check(context.head.version, &context.head.headers, &context.header_credentials)?;
        let credentials = Credentials {
            header_credentials: &context.header_credentials,
            certificate_chain: &context.connection.client_chain,
            chain_fingerprint: context.connection.client_fingerprint.as_ref(),
            path: context.head.uri.path(),
            request_id: &context.id,
        };
        if context.is_for_health_summary() && self.server_state.auth.unreachable().is_some() {
            return paths::handle(context);
        }
        // Impersonation is authorized first, for the authenticated user, so the request itself is not
        // pre-authorized.
        let wanted = (!context.impersonates()).then_some(&context.info.attributes);
        let caller = self.server_state.auth.authenticate_for(&credentials, wanted).await?;
        context.audit.update(|event| event.user = Some((**caller.user()).clone()));
        let other = self
            .server_state
            .auth
            .impersonate(&caller, &context.head.headers, &self.server_state.names, &context.id)
            .await?;
        if let Some(other) = &other {
            context.audit.update(|event| event.impersonated = Some((**other.user()).clone()));
        }
        let authorized = self.authorize(context, other.as_ref().unwrap_or(&caller)).await?;
        if context.is_for_health() {
            return route(context, &authorized, &[]).await;
        }
        // The share belongs to the authenticated user, so that impersonation gives no second share.
        let share = context.share.get_or_init(|| self.shares.of(&caller.user().name));
        context.check_unsent_responses(false)?;
        let body = body.receive(share).await?;
        let syntax = BodySyntax::of(&context.head.headers);
        match request_cost::expected_cost(context, &body, syntax) {
            None => {
                let groups = &caller.user().groups;
                let _permit = self.in_flight.enter(&context.info.attributes, groups, share)?;
                let response = route(context, &authorized, &body).await?;
                self.prepare(response, context.response_options, &share.user).await
            }
            Some(bytes) => {
                let work = LargeRequest { context: Arc::clone(context), authorized, caller, body, bytes };
                Box::pin(self.run_on_pool(work, share)).await
            }
        }
    }

    /// Handles a large request on the work pool. Its future is too large to be part of [`Api::run`].
    async fn run_on_pool(&self, work: LargeRequest, share: &Arc<UserShare>) -> Result<ApiResponse, Status> {
        let LargeRequest { context, authorized, caller, body, bytes } = work;
        let (in_flight, of) = (Arc::clone(&self.in_flight), Arc::clone(share));
        let work = async move {
            // A request that waits for a worker takes no in-flight permit.
            let _permit = in_flight.enter(&context.info.attributes, &caller.user().groups, &of)?;
            // Checked again, because responses to requests ahead of this one in the queue may have become
            // unsent.
            context.check_unsent_responses(true)?;
            let mut response = route(&context, &authorized, &body).await?;
            while response.prepare(context.response_options) {}
            Ok(response)
        };
        let done = self.pool.run(&share.user, bytes, work.in_current_span()).await;
        done.unwrap_or_else(|rejected| Err(reject(rejected)))
    }

    /// Does the work that precedes the response head, on the pool when it is costly.
    async fn prepare(
        &self,
        mut response: ApiResponse,
        response_options: ResponseOptions,
        user: &Arc<str>,
    ) -> Result<ApiResponse, Status> {
        let mut steps = 0;
        while !response.is_costly() {
            if !response.prepare(response_options) {
                return Ok(response);
            }
            steps += 1;
            if steps % CHEAP_STEPS == 0 {
                tokio::task::yield_now().await;
            }
        }
        let work = async move {
            while response.prepare(response_options) {}
            response
        };
        let work = Box::pin(work.in_current_span());
        self.pool.run_queued(user, PREPARE_COST, work).await.map_err(Status::internal)
    }

    async fn authorize(&self, context: &RequestContext, user: &Authenticated) -> Result<Authorized, Status> {
        let attributes = Arc::clone(&context.info.attributes);
        let authorized = self.server_state.auth.authorize(user, attributes, &context.id).await;
        context.audit.update(|event| {
            let (decision, reason) = match &authorized {
                Ok(authorized) => ("allow", authorized.reason()),
                Err(refusal) => ("forbid", &*refusal.reason),
            };
            let domain = self.server_state.names.group("authorization");
            event.annotations.push((format!("{domain}/decision"), decision.to_owned()));
            event.annotations.push((format!("{domain}/reason"), reason.to_owned()));
        });
        authorized.map_err(|refusal| *refusal.status)
    }
}

/// Returns the kind of a resource request.
fn resource_of(kinds: &ServedKinds, info: &RequestInfo) -> Option<Arc<Resource>> {
    let a = &info.attributes;
    if !a.resource_request {
        return None;
    }
    kinds.registry.find(&a.group, &a.version, &a.resource).cloned()
}

fn reject(rejected: PoolError) -> Status {
    match rejected {
        PoolError::QueueFull(full) => in_flight::too_many_requests(&full.to_string()),
        PoolError::ShutDown(error) => Status::unavailable(error.to_string(), 1),
    }
}

async fn route(context: &RequestContext, by: &Authorized, body: &[u8]) -> Result<ApiResponse, Status> {
    if let Some(what) = context.info.malformed {
        return Err(Status::bad_request(format!("the request path is malformed: {what}")));
    }
    if context.info.attributes.resource_request {
        resources::handle(context, by, body).await
    } else if openapi::is_openapi_request(context) {
        openapi::handle(context).await
    } else if openid::is_openid_request(context) {
        openid::handle(context).await
    } else {
        paths::handle(context)
    }
}

/// Returns the audit ID of the client if it is valid, else a new one.
fn audit_id(head: &Parts, server_state: &ServerState) -> HeaderValue {
    let sent = head.headers.get(AUDIT_ID);
    let sound = |value: &&HeaderValue| {
        let bytes = value.as_bytes();
        (1..=64).contains(&bytes.len())
            && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
    };
    match sent.filter(sound) {
        Some(value) => value.clone(),
        None => HeaderValue::from_str(&server_state.rng.uuid())
            .unwrap_or_else(|_| HeaderValue::from_static("unknown")),
    }
}
