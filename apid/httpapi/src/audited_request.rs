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

use std::any::Any;
use std::sync::Arc;

use apimachinery::codec::yaml;
use apimachinery::status::{Reason, Status};
use audit::{Event, Level, MAX_OBJECT_BYTES, Outcome, Stage};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use serde_json::Value;
use serving::body::Body;
use verbs::patch::Kind;
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
    event: Event,
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
        let audit = &self.http_state.audit;
        if let Some(message) = event.panic.take() {
            let status = Status::failure(Reason::InternalError, format!("APIServer panic'd: {message}"));
            audit.write(&event, Stage::Panic, Outcome { code: status.code, status: Some(&status) }).await;
            return;
        }
        let outcome = Outcome { code, status };
        if event.level() == Level::RequestResponse
            && let Some(status) = outcome.status
        {
            event.set_response_object(Bytes::from(status.to_value().to_string()));
        }
        let has_no_credentials = outcome.code == 401 && event.user.is_none();
        let is_started = has_no_credentials || self.info.is_long_running();
        let started = is_started.then(|| audit.write(&event, Stage::ResponseStarted, outcome));
        let complete = (!has_no_credentials).then(|| audit.write(&event, Stage::ResponseComplete, outcome));
        // If the client disconnects meanwhile, the drop of the futures sends the remaining events.
        for sending in [started, complete].into_iter().flatten() {
            sending.await;
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
            let outcome = Outcome { code: status.code, status: Some(&status) };
            self.http_state.audit.write_now(&event, Stage::ResponseComplete, outcome);
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
    pub(super) fn audit_patch(&self, patch: &[u8], kind: Kind) {
        if self.audit.level() < Level::Request {
            return;
        }
        let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(patch).is_ok();
        let json = match kind {
            _ if is_json => Some(Bytes::copy_from_slice(patch)),
            Kind::Apply => yaml::decode(patch, self.api_state().body_limits)
                .ok()
                .map(|decoded| Bytes::from(decoded.value.to_string())),
            Kind::Json | Kind::Merge | Kind::Strategic => None,
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
