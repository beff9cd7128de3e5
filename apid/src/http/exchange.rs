//! A request on its way through the handler.
//!
//! # Contract
//!
//! An [`Exchange`] owns what is known of a request, so that work on it can move to another thread. [`AuditRecord`] writes
//! the audit line of the request exactly once, also when the client goes away before the answer.

use std::sync::{Arc, OnceLock};

use apimachinery::status::{Reason, Status};
use http::header;
use http::request::Parts;
use kinds::Resource;
use parking_lot::Mutex;
use serving::server::ConnectionInfo;

use super::in_flight::too_many_requests;
use super::negotiate::Dialect;
use super::query::Query;
use super::request_info::RequestInfo;
use super::respond::Wishes;
use super::shares::UserShare;
use crate::audit::{Event, Stage};
use crate::auth::Presented;
use crate::plane::Plane;

/// A request and what is known of it.
pub(super) struct Exchange {
    pub(super) plane: Arc<Plane>,
    pub(super) head: Parts,
    /// The credentials that were taken out of the headers.
    pub(super) presented: Presented,
    pub(super) query: Query,
    pub(super) info: RequestInfo,
    /// The kind that the path names; None for other paths and unknown kinds.
    pub(super) resource: Option<Arc<Resource>>,
    pub(super) connection: Arc<ConnectionInfo>,
    /// The id of the request in logs, audit and authd.
    pub(super) id: String,
    /// The form of the answer.
    pub(super) wishes: Wishes,
    pub(super) audit: AuditRecord,
    /// The share of the authenticated user, once the request is authorized.
    pub(super) share: OnceLock<Arc<UserShare>>,
}

impl Exchange {
    /// The encodings of answers and bodies.
    pub(super) fn dialect(&self) -> Dialect<'_> {
        let cbor = self.plane.gates.enabled(serving::gates::Gate::CborServingAndStorage);
        Dialect { names: &self.plane.names, cbor, protobuf: true }
    }

    /// Whether the request is for `/livez`, `/readyz` or `/healthz`.
    pub(super) fn is_for_health(&self) -> bool {
        self.info.segments.first().is_some_and(|first| super::paths::HEALTH.contains(&first.as_str()))
    }

    /// Whether the request is for the summary of `/livez` or `/readyz`. It is answered also while authd cannot be reached;
    /// single checks, which tell reasons, are not.
    pub(super) fn is_for_health_summary(&self) -> bool {
        matches!(self.info.segments.as_slice(), [endpoint] if endpoint == "livez" || endpoint == "readyz")
    }

    /// Whether a header asks for impersonation.
    pub(super) fn impersonates(&self) -> bool {
        self.head.headers.keys().any(|name| name.as_str().starts_with("impersonate-"))
    }

    /// Whether the user, and for a large answer the connection, may hold another answer.
    ///
    /// # Errors
    ///
    /// 429: too many bytes of earlier answers wait to be read.
    pub(super) fn check_unsent_answers(&self, is_large: bool) -> Result<(), Status> {
        let connection = is_large.then_some(&*self.connection.unsent_bytes);
        let held = |share: &Arc<UserShare>| share.has_too_many_unsent_answers(connection);
        if self.share.get().is_some_and(held) {
            return Err(too_many_requests("too many bytes of earlier answers wait to be read"));
        }
        Ok(())
    }

    /// Begins the audit event.
    pub(super) fn begin_audit(&self) {
        let headers = &self.head.headers;
        let agent = headers
            .get(header::USER_AGENT)
            .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        self.audit.begin(|| Event {
            id: self.id.clone(),
            received: self.plane.clock.now(),
            uri: self.head.uri.path_and_query().map_or_else(String::new, ToString::to_string),
            user_agent: agent.unwrap_or_default(),
            source: self.connection.peer.map(|peer| peer.ip().to_string()).unwrap_or_default(),
            attributes: Some((*self.info.attributes).clone()),
            object: admission::ObjectReference::default(),
            user: None,
            impersonated: None,
            annotations: Vec::new(),
        });
    }

    /// The span of the request's log lines.
    pub(super) fn span(&self) -> tracing::Span {
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

/// The audit event of a request. A request that is dropped before its answer leaves a line, too: its write stays.
pub(super) struct AuditRecord {
    plane: Arc<Plane>,
    event: Mutex<Option<Event>>,
}

impl AuditRecord {
    /// Empty until [`AuditRecord::begin`].
    pub(super) fn new(plane: Arc<Plane>) -> Self {
        AuditRecord { plane, event: Mutex::new(None) }
    }

    fn begin(&self, event: impl FnOnce() -> Event) {
        if self.plane.audit.is_on() {
            *self.event.lock() = Some(event());
        }
    }

    /// Changes the event, when there is an audit log.
    pub(super) fn update(&self, change: impl FnOnce(&mut Event)) {
        if let Some(event) = self.event.lock().as_mut() {
            change(event);
        }
    }

    /// A copy of the event, for the lines of a stream.
    pub(super) fn event(&self) -> Option<Event> {
        self.event.lock().clone()
    }

    /// Writes the line of the answer.
    pub(super) async fn complete(&self, code: u16, failure: Option<&Status>) {
        let event = self.event.lock().take();
        if let Some(event) = event {
            let plane = &self.plane;
            let line = event.line(&plane.names, Stage::ResponseComplete, plane.clock.now(), code, failure);
            plane.audit.write(line).await;
        }
    }

    /// Writes no line: the stream that answers the request writes its own.
    pub(super) fn discard(&self) {
        self.event.lock().take();
    }
}

impl Drop for AuditRecord {
    fn drop(&mut self) {
        if let Some(event) = self.event.get_mut().take() {
            let plane = &self.plane;
            let gone = Status::failure(Reason::Timeout, "the client went away before the answer");
            let now = plane.clock.now();
            let line = event.line(&plane.names, Stage::ResponseComplete, now, gone.code, Some(&gone));
            plane.audit.write_now(line);
        }
    }
}
