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
use super::deadline::{self, Allotted};
use super::exchange::{AuditRecord, Exchange};
use super::in_flight::{self, InFlight};
use super::negotiate::{self, BodySyntax};
use super::pieces::{self, PieceMaker};
use super::query::Query;
use super::request_info::RequestInfo;
use super::respond::{AUDIT_ID, Answer, Delivery, Wishes};
use super::shares::{Shares, UserShare};
use super::work_pool::{Bounds, Rejected, WorkPool};
use super::{head_bounds, openapi, openid, paths, resources, weight};
use crate::auth::{Authenticated, Authorized, Credentials};
use crate::plane::Plane;

/// Memory cost of preparing the first bytes of a small response, in bytes.
const PREPARE_COST: usize = 1 << 20;

/// A request whose work is too large for an I/O thread.
struct Costly {
    exchange: Arc<Exchange>,
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
    plane: Arc<Plane>,
    in_flight: Arc<InFlight>,
    shares: Shares,
    pool: Arc<WorkPool>,
}

impl Handler for Api {
    async fn handle(&self, request: Request<Incoming>, connection: Arc<ConnectionInfo>) -> Response<Body> {
        let (head, body) = request.into_parts();
        self.answer(head, body.into(), &connection).await
    }
}

impl Api {
    /// Creates a handler without in-flight limits. Must be called within the serving runtime.
    ///
    /// # Errors
    ///
    /// The system cannot start a worker thread.
    pub fn new(plane: Arc<Plane>) -> io::Result<Self> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let pool = Arc::new(WorkPool::start(threads, Bounds::SERVER)?);
        Ok(Api { plane, in_flight: Arc::new(InFlight::new((0, 0))), shares: Shares::new(), pool })
    }

    /// Sets the in-flight limits for reads and writes; 0 means no limit.
    #[must_use]
    pub fn with_limits(self, reading: usize, writing: usize) -> Self {
        Api { in_flight: Arc::new(InFlight::new((reading, writing))), ..self }
    }

    /// Handles one request and returns its response.
    pub async fn answer(
        &self,
        mut head: Parts,
        body: RequestBody,
        connection: &Arc<ConnectionInfo>,
    ) -> Response<Body> {
        let plane = &self.plane;
        let presented = plane.auth.take_credentials(&mut head.headers, &plane.names);
        let time = Allotted::begin(&*plane.clock, plane.request_timeout);
        let audit_id = audit_id(&head, plane);
        let query = Query::parse(head.uri.query());
        let compression = plane.gates.enabled(serving::gates::Gate::ApiResponseCompression);
        let wishes = Wishes::new(&head.headers, &query, compression);
        let info = RequestInfo::resolve(&head.method, head_bounds::bounded_path(&head.uri), &query);
        let resource = resource_of(plane, &info);
        let exchange = Arc::new(Exchange {
            wishes,
            info,
            resource,
            plane: Arc::clone(plane),
            head,
            presented,
            query,
            connection: Arc::clone(connection),
            id: audit_id.to_str().unwrap_or_default().to_owned(),
            audit: AuditRecord::new(Arc::clone(plane)),
            share: OnceLock::new(),
        });
        exchange.begin_audit();
        let span = exchange.span();
        let mut answer = self.guarded(&exchange, body).instrument(span.clone()).await;

        let latency = time.passed();
        span.in_scope(|| tracing::debug!(code = answer.code(), latency_ms = latency.as_millis(), "request"));
        let (info, head) = (&exchange.info, &exchange.head);
        let resource = exchange.resource.as_deref();
        plane.request_metrics.count(info, &exchange.query, resource, answer.code(), latency);
        let is_stream = answer.is_stream();
        if is_stream {
            exchange.audit.discard();
        } else {
            let failure = answer.failure.take();
            exchange.audit.complete(answer.code(), failure.as_deref()).await;
        }
        let send = |chunks| {
            let aborts = plane.request_metrics.aborts(info, resource);
            let id = exchange.id.clone();
            // HTTP/2 resets the stream instead of cutting the connection.
            let cut = (head.version < Version::HTTP_2).then(|| connection.cut.clone());
            deadline::body(chunks, &time, self.piece_maker(&exchange), move || {
                tracing::debug!(request_id = id, "response deadline exceeded; aborting the unsent response");
                aborts();
                if let Some(cut) = cut {
                    cut.now();
                }
            })
        };
        let is_head = head.method == Method::HEAD;
        let response =
            answer.into_response(&Delivery { audit_id: &audit_id, head: is_head, wishes, send: &send });
        response.map(|body| match is_stream {
            true => self.piece_maker(&exchange).track_stream(body),
            false if pieces::is_uncounted(&body) || body.as_whole().is_none() => body,
            false => self.piece_maker(&exchange).track(body),
        })
    }

    /// Returns a producer that makes response chunks in the name of the authenticated user.
    fn piece_maker(&self, exchange: &Exchange) -> PieceMaker {
        let share = exchange.share.get().cloned().unwrap_or_else(|| self.shares.of(""));
        PieceMaker::new(Arc::clone(&self.pool), share, Arc::clone(&exchange.connection.unsent_bytes))
    }

    /// Returns the response in every case: a panic gives 500, a timeout gives 504.
    async fn guarded(&self, exchange: &Arc<Exchange>, body: RequestBody) -> Answer {
        // Boxed, so that the combinators below move a pointer and not the large future of a verb.
        let work = AssertUnwindSafe(Box::pin(self.run(exchange, body))).catch_unwind();
        let result = match tokio::time::timeout(self.plane.request_timeout, work).await {
            Ok(Ok(result)) => result,
            Ok(Err(_panic)) => {
                // The panic hook has logged the message and the location.
                tracing::error!(path = exchange.head.uri.path(), "request handler panicked; responding 500");
                Err(Status::internal("the request handler failed"))
            }
            Err(_elapsed) => {
                let text = "Timeout: request did not complete within the allotted timeout";
                Err(Status::failure(Reason::Timeout, text))
            }
        };
        result.unwrap_or_else(|status| {
            Answer::status(status, negotiate::for_errors(&exchange.head.headers, exchange.dialect()))
        })
    }

    async fn run(&self, exchange: &Arc<Exchange>, body: RequestBody) -> Result<Answer, Status> {
        head_bounds::check_path(&exchange.head.uri)?;
        head_bounds::check(exchange.head.version, &exchange.head.headers, &exchange.presented)?;
        let credentials = Credentials {
            presented: &exchange.presented,
            certificate_chain: &exchange.connection.client_chain,
            chain_fingerprint: exchange.connection.client_fingerprint.as_ref(),
            path: exchange.head.uri.path(),
            request_id: &exchange.id,
        };
        if exchange.is_for_health_summary() && self.plane.auth.unreachable().is_some() {
            return paths::answer(exchange);
        }
        // Impersonation is authorized first, for the authenticated user, so the request itself is not
        // pre-authorized.
        let wanted = (!exchange.impersonates()).then_some(&exchange.info.attributes);
        let caller = self.plane.auth.authenticate_for(&credentials, wanted).await?;
        exchange.audit.update(|event| event.user = Some((**caller.user()).clone()));
        let other = self
            .plane
            .auth
            .impersonate(&caller, &exchange.head.headers, &self.plane.names, &exchange.id)
            .await?;
        if let Some(other) = &other {
            exchange.audit.update(|event| event.impersonated = Some((**other.user()).clone()));
        }
        let authorized = self.authorize(exchange, other.as_ref().unwrap_or(&caller)).await?;
        if exchange.is_for_health() {
            return route(exchange, &authorized, &[]).await;
        }
        // The share belongs to the authenticated user, so that impersonation gives no second share.
        let share = exchange.share.get_or_init(|| self.shares.of(&caller.user().name));
        exchange.check_unsent_answers(false)?;
        let body = body.receive(share).await?;
        let syntax = BodySyntax::of(&exchange.head.headers);
        match weight::expected_cost(exchange, &body, syntax) {
            None => {
                let groups = &caller.user().groups;
                let _place = self.in_flight.enter(&exchange.info.attributes, groups, share)?;
                let answer = route(exchange, &authorized, &body).await?;
                self.prepare(answer, exchange.wishes, &share.user).await
            }
            Some(bytes) => {
                let work = Costly { exchange: Arc::clone(exchange), authorized, caller, body, bytes };
                Box::pin(self.run_on_pool(work, share)).await
            }
        }
    }

    /// Handles a large request on the work pool. Its future is too large to be part of [`Api::run`].
    async fn run_on_pool(&self, work: Costly, share: &Arc<UserShare>) -> Result<Answer, Status> {
        let Costly { exchange, authorized, caller, body, bytes } = work;
        let (in_flight, of) = (Arc::clone(&self.in_flight), Arc::clone(share));
        let work = async move {
            // A request that waits for a worker takes no in-flight permit.
            let _place = in_flight.enter(&exchange.info.attributes, &caller.user().groups, &of)?;
            // Checked again, because responses to requests ahead of this one in the queue may have become
            // unsent.
            exchange.check_unsent_answers(true)?;
            let mut answer = route(&exchange, &authorized, &body).await?;
            while answer.prepare(exchange.wishes) {}
            Ok(answer)
        };
        let done = self.pool.run(&share.user, bytes, work.in_current_span()).await;
        done.unwrap_or_else(|rejected| Err(reject(rejected)))
    }

    /// Does the work that precedes the response head, on the pool when it is costly.
    async fn prepare(&self, mut answer: Answer, wishes: Wishes, user: &Arc<str>) -> Result<Answer, Status> {
        let mut steps = 0;
        while !answer.is_costly() {
            if !answer.prepare(wishes) {
                return Ok(answer);
            }
            steps += 1;
            if steps % CHEAP_STEPS == 0 {
                tokio::task::yield_now().await;
            }
        }
        let work = async move {
            while answer.prepare(wishes) {}
            answer
        };
        let work = Box::pin(work.in_current_span());
        self.pool.run_queued(user, PREPARE_COST, work).await.map_err(Status::internal)
    }

    async fn authorize(&self, exchange: &Exchange, user: &Authenticated) -> Result<Authorized, Status> {
        let attributes = Arc::clone(&exchange.info.attributes);
        let authorized = self.plane.auth.authorize(user, attributes, &exchange.id).await;
        exchange.audit.update(|event| {
            let (decision, reason) = match &authorized {
                Ok(authorized) => ("allow", authorized.reason()),
                Err(refusal) => ("forbid", &*refusal.reason),
            };
            let domain = self.plane.names.group("authorization");
            event.annotations.push((format!("{domain}/decision"), decision.to_owned()));
            event.annotations.push((format!("{domain}/reason"), reason.to_owned()));
        });
        authorized.map_err(|refusal| *refusal.status)
    }
}

/// Returns the kind of a resource request.
fn resource_of(plane: &Plane, info: &RequestInfo) -> Option<Arc<Resource>> {
    let a = &info.attributes;
    if !a.resource_request {
        return None;
    }
    plane.registry.find(&a.group, &a.version, &a.resource).cloned()
}

fn reject(rejected: Rejected) -> Status {
    match rejected {
        Rejected::QueueFull(full) => in_flight::too_many_requests(&full.to_string()),
        Rejected::ShutDown(error) => Status::unavailable(error.to_string(), 1),
    }
}

async fn route(exchange: &Exchange, by: &Authorized, body: &[u8]) -> Result<Answer, Status> {
    if let Some(what) = exchange.info.malformed {
        return Err(Status::bad_request(format!("the request path is malformed: {what}")));
    }
    if exchange.info.attributes.resource_request {
        resources::answer(exchange, by, body).await
    } else if openapi::is_asked(exchange) {
        openapi::answer(exchange).await
    } else if openid::is_asked(exchange) {
        openid::answer(exchange).await
    } else {
        paths::answer(exchange)
    }
}

/// Returns the audit ID of the client if it is valid, else a new one.
fn audit_id(head: &Parts, plane: &Plane) -> HeaderValue {
    let sent = head.headers.get(AUDIT_ID);
    let sound = |value: &&HeaderValue| {
        let bytes = value.as_bytes();
        (1..=64).contains(&bytes.len())
            && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
    };
    match sent.filter(sound) {
        Some(value) => value.clone(),
        None => HeaderValue::from_str(&plane.chance.uuid())
            .unwrap_or_else(|_| HeaderValue::from_static("unknown")),
    }
}
