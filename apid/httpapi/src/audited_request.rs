//! The audit events of a request: when they are written, and which objects they contain.
//!
//! # Contract
//!
//! [`RequestContext::audit_receipt`] evaluates the policy when the user is known. A request that fails before has its
//! policy evaluated at the end, without a user. A long-running request has an event when its response starts, and a
//! request without valid credentials has this event alone, as in kube-apiserver.
//!
//! # Invariants
//!
//! INVARIANT (cheap without bodies): objects are encoded for the audit log only if the policy asks for the bodies of the
//! request.
//! INVARIANT (no large events on I/O threads): the work pool encodes an event with large objects.

use std::any::Any;
use std::sync::Arc;

use apimachinery::codec::yaml;
use apimachinery::status::{Reason, Status};
use audit::{Event, LARGE_EVENT_BYTES, Level, MAX_OBJECT_BYTES, Outcome, Stage};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use serde_json::Value;
use serving::body::Body;
use verbs::patch::PatchType;
use verbs::{ListResult, UnreadableObjects};

use crate::negotiate::BodyFormat;
use crate::request_context::RequestContext;
use crate::response::chunked_document::BufferedChunks;
use crate::response::representation::Representation;
use crate::response::respond::ApiResponse;
use crate::state::HttpState;

/// Returns the message of a panic.
pub(super) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("unknown panic").to_owned()
}

/// Returns the response to a request whose first event cannot be written, as in kube-apiserver.
pub(super) fn rejection(context: &RequestContext) -> ApiResponse {
    let uri = context.head.uri.to_string();
    let uri = apimachinery::field::quote(&uri);
    ApiResponse::text(500, format!("Internal Server Error: {uri}: failed to store audit event\n"))
}

/// The last event of a stream, which is written when the guard is dropped.
pub(super) struct StreamAudit {
    http_state: Arc<HttpState>,
    event: Box<Event>,
    code: u16,
}

impl StreamAudit {
    /// Returns the body with the guard, which then ends with the body.
    pub(super) fn follow(self, body: Body) -> Body {
        Body::stream(body.map_frame(move |frame| {
            let _guard = &self;
            frame
        }))
    }
}

impl Drop for StreamAudit {
    fn drop(&mut self) {
        let outcome = Outcome { code: self.code, status: None };
        self.http_state.audit.write_now(&self.event, Stage::ResponseComplete, outcome);
        self.http_state.audited_streams.end();
    }
}

/// The last events of a request. Those that are not encoded when the value is dropped are written without waiting.
struct LastEvents {
    http_state: Arc<HttpState>,
    event: Box<Event>,
    /// The stages whose events are not encoded yet, in order.
    stages: [Option<Stage>; 2],
    code: u16,
    status: Option<Box<Status>>,
}

impl LastEvents {
    fn outcome(&self) -> Outcome<'_> {
        Outcome { code: self.code, status: self.status.as_deref() }
    }

    /// Encodes and sends the events, and waits as the modes of the backends require.
    async fn write(mut self) {
        for index in 0..self.stages.len() {
            let Some(stage) = self.stages.get(index).copied().flatten() else { continue };
            let _memory = self.http_state.audit.reserve(&self.event).await;
            let encoded = self.http_state.audit.encode(&self.event, stage, Some(self.outcome()));
            if let Some(written) = self.stages.get_mut(index) {
                *written = None;
            }
            if let Some(encoded) = encoded {
                self.http_state.audit.send(encoded).await;
            }
        }
    }
}

impl Drop for LastEvents {
    fn drop(&mut self) {
        for stage in std::mem::take(&mut self.stages).into_iter().flatten() {
            self.http_state.audit.write_now(&self.event, stage, self.outcome());
        }
    }
}

impl RequestContext {
    /// Evaluates the policy unless that has been done. Returns whether the request has events.
    fn decide_audit(&self, event: &mut Event) -> bool {
        if event.decision.is_none() {
            let decision = self.http_state.audit.evaluate(&self.info.attributes, event.user.as_deref());
            event.decision = Some(decision);
        }
        event.level() > Level::None
    }

    /// Evaluates the policy for the authenticated user, and writes the event of the stage RequestReceived. Returns false
    /// if the event cannot be written and the request must be rejected for this reason.
    pub(super) async fn audit_receipt(&self) -> bool {
        let receipt = {
            let mut record = self.audit.0.lock();
            let Some(event) = record.as_mut().filter(|event| event.user.is_some()) else { return true };
            if !self.decide_audit(event) {
                *record = None;
                return true;
            }
            self.http_state.audit.encode(event, Stage::RequestReceived, None)
        };
        let Some(receipt) = receipt else { return true };
        let is_written = self.http_state.audit.send(receipt).await;
        if !is_written {
            self.http_state.audit.count_rejected();
            drop(self.audit.take());
        }
        is_written
    }

    /// Writes the last events of a request with a response of this code and, for a failure, this Status.
    pub(super) async fn complete_audit(&self, code: u16, status: Option<&Status>) {
        let Some(mut event) = self.audit.take() else { return };
        if !self.decide_audit(&mut event) {
            return;
        }
        if let Some(message) = event.panic.take() {
            let status = Status::failure(Reason::InternalError, format!("APIServer panic'd: {message}"));
            return self
                .write_last_events(event, [Some(Stage::Panic), None], status.code, Some(&status))
                .await;
        }
        if event.level() == Level::RequestResponse
            && let Some(status) = status
        {
            event.set_response_object(Bytes::from(status.to_value().to_string()));
        }
        let has_no_credentials = code == 401 && event.user.is_none();
        let is_started = has_no_credentials || self.info.is_long_running();
        let stages = [
            is_started.then_some(Stage::ResponseStarted),
            (!has_no_credentials).then_some(Stage::ResponseComplete),
        ];
        self.write_last_events(event, stages, code, status).await;
    }

    /// Writes events of a request, on the work pool if its objects are large.
    async fn write_last_events(
        &self,
        event: Box<Event>,
        stages: [Option<Stage>; 2],
        code: u16,
        status: Option<&Status>,
    ) {
        let is_large = event.object_bytes() > LARGE_EVENT_BYTES;
        let http_state = Arc::clone(&self.http_state);
        let events = LastEvents { http_state, event, stages, code, status: status.cloned().map(Box::new) };
        if is_large {
            // The end of the pool and of the request drop the events, which are then written without waiting.
            let _ = self.pool.run(self.flow(), events.write()).await;
        } else {
            events.write().await;
        }
    }

    /// Writes the event of the start of a stream. The event of the end follows when the guard is dropped. Returns None if the
    /// request has no events, or the stream has its guard already.
    pub(super) async fn begin_stream_audit(&self, code: u16) -> Option<StreamAudit> {
        let mut event = self.audit.take().filter(|_| self.http_state.audit.is_on())?;
        if !self.decide_audit(&mut event) {
            return None;
        }
        self.http_state.audited_streams.begin();
        let audit = StreamAudit { http_state: Arc::clone(&self.http_state), event, code };
        let outcome = Outcome { code, status: None };
        self.http_state.audit.write(&audit.event, Stage::ResponseStarted, outcome).await;
        Some(audit)
    }

    /// Writes the last event of a request that the client has ended.
    pub(super) fn audit_disconnection(&self) {
        let Some(mut event) = self.audit.take() else { return };
        if self.decide_audit(&mut event) {
            let status = Status::failure(Reason::Timeout, "the client disconnected before the response");
            let is_large = event.object_bytes() > LARGE_EVENT_BYTES;
            let events = LastEvents {
                http_state: Arc::clone(&self.http_state),
                event,
                stages: [Some(Stage::ResponseComplete), None],
                code: status.code,
                status: Some(Box::new(status)),
            };
            // Without a runtime the process ends, and the drop of the events writes them.
            if is_large && let Ok(runtime) = tokio::runtime::Handle::try_current() {
                let (pool, flow) = (Arc::clone(&self.pool), self.flow());
                runtime.spawn(async move { pool.run(flow, events.write()).await });
            }
        }
    }

    /// Adds the object of the response to the event if the event contains it. `encode` returns JSON.
    pub(super) fn audit_response(&self, encode: impl FnOnce() -> Result<Vec<u8>, Status>) {
        if self.audit.level() < Level::RequestResponse {
            return;
        }
        // If the object cannot be encoded, the request fails for the same reason.
        if let Ok(json) = encode() {
            self.audit.update(|event| event.set_response_object(Bytes::from(json)));
        }
    }

    /// Adds a list to the event if the event contains the object of the response.
    pub(super) fn audit_list(&self, representation: &Representation, list: &ListResult) {
        if self.audit.level() < Level::RequestResponse {
            return;
        }
        let audited = ListResult {
            items: list.items.clone(),
            revision: list.revision,
            continue_token: list.continue_token.clone(),
            remaining: list.remaining,
            uncached_bytes: 0,
            lease: None,
            unreadable: UnreadableObjects::default(),
        };
        let encode = || {
            let mut chunks = BufferedChunks::new(representation.in_json().list(audited)?);
            chunks.prepare_up_to(MAX_OBJECT_BYTES)?;
            let size = chunks.known_size();
            Ok::<_, Status>(size.filter(|size| *size <= MAX_OBJECT_BYTES).map(|_| chunks.into_buffer()))
        };
        match encode() {
            Ok(Some(json)) => self.audit.update(|event| event.set_response_object(json)),
            Ok(None) => self.audit.update(Event::set_oversized),
            // The response fails for the same reason.
            Err(_) => {}
        }
    }

    /// Adds a patch to the event if the event contains the object of the request. A patch that cannot be read is
    /// omitted.
    pub(super) fn audit_patch(&self, patch: &[u8], kind: PatchType) {
        if self.audit.level() < Level::Request {
            return;
        }
        let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(patch).is_ok();
        let json = match kind {
            _ if is_json => Some(Bytes::copy_from_slice(patch)),
            PatchType::Apply => yaml::decode(patch, self.api_state().body_limits)
                .ok()
                .map(|decoded| Bytes::from(decoded.value.to_string())),
            PatchType::Json | PatchType::Merge | PatchType::Strategic => None,
        };
        if let Some(json) = json {
            self.audit.update(|event| event.set_patch(json));
        }
    }

    /// Adds the options in the body of a deletion to the event if the event contains the object of the request.
    ///
    /// The version is that of kube-apiserver, which writes the options in their internal form.
    pub(super) fn audit_delete_options(&self, body: &[u8], format: BodyFormat) {
        if body.is_empty() || self.audit.level() < Level::Request {
            return;
        }
        let limits = self.api_state().body_limits;
        let decoded = format.payload(body).parse(Some("meta/v1.DeleteOptions"), limits);
        if let Ok(Value::Object(mut fields)) = decoded.map(|decoded| decoded.value) {
            let version = format!("{}/__internal", self.api_state().names.meta_group());
            fields.insert("kind".to_owned(), "DeleteOptions".into());
            fields.insert("apiVersion".to_owned(), version.into());
            self.audit.update(|event| event.set_patch(Bytes::from(Value::Object(fields).to_string())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_message_is_that_of_the_panic() {
        assert_eq!(panic_message(&"text"), "text");
        assert_eq!(panic_message(&"text".to_owned()), "text");
        assert_eq!(panic_message(&5), "unknown panic");
    }
}
