//! The context of a request on its way through the handler.
//!
//! # Contract
//!
//! [`RequestContext`] owns all data of a request, so that its work can move to another thread. [`AuditRecord`]
//! writes the audit line of the request exactly once, also when the client disconnects before the response.

use std::sync::{Arc, OnceLock};

use apimachinery::status::{Reason, Status};
use http::header;
use http::request::Parts;
use kinds::Resource;
use parking_lot::Mutex;
use serving::server::ConnectionInfo;

use super::in_flight::too_many_requests;
use super::negotiate::EncodingSupport;
use super::query::Query;
use super::request_info::RequestInfo;
use super::respond::ResponseOptions;
use super::shares::UserShare;
use crate::audit::{Event, Stage};
use crate::auth::HeaderCredentials;
use crate::server_state::{ServedKinds, ServerState};

/// A request with its attributes, connection, audit record and response options.
pub(super) struct RequestContext {
    /// The kinds that this request sees.
    pub(super) kinds: Arc<ServedKinds>,
    pub(super) server_state: Arc<ServerState>,
    pub(super) head: Parts,
    /// Credentials that the handler removed from the headers.
    pub(super) header_credentials: HeaderCredentials,
    pub(super) query: Query,
    pub(super) info: RequestInfo,
    /// The kind that the path names; None for non-resource paths and unknown kinds.
    pub(super) resource: Option<Arc<Resource>>,
    pub(super) connection: Arc<ConnectionInfo>,
    /// The request ID in logs, audit events and calls to authd.
    pub(super) id: String,
    /// Encoding options of the response.
    pub(super) response_options: ResponseOptions,
    pub(super) audit: AuditRecord,
    /// The share of the authenticated user; set after authorization.
    pub(super) share: OnceLock<Arc<UserShare>>,
}

impl RequestContext {
    /// Returns the encodings that requests and responses support.
    pub(super) fn encoding_support(&self) -> EncodingSupport<'_> {
        let cbor = self.server_state.gates.enabled(serving::gates::Gate::CborServingAndStorage);
        EncodingSupport { names: &self.server_state.names, cbor, protobuf: true }
    }

    /// Whether the request is for `/livez`, `/readyz` or `/healthz`.
    pub(super) fn is_for_health(&self) -> bool {
        self.info.segments.first().is_some_and(|first| super::paths::HEALTH.contains(&first.as_str()))
    }

    /// Whether the request is for the summary of `/livez` or `/readyz`.
    ///
    /// apid serves the summary also while authd is unreachable. It does not serve single checks then, because
    /// they show reasons.
    pub(super) fn is_for_health_summary(&self) -> bool {
        matches!(self.info.segments.as_slice(), [endpoint] if endpoint == "livez" || endpoint == "readyz")
    }

    /// Whether a header requests impersonation.
    pub(super) fn impersonates(&self) -> bool {
        self.head.headers.keys().any(|name| name.as_str().starts_with("impersonate-"))
    }

    /// Checks that the user, and for a large response the connection, may hold another unsent response.
    ///
    /// # Errors
    ///
    /// 429: the unsent bytes of earlier responses exceed the limit.
    pub(super) fn check_unsent_responses(&self, is_large: bool) -> Result<(), Status> {
        let connection = is_large.then_some(&*self.connection.unsent_bytes);
        let held = |share: &Arc<UserShare>| share.exceeds_unsent_limit(connection);
        if self.share.get().is_some_and(held) {
            return Err(too_many_requests("too many bytes of earlier responses are unread"));
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
            received: self.server_state.clock.now(),
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

    /// Returns the tracing span for the log lines of the request.
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

/// The audit event of a request.
///
/// A request that is dropped before its response is audited too, because its write may have been committed.
pub(super) struct AuditRecord {
    server_state: Arc<ServerState>,
    event: Mutex<Option<Event>>,
}

impl AuditRecord {
    /// Returns an empty record; [`AuditRecord::begin`] fills it.
    pub(super) fn new(server_state: Arc<ServerState>) -> Self {
        AuditRecord { server_state, event: Mutex::new(None) }
    }

    fn begin(&self, event: impl FnOnce() -> Event) {
        if self.server_state.audit.is_on() {
            *self.event.lock() = Some(event());
        }
    }

    /// Changes the event if audit logging is enabled.
    pub(super) fn update(&self, change: impl FnOnce(&mut Event)) {
        if let Some(event) = self.event.lock().as_mut() {
            change(event);
        }
    }

    /// Returns a copy of the event for the audit lines of a stream.
    pub(super) fn event(&self) -> Option<Event> {
        self.event.lock().clone()
    }

    /// Writes the ResponseComplete line.
    pub(super) async fn complete(&self, code: u16, failure: Option<&Status>) {
        let event = self.event.lock().take();
        if let Some(event) = event {
            let server_state = &self.server_state;
            let line = event.line(
                &server_state.names,
                Stage::ResponseComplete,
                server_state.clock.now(),
                code,
                failure,
            );
            server_state.audit.write(line).await;
        }
    }

    /// Discards the event: a stream writes its own audit lines.
    pub(super) fn discard(&self) {
        self.event.lock().take();
    }
}

impl Drop for AuditRecord {
    fn drop(&mut self) {
        if let Some(event) = self.event.get_mut().take() {
            let server_state = &self.server_state;
            let gone = Status::failure(Reason::Timeout, "the client disconnected before the response");
            let now = server_state.clock.now();
            let line = event.line(&server_state.names, Stage::ResponseComplete, now, gone.code, Some(&gone));
            server_state.audit.write_now(line);
        }
    }
}
