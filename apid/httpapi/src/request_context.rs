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

use aggregation::RemoteApi;
use apimachinery::status::Status;
use apimachinery::user::UserInfo;
use flowcontrol::Schema;
use http::header;
use http::request::Parts;
use jiff::Timestamp;
use kinds::{Kind, Storage};
use parking_lot::Mutex;
use serving::body::Body;
use serving::server::ConnectionInfo;

use crate::body::RequestBody;
use crate::client_addresses;
use crate::deadline::TimeLimit;
use crate::head_limits;
use crate::in_flight::{self, too_many_requests};
use crate::list_scope::ListScope;
use crate::metrics::ActiveRequest;
use crate::negotiate::{self, EncodingSupport};
use crate::query::Query;
use crate::request_info::RequestInfo;
use crate::response::respond::{ApiResponse, ResponseOptions};
use crate::shares::{ForwardedRequest, MAX_FORWARDED_OF_USER, UnsentResponse, UserShare};
use crate::slow_writes::WritesKey;
use crate::state::HttpState;
use crate::work_pool::{Flow, WorkPool};
use audit::{Event, Level};
use authclient::HeaderCredentials;
use discovery::Documents;
use verbs::MemoryLimit;
use verbs::{ApiState, Collection, ServedKinds};

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
    /// The API version of the path, if another server serves it.
    pub(super) remote: Option<Arc<RemoteApi>>,
    /// The resource that the path names; None for non-resource paths, unknown resources, and those of other servers.
    pub(super) resource: Option<Arc<Kind>>,
    pub(super) connection: Arc<ConnectionInfo>,
    /// The time that the request may take.
    pub(super) time_limit: TimeLimit,
    /// The request ID in logs, audit events and calls to authd.
    pub(super) id: String,
    /// Encoding options of the response.
    pub(super) response_options: ResponseOptions,
    pub(super) audit: AuditRecord,
    /// The user for whom the request is decided; set after authentication.
    pub(super) user: OnceLock<Arc<UserInfo>>,
    /// The share of the authenticated user in the limits of the server; set for allowed requests.
    pub(super) share: OnceLock<Arc<UserShare>>,
    /// The flow schema of the request; empty for requests that flow control does not see.
    pub(super) flow_schema: OnceLock<Arc<Schema>>,
    /// See [`RequestContext::list_scope`].
    pub(super) list_scope: OnceLock<Option<ListScope>>,
    /// The bytes that the verb holds for the response.
    pub(super) reserved: Mutex<Option<UnsentResponse>>,
    /// The place of a request that another server answers, in the limit of its user.
    pub(super) forwarded: Mutex<Option<ForwardedRequest>>,
    /// The body of a request that another server answers.
    pub(super) unread_body: Mutex<Option<RequestBody>>,
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
        self.http_state.documents_of(Arc::clone(&self.kinds.registry))
    }

    /// Returns the encodings that requests and responses support.
    pub(super) fn encoding_support(&self) -> EncodingSupport<'_> {
        let cbor = self.api_state().gates.enabled(serving::gates::Gate::CborServingAndStorage);
        EncodingSupport { names: &self.api_state().names, cbor, protobuf: true }
    }

    /// Whether the request is for `/livez`, `/readyz` or `/healthz`.
    pub(super) fn is_for_health(&self) -> bool {
        self.info.is_for_health()
    }

    /// Whether the request is for the summary of `/livez` or `/readyz`.
    ///
    /// apid serves the summary also while authd is unreachable. Then it does not serve single checks, because
    /// a single check shows the reason of its failure.
    pub(super) fn is_for_health_summary(&self) -> bool {
        matches!(self.info.segments.as_slice(), [endpoint] if endpoint == "livez" || endpoint == "readyz")
    }

    /// Returns the flow of the request on the work pool: that of flow control, else the user, and before
    /// authentication the address of the client.
    pub(super) fn flow(&self) -> Flow {
        let Some(user) = self.user.get() else { return address_flow(&self.pool, &self.connection) };
        match self.flow_schema.get() {
            Some(schema) => self.pool.flow((schema.name(), schema.flow_of(user, &self.info.attributes))),
            None => self.pool.flow(("", &user.name)),
        }
    }

    /// Identifies the writes of the flow to the resource; None for other requests.
    pub(super) fn key_of_writes(&self) -> Option<WritesKey> {
        // The time of a long-running request says nothing about writes.
        let is_write = !in_flight::is_read(&self.info.attributes) && !self.info.is_long_running();
        let resource = self.resource.as_deref().filter(|_| is_write)?;
        Some(self.pool.flow((self.flow(), &resource.key_prefix)))
    }

    /// Returns the collection of a resource with stored objects.
    pub(super) fn stored_collection(&self) -> Option<&Arc<Collection>> {
        let resource = self.resource.as_ref()?;
        let is_stored = matches!(resource.storage, Storage::Stored | Storage::Shared(_));
        is_stored.then(|| self.kinds.collection(resource))?
    }

    /// Returns what a list, or the deletion of a collection, examines; None while the collection is not loaded.
    /// Computed at the first call.
    pub(super) fn list_scope(&self) -> Option<&ListScope> {
        let scope = || ListScope::new(&self.info.attributes, &self.query, self.stored_collection()?);
        self.list_scope.get_or_init(scope).as_ref()
    }

    /// Returns the response to a request that fails with a Status.
    pub(super) fn status_response(&self, status: Status) -> ApiResponse {
        ApiResponse::status(status, negotiate::error_format(&self.head.headers, self.encoding_support()))
    }

    /// Takes the body of a request that another server answers; empty if it has been taken.
    pub(super) fn take_body(&self) -> Body {
        self.unread_body.lock().take().map(RequestBody::into_stream).unwrap_or_default()
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

    /// Counts the request as one that another server answers, until the context or the response ends.
    ///
    /// # Errors
    ///
    /// 429: the user has too many such requests and streams.
    pub(super) fn begin_forwarded(&self) -> Result<(), Status> {
        let Some(share) = self.share.get() else { return Ok(()) };
        let too_many = || {
            too_many_requests(&format!(
                "the user has {MAX_FORWARDED_OF_USER} open requests and streams to nodes, pods, Services and aggregated APIs"
            ))
        };
        *self.forwarded.lock() = Some(share.begin_forwarded().ok_or_else(too_many)?);
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
        let headers = &self.head.headers;
        let uri = head_limits::audited_uri(&self.head.uri);
        let attributes = Arc::clone(&self.info.attributes);
        let mut event = Box::new(Event::new(self.id.clone(), received, uri, attributes));
        if let Some(agent) = headers.get(header::USER_AGENT) {
            event.set_user_agent(String::from_utf8_lossy(agent.as_bytes()));
        }
        event.sources = client_addresses::of_request(headers, self.connection.peer);
        *self.audit.0.lock() = Some(event);
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

/// Returns the flow of requests whose user is not known.
pub(super) fn address_flow(pool: &WorkPool, connection: &ConnectionInfo) -> Flow {
    pool.flow(connection.peer.map(|peer| peer.ip()))
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
        if self.audit.is_on() {
            self.audit_disconnection();
        }
    }
}

/// The audit event of a request; empty when audit logging is disabled and after the last audit line.
#[derive(Default)]
pub(super) struct AuditRecord(pub(super) Mutex<Option<Box<Event>>>);

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

    /// The level of the event; [`Level::None`] before the policy is evaluated.
    pub(super) fn level(&self) -> Level {
        self.0.lock().as_ref().map_or(Level::None, |event| event.level())
    }

    /// Removes the event: the caller writes its last audit line.
    pub(super) fn take(&self) -> Option<Box<Event>> {
        self.0.lock().take()
    }
}
