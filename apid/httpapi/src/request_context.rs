//! The context of a request during its handling.
//!
//! # Contract
//!
//! [`RequestContext`] owns all data of a request, so that its work can move to another thread. It writes the last
//! audit line of the request exactly once, also when the client disconnects before the response.
//!
//! The implementation of [`MemoryLimit`] counts as unsent the listed objects that the watch cache does not own. The
//! context releases the count after the response counts these bytes.

use std::sync::{Arc, OnceLock};

use apimachinery::status::{Reason, Status};
use flowcontrol::Schema;
use http::header;
use http::request::Parts;
use jiff::Timestamp;
use kinds::Resource;
use parking_lot::Mutex;
use serving::server::ConnectionInfo;

use crate::deadline::TimeLimit;
use crate::head_limits;
use crate::in_flight::{self, too_many_requests};
use crate::metrics::ActiveRequest;
use crate::negotiate::EncodingSupport;
use crate::query::Query;
use crate::request_info::RequestInfo;
use crate::response::respond::ResponseOptions;
use crate::shares::{UnsentResponse, UserShare};
use crate::state::HttpState;
use crate::work_pool::WorkPool;
use audit::{Event, Stage};
use authclient::HeaderCredentials;
use discovery::Documents;
use verbs::MemoryLimit;
use verbs::{ApiState, ServedKinds};

/// The health check endpoints.
pub(super) const HEALTH_ENDPOINTS: [&str; 3] = ["livez", "readyz", "healthz"];

/// A request with its attributes, connection, audit record and response options.
pub(super) struct RequestContext {
    /// The served kinds at the beginning of the request; later changes do not affect the request.
    pub(super) kinds: Arc<ServedKinds>,
    pub(super) http_state: Arc<HttpState>,
    pub(super) head: Parts,
    /// Credentials that the handler removed from the headers.
    pub(super) header_credentials: HeaderCredentials,
    pub(super) query: Query,
    pub(super) info: RequestInfo,
    /// The resource that the path names; None for non-resource paths and unknown resources.
    pub(super) resource: Option<Arc<Resource>>,
    pub(super) connection: Arc<ConnectionInfo>,
    /// The time that the request may take.
    pub(super) time_limit: TimeLimit,
    /// The request ID in logs, audit events and calls to authd.
    pub(super) id: String,
    /// Encoding options of the response.
    pub(super) response_options: ResponseOptions,
    pub(super) audit: AuditRecord,
    /// The share of the authenticated user in the limits of the server; set after authorization.
    pub(super) share: OnceLock<Arc<UserShare>>,
    /// The flow schema of the request; empty for requests that flow control does not see.
    pub(super) flow_schema: OnceLock<Arc<Schema>>,
    /// The bytes that the verb holds for the response.
    pub(super) reserved: Mutex<Option<UnsentResponse>>,
    /// The work pool, for work that outlives the handler.
    pub(super) pool: Arc<WorkPool>,
}

impl RequestContext {
    /// Returns the state that the verbs use.
    pub(super) fn api_state(&self) -> &ApiState {
        &self.http_state.api_state
    }

    /// Returns the documents of the served kinds.
    pub(super) fn documents(&self) -> Arc<Documents> {
        self.http_state.documents.of(&self.kinds.registry)
    }

    /// Returns the encodings that requests and responses support.
    pub(super) fn encoding_support(&self) -> EncodingSupport<'_> {
        let cbor = self.api_state().gates.enabled(serving::gates::Gate::CborServingAndStorage);
        EncodingSupport { names: &self.api_state().names, cbor, protobuf: true }
    }

    /// Whether the request is for `/livez`, `/readyz` or `/healthz`.
    pub(super) fn is_for_health(&self) -> bool {
        self.info.segments.first().is_some_and(|first| HEALTH_ENDPOINTS.contains(&first.as_str()))
    }

    /// Whether the request is for the summary of `/livez` or `/readyz`.
    ///
    /// apid serves the summary also while authd is unreachable. Then it does not serve single checks, because
    /// a single check shows the reason of its failure.
    pub(super) fn is_for_health_summary(&self) -> bool {
        matches!(self.info.segments.as_slice(), [endpoint] if endpoint == "livez" || endpoint == "readyz")
    }

    /// Whether a header requests impersonation.
    pub(super) fn requests_impersonation(&self) -> bool {
        self.head.headers.keys().any(|name| name.as_str().starts_with("impersonate-"))
    }

    /// Checks that the user, and for a large response the connection, may hold another unsent response.
    ///
    /// # Errors
    ///
    /// 429: the unsent bytes of earlier responses exceed the limit.
    pub(super) fn check_unsent_responses(&self, is_large: bool) -> Result<(), Status> {
        let connection = is_large.then_some(&*self.connection.unsent_bytes);
        let is_over_limit = |share: &Arc<UserShare>| share.exceeds_unsent_limit(connection);
        if self.share.get().is_some_and(is_over_limit) {
            return Err(too_many_requests("too many bytes of earlier responses are unread"));
        }
        Ok(())
    }

    /// Counts the request as in flight until the guard is dropped; None for a stream.
    pub(super) fn begin_in_flight(&self) -> Option<ActiveRequest> {
        let is_write = !in_flight::is_read(&self.info.attributes);
        let metrics = &self.http_state.request_metrics;
        (!self.info.is_long_running()).then(|| metrics.begin_in_flight(is_write))
    }

    /// Begins the audit event of a request that was received at this time.
    pub(super) fn begin_audit(&self, received: Timestamp) {
        self.http_state.audit.count_request();
        let headers = &self.head.headers;
        let agent = headers
            .get(header::USER_AGENT)
            .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        *self.audit.0.lock() = Some(Event {
            id: self.id.clone(),
            received,
            uri: head_limits::audited_uri(&self.head.uri),
            user_agent: agent.unwrap_or_default(),
            source: self.connection.peer.map(|peer| peer.ip().to_string()).unwrap_or_default(),
            attributes: Some(Arc::clone(&self.info.attributes)),
            object: admission::ObjectReference::default(),
            user: None,
            impersonated: None,
            annotations: Vec::new(),
        });
    }

    /// Writes the ResponseComplete line of the audit event.
    pub(super) async fn complete_audit(&self, code: u16, failure: Option<&Status>) {
        if let Some(event) = self.audit.take() {
            self.http_state.audit.write(self.response_complete(&event, code, failure)).await;
        }
    }

    fn response_complete(&self, event: &Event, code: u16, failure: Option<&Status>) -> Vec<u8> {
        let state = self.api_state();
        event.line(&state.names, Stage::ResponseComplete, state.clock.now(), code, failure)
    }

    /// Returns the tracing span for the log lines of the request.
    pub(super) fn span(&self) -> tracing::Span {
        let attributes = &self.info.attributes;
        tracing::debug_span!(
            "request",
            request_id = self.id,
            verb = attributes.verb,
            group = attributes.group,
            version = attributes.version,
            resource = attributes.resource,
            subresource = attributes.subresource,
            namespace = attributes.namespace,
            name = attributes.name,
        )
    }
}

impl MemoryLimit for RequestContext {
    fn reserve(&self, bytes: usize) -> Result<(), Status> {
        let Some(share) = self.share.get() else { return Ok(()) };
        let mut reserved = self.reserved.lock();
        let counters = || share.on_connection(Arc::clone(&self.connection.unsent_bytes));
        reserved.get_or_insert_with(|| counters().hold(0)).grow(bytes);
        drop(reserved);
        self.check_unsent_responses(false)
    }
}

/// A request that is dropped before its response is audited too, because its write may have been committed.
impl Drop for RequestContext {
    fn drop(&mut self) {
        if let Some(event) = self.audit.take() {
            let status = Status::failure(Reason::Timeout, "the client disconnected before the response");
            self.http_state.audit.write_now(self.response_complete(&event, status.code, Some(&status)));
        }
    }
}

/// The audit event of a request; empty when audit logging is disabled and after the last audit line.
#[derive(Default)]
pub(super) struct AuditRecord(Mutex<Option<Event>>);

impl AuditRecord {
    /// Whether the request is audited.
    pub(super) fn is_on(&self) -> bool {
        self.0.lock().is_some()
    }

    /// Changes the event if audit logging is enabled.
    pub(super) fn update(&self, change: impl FnOnce(&mut Event)) {
        if let Some(event) = self.0.lock().as_mut() {
            change(event);
        }
    }

    /// Returns a copy of the event for the audit lines of a stream.
    pub(super) fn event(&self) -> Option<Event> {
        self.0.lock().clone()
    }

    /// Removes the event: the caller writes its last audit line.
    pub(super) fn take(&self) -> Option<Event> {
        self.0.lock().take()
    }
}
