//! The way of a request, top to bottom.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use apimachinery::status::{Reason, Status};
use futures_util::FutureExt as _;
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, Version, header};
use hyper::body::Incoming;
use serving::body::Body;
use serving::server::{ConnectionInfo, Handler};
use tracing::Instrument as _;

use super::body::RequestBody;
use super::deadline::{self, Allotted};
use super::in_flight::InFlight;
use super::negotiate::{self, Dialect};
use super::query::Query;
use super::request_info::RequestInfo;
use super::respond::{AUDIT_ID, Answer, Delivery};
use super::{openapi, openid, paths, resources};
use crate::audit::{Event, Stage};
use crate::auth::{Authorized, Credentials, Presented};
use crate::plane::Plane;

/// Answers the requests of a server.
pub struct Api {
    plane: Arc<Plane>,
    in_flight: InFlight,
}

/// A request on its way.
pub(super) struct Exchange<'a> {
    pub(super) plane: &'a Arc<Plane>,
    in_flight: &'a InFlight,
    pub(super) head: &'a Parts,
    /// What its headers held of credentials; they hold none any more.
    presented: &'a Presented,
    pub(super) query: &'a Query,
    pub(super) info: &'a RequestInfo,
    pub(super) connection: &'a ConnectionInfo,
    /// The id of the request in logs, audit and authd.
    pub(super) id: &'a str,
}

impl Handler for Api {
    async fn handle(&self, request: Request<Incoming>, connection: Arc<ConnectionInfo>) -> Response<Body> {
        let (head, body) = request.into_parts();
        self.answer(head, body.into(), &connection).await
    }
}

impl Api {
    /// Over the shared state of the process; with room for any number of requests.
    pub fn new(plane: Arc<Plane>) -> Self {
        Api { plane, in_flight: InFlight::new((0, 0)) }
    }

    /// With room for so many requests that read and so many that write at the same time; 0: no limit.
    #[must_use]
    pub fn with_limits(self, reading: usize, writing: usize) -> Self {
        Api { in_flight: InFlight::new((reading, writing)), ..self }
    }

    /// Answers one request.
    pub async fn answer(
        &self,
        mut head: Parts,
        body: RequestBody,
        connection: &ConnectionInfo,
    ) -> Response<Body> {
        let plane = &self.plane;
        let presented = plane.auth.take_credentials(&mut head.headers, &plane.names);
        let (head, presented) = (&head, &presented);
        let time = Allotted::begin(&*plane.clock, plane.request_timeout);
        let audit_id = audit_id(head, plane);
        let id = audit_id.to_str().unwrap_or_default();
        let query = Query::parse(head.uri.query());
        let info = RequestInfo::resolve(&head.method, head.uri.path(), &query);
        let in_flight = &self.in_flight;
        let exchange =
            Exchange { plane, in_flight, head, presented, query: &query, info: &info, connection, id };

        let mut record = Record { plane, event: plane.audit.is_on().then(|| exchange.audit_event()) };
        let span = exchange.span();
        let mut answer = exchange.guarded(body, &mut record.event).instrument(span.clone()).await;

        let latency = time.passed();
        span.in_scope(|| tracing::debug!(code = answer.code(), latency_ms = latency.as_millis(), "request"));
        let a = &info.attributes;
        let resource =
            if a.resource_request { plane.registry.find(&a.group, &a.version, &a.resource) } else { None };
        plane.request_metrics.count(&info, &query, resource.map(|r| &**r), answer.code(), latency);
        // A stream leaves its own lines, when it begins and when it ends.
        if let Some(event) = record.event.as_ref().filter(|_| !answer.is_stream()) {
            let failure = answer.failure.take();
            let now = plane.clock.now();
            let line =
                event.line(&plane.names, Stage::ResponseComplete, now, answer.code(), failure.as_deref());
            plane.audit.write(line).await;
        }
        record.event = None;
        let compression = plane.gates.enabled(serving::gates::Gate::ApiResponseCompression);
        let send = |chunks| {
            let aborts = plane.request_metrics.aborts(&info, resource.map(|r| &**r));
            let id = id.to_owned();
            // Others use a connection of HTTP/2.
            let cut = (head.version < Version::HTTP_2).then(|| connection.cut.clone());
            deadline::body(chunks, &time, move || {
                tracing::debug!(request_id = id, "a client did not take its answer in time");
                aborts();
                if let Some(cut) = cut {
                    cut.now();
                }
            })
        };
        answer.into_response(&Delivery::new(
            head.method == Method::HEAD,
            &head.headers,
            &query,
            compression,
            &audit_id,
            &send,
        ))
    }
}

/// The audit event of a request. One that nobody waits for any more leaves its line, too: what it wrote stays written.
struct Record<'a> {
    plane: &'a Plane,
    event: Option<Event>,
}

impl Drop for Record<'_> {
    fn drop(&mut self) {
        if let Some(event) = self.event.take() {
            let plane = self.plane;
            let gone = Status::failure(Reason::Timeout, "the client went away before the answer");
            let now = plane.clock.now();
            plane.audit.write_now(event.line(
                &plane.names,
                Stage::ResponseComplete,
                now,
                gone.code,
                Some(&gone),
            ));
        }
    }
}

impl Exchange<'_> {
    /// What answers and bodies can be written in.
    pub(super) fn dialect(&self) -> Dialect<'_> {
        let cbor = self.plane.gates.enabled(serving::gates::Gate::CborServingAndStorage);
        Dialect { names: &self.plane.names, cbor, protobuf: true }
    }

    /// The answer, whatever happens: a panic is a 500, a request that takes too long a 504.
    async fn guarded(&self, body: RequestBody, event: &mut Option<Event>) -> Answer {
        // In a box: what is done with it on the way moves a pointer, not all that the verbs keep.
        let work = AssertUnwindSafe(Box::pin(self.run(body, event))).catch_unwind();
        let result = match tokio::time::timeout(self.plane.request_timeout, work).await {
            Ok(Ok(result)) => result,
            Ok(Err(_panic)) => {
                // The hook has logged what and where.
                tracing::error!(path = self.head.uri.path(), "a handler panicked");
                Err(Status::internal("the request could not be handled"))
            }
            Err(_elapsed) => {
                let text = "Timeout: request did not complete within the allotted timeout";
                Err(Status::failure(Reason::Timeout, text))
            }
        };
        result.unwrap_or_else(|status| {
            Answer::status(status, negotiate::for_errors(&self.head.headers, self.dialect()))
        })
    }

    async fn run(&self, body: RequestBody, event: &mut Option<Event>) -> Result<Answer, Status> {
        let credentials = Credentials {
            presented: self.presented,
            certificate_chain: &self.connection.client_chain,
            chain_fingerprint: self.connection.client_fingerprint.as_ref(),
            path: self.head.uri.path(),
            request_id: self.id,
        };
        if self.asks_for_health() && self.plane.auth.unreachable().is_some() {
            return paths::answer(self);
        }
        // Who is to be somebody else is asked about by themselves first.
        let impersonates = self.head.headers.keys().any(|name| name.as_str().starts_with("impersonate-"));
        let wanted = (!impersonates).then_some(&self.info.attributes);
        let caller = self.plane.auth.authenticate_for(&credentials, wanted).await?;
        if let Some(event) = event {
            event.user = Some((**caller.user()).clone());
        }
        let _place = self.in_flight.enter(&self.info.attributes, &caller.user().groups)?;
        let other =
            self.plane.auth.impersonate(&caller, &self.head.headers, &self.plane.names, self.id).await?;
        if let (Some(event), Some(other)) = (event.as_mut(), &other) {
            event.impersonated = Some((**other.user()).clone());
        }
        let caller = other.unwrap_or(caller);

        let authorized = self.plane.auth.authorize(&caller, Arc::clone(&self.info.attributes), self.id).await;
        if let Some(event) = event {
            let (decision, reason) = match &authorized {
                Ok(authorized) => ("allow", authorized.reason()),
                Err(refusal) => ("forbid", &*refusal.reason),
            };
            let domain = self.plane.names.group("authorization");
            event.annotations.push((format!("{domain}/decision"), decision.to_owned()));
            event.annotations.push((format!("{domain}/reason"), reason.to_owned()));
        }
        let authorized = authorized.map_err(|refusal| *refusal.status)?;
        self.route(&authorized, body, event).await
    }

    async fn route(
        &self,
        by: &Authorized,
        body: RequestBody,
        event: &mut Option<Event>,
    ) -> Result<Answer, Status> {
        if let Some(what) = self.info.malformed {
            return Err(Status::bad_request(format!("the path of the request is not one: {what}")));
        }
        if self.info.attributes.resource_request {
            resources::answer(self, by, body, event).await
        } else if openapi::is_asked(self) {
            openapi::answer(self).await
        } else if openid::is_asked(self) {
            openid::answer(self).await
        } else {
            paths::answer(self)
        }
    }

    /// Whether the process lives, and whether it is ready, is told also while nobody can be identified because authd
    /// cannot be reached. Single checks, which tell reasons, are not.
    fn asks_for_health(&self) -> bool {
        matches!(self.info.segments.as_slice(), [endpoint] if endpoint == "livez" || endpoint == "readyz")
    }

    fn audit_event(&self) -> Event {
        let headers = &self.head.headers;
        let agent = headers
            .get(header::USER_AGENT)
            .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        Event {
            id: self.id.to_owned(),
            received: self.plane.clock.now(),
            uri: self.head.uri.path_and_query().map_or_else(String::new, ToString::to_string),
            user_agent: agent.unwrap_or_default(),
            source: self.connection.peer.map(|peer| peer.ip().to_string()).unwrap_or_default(),
            attributes: Some((*self.info.attributes).clone()),
            user: None,
            impersonated: None,
            annotations: Vec::new(),
        }
    }

    fn span(&self) -> tracing::Span {
        let a = &self.info.attributes;
        tracing::debug_span!(
            "request",
            request_id = self.id,
            verb = a.verb,
            group = a.group,
            version = a.version,
            resource = a.resource,
            subresource = a.subresource,
            namespace = a.namespace,
            name = a.name,
        )
    }
}

/// The client's id if it sent a sound one, else a new one.
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
