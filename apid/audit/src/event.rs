//! An audit event: what is known about a request so far.

use std::borrow::Cow;
use std::sync::Arc;

use admission::{ObjectReference, Recorder};
use apimachinery::attributes::Attributes;
use apimachinery::status::Status;
use apimachinery::user::UserInfo;
use bytes::Bytes;
use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::policy::Decision;
use crate::stage::Level;

/// Maximum size of an object in an event, in bytes. An event with a larger object is truncated.
pub const MAX_OBJECT_BYTES: usize = 16 << 20;

/// Maximum length of a user agent in bytes; a longer one is cut.
const MAX_USER_AGENT: usize = 1024;

/// The response of a request, or the part of it that is known at the stage.
#[derive(Clone, Copy, Debug)]
pub struct Outcome<'a> {
    /// The HTTP status code.
    pub code: u16,
    /// The body, if it is a Status.
    pub status: Option<&'a Status>,
}

/// The audit data of a request; the handlers fill it in.
#[derive(Clone, Debug)]
pub struct Event {
    /// The id of the request, which the response header `Audit-Id` contains.
    pub id: String,
    /// The time at which the head of the request arrived.
    pub received: Timestamp,
    /// Path and query of the request.
    pub uri: String,
    /// The `User-Agent` header.
    pub user_agent: String,
    /// The IP addresses of the client and of the proxies that forwarded the request.
    pub sources: Vec<String>,
    /// The request attributes. None when the request could not be parsed.
    pub attributes: Option<Arc<Attributes>>,
    /// The fields of the object reference that the attributes do not contain.
    pub object: ObjectReference,
    /// The authenticated user. None without authentication.
    pub user: Option<Arc<UserInfo>>,
    /// The impersonated user. None without impersonation.
    pub impersonated: Option<Arc<UserInfo>>,
    /// The audit annotations, such as `authorization.DOMAIN/decision`.
    pub annotations: Vec<(String, String)>,
    /// The panic message of the handler. None without a panic.
    pub panic: Option<String>,
    /// The decision of the policy. None before the policy is evaluated.
    pub decision: Option<Decision>,
    /// The object in the request, as JSON; None unless the level asks for it.
    pub(crate) request_object: Option<Bytes>,
    /// The object in the response, as JSON; None unless the level asks for it.
    pub(crate) response_object: Option<Bytes>,
    /// Whether an object exceeds [`MAX_OBJECT_BYTES`].
    pub(crate) has_oversized_object: bool,
}

impl Event {
    /// Creates the event of a request that was received at the time `received`.
    pub fn new(id: String, received: Timestamp, uri: String, attributes: Arc<Attributes>) -> Self {
        Event {
            id,
            received,
            uri,
            user_agent: String::new(),
            sources: Vec::new(),
            attributes: Some(attributes),
            object: ObjectReference::default(),
            user: None,
            impersonated: None,
            annotations: Vec::new(),
            panic: None,
            decision: None,
            request_object: None,
            response_object: None,
            has_oversized_object: false,
        }
    }

    /// Sets the user agent, cut to the length that kube-apiserver writes.
    pub fn set_user_agent(&mut self, agent: Cow<'_, str>) {
        let end = (0..=MAX_USER_AGENT).rev().find(|end| agent.is_char_boundary(*end)).unwrap_or_default();
        self.user_agent = match agent.get(..end) {
            Some(start) if agent.len() > MAX_USER_AGENT => format!("{start}...TRUNCATED"),
            _ => agent.into_owned(),
        };
    }

    /// The level of the policy; [`Level::None`] before the policy is evaluated.
    pub fn level(&self) -> Level {
        self.decision.map_or(Level::None, |decision| decision.level)
    }

    /// Size of the objects in bytes.
    pub fn object_bytes(&self) -> usize {
        let size = |object: &Option<Bytes>| object.as_ref().map_or(0, Bytes::len);
        size(&self.request_object) + size(&self.response_object)
    }

    /// Adds an annotation, unless the event already has an annotation with this key.
    pub fn annotate(&mut self, key: String, value: &str) {
        if self.annotations.iter().all(|(other, _)| *other != key) {
            self.annotations.push((key, value.to_owned()));
        }
    }

    /// Moves the annotations, the object reference and the object of the request, which admission and the verb have
    /// set, into the event.
    pub fn take_record(&mut self, recorder: &Recorder) {
        self.annotations.extend(recorder.take_annotations());
        self.object = recorder.take_reference();
        if let Some(object) = recorder.take_request_object() {
            self.set_request_object(object);
        }
    }

    /// Sets the object of the request, encoded as JSON, if the level asks for it.
    pub fn set_request_object(&mut self, json: Vec<u8>) {
        if self.level() >= Level::Request {
            let json = self.without_managed_fields(Bytes::from(json));
            self.request_object = self.bounded(json);
        }
    }

    /// Sets the patch of the request if the level asks for it. A patch that is not JSON is omitted.
    ///
    /// Managed fields in a patch stay, as in kube-apiserver.
    pub fn set_patch(&mut self, json: Bytes) {
        if self.level() >= Level::Request {
            self.request_object = self.bounded(json);
        }
    }

    /// Sets the object of the response, encoded as JSON, if the level asks for it.
    pub fn set_response_object(&mut self, json: Bytes) {
        if self.level() >= Level::RequestResponse {
            let json = self.without_managed_fields(json);
            self.response_object = self.bounded(json);
        }
    }

    /// Marks the event as truncated, because an object is too large to be encoded for it.
    pub fn set_oversized(&mut self) {
        self.has_oversized_object = true;
    }

    fn bounded(&mut self, json: Bytes) -> Option<Bytes> {
        self.has_oversized_object |= json.len() > MAX_OBJECT_BYTES;
        (json.len() <= MAX_OBJECT_BYTES).then_some(json)
    }

    fn without_managed_fields(&self, json: Bytes) -> Bytes {
        if !self.decision.is_some_and(|decision| decision.omit_managed_fields) {
            return json;
        }
        let Ok(Value::Object(mut object)) = serde_json::from_slice(&json) else { return json };
        remove_managed_fields(&mut object);
        // The items of a list, and the objects of a Table.
        for (list, part) in [("items", None), ("rows", Some("object"))] {
            for item in object.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
                let item = match part {
                    Some(part) => item.get_mut(part),
                    None => Some(item),
                };
                if let Some(item) = item.and_then(Value::as_object_mut) {
                    remove_managed_fields(item);
                }
            }
        }
        Bytes::from(Value::Object(object).to_string())
    }

    /// The request attributes of a request for a resource.
    pub(crate) fn resource_attributes(&self) -> Option<&Attributes> {
        self.attributes.as_deref().filter(|attributes| attributes.resource_request)
    }
}

fn remove_managed_fields(object: &mut Map<String, Value>) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
}
