//! An audit event and its JSON line.

use std::sync::Arc;

use admission::{ObjectReference, Recorder};
use apimachinery::attributes::Attributes;
use apimachinery::names::Names;
use apimachinery::printable;
use apimachinery::status::Status;
use apimachinery::time::micro_time;
use apimachinery::user::UserInfo;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

/// The stage of the request at which the event was generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The head of a long-running response has been sent.
    ResponseStarted,
    /// The response is complete.
    ResponseComplete,
}

impl Stage {
    fn as_str(self) -> &'static str {
        match self {
            Stage::ResponseStarted => "ResponseStarted",
            Stage::ResponseComplete => "ResponseComplete",
        }
    }
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
    /// The IP address of the client.
    pub source: String,
    /// The request attributes. None when the request could not be parsed.
    pub attributes: Option<Arc<Attributes>>,
    /// The fields of the object reference that the attributes do not contain.
    pub object: ObjectReference,
    /// The authenticated user. None without authentication.
    pub user: Option<UserInfo>,
    /// The impersonated user. None without impersonation.
    pub impersonated: Option<UserInfo>,
    /// The audit annotations, such as `authorization.DOMAIN/decision`.
    pub annotations: Vec<(String, String)>,
}

impl Event {
    /// Adds an annotation, unless the event already has an annotation with this key.
    pub fn annotate(&mut self, key: String, value: &str) {
        if self.annotations.iter().all(|(other, _)| *other != key) {
            self.annotations.push((key, value.to_owned()));
        }
    }

    /// Moves the annotations and the object reference, which admission and the verb have set, into the event.
    pub fn take_record(&mut self, recorder: &Recorder) {
        self.annotations.extend(recorder.take_annotations());
        self.object = recorder.take_reference();
    }

    /// Returns the JSON line of a stage that was reached at the time `at`. `failure` is the Status of a
    /// failed request.
    pub fn line(
        &self,
        names: &Names,
        stage: Stage,
        at: Timestamp,
        code: u16,
        failure: Option<&Status>,
    ) -> Vec<u8> {
        let attributes = self.attributes.as_ref();
        let resource_attributes = attributes.filter(|attributes| attributes.resource_request);
        let annotations: Map<String, Value> =
            self.annotations.iter().map(|(key, value)| (key.clone(), value.as_str().into())).collect();
        let event = object([
            ("kind", Some("Event".into())),
            ("apiVersion", Some(format!("{}/v1", names.group("audit")).into())),
            ("level", Some("Metadata".into())),
            ("auditID", Some(self.id.as_str().into())),
            ("stage", Some(stage.as_str().into())),
            ("requestURI", Some(self.uri.as_str().into())),
            ("verb", Some(attributes.map_or("", |attributes| attributes.verb.as_str()).into())),
            ("user", Some(self.user.as_ref().map_or_else(|| json!({}), UserInfo::to_value))),
            ("impersonatedUser", self.impersonated.as_ref().map(UserInfo::to_value)),
            ("sourceIPs", (!self.source.is_empty()).then(|| json!([self.source]))),
            ("userAgent", non_empty(&self.user_agent)),
            ("objectRef", resource_attributes.map(|attributes| object_ref(attributes, &self.object))),
            ("responseStatus", Some(response_status(code, failure))),
            ("requestReceivedTimestamp", Some(micro_time(self.received).into())),
            ("stageTimestamp", Some(micro_time(at).into())),
            ("annotations", (!annotations.is_empty()).then_some(Value::Object(annotations))),
        ]);
        let mut line = printable::escape_json(event.to_string()).into_bytes();
        line.push(b'\n');
        line
    }
}

/// Builds an object of the fields that have a value.
fn object<const N: usize>(fields: [(&str, Option<Value>); N]) -> Value {
    let present = fields.into_iter().filter_map(|(field, value)| Some((field.to_owned(), value?)));
    Value::Object(present.collect())
}

fn non_empty(text: &str) -> Option<Value> {
    (!text.is_empty()).then(|| text.into())
}

/// Builds the object reference. Without a name in the path, the reference has the name of the object.
fn object_ref(attributes: &Attributes, reference: &ObjectReference) -> Value {
    object([
        ("resource", non_empty(&attributes.resource)),
        ("namespace", non_empty(&attributes.namespace)),
        ("name", non_empty(&attributes.name).or_else(|| non_empty(&reference.name))),
        ("uid", non_empty(&reference.uid)),
        ("apiGroup", non_empty(&attributes.group)),
        ("apiVersion", non_empty(&attributes.version)),
        ("resourceVersion", non_empty(&reference.resource_version)),
        ("subresource", non_empty(&attributes.subresource)),
    ])
}

fn response_status(code: u16, failure: Option<&Status>) -> Value {
    object([
        ("metadata", Some(json!({}))),
        ("status", failure.map(|_| "Failure".into())),
        ("message", failure.map(|status| status.message.as_str().into())),
        ("reason", failure.and_then(|status| non_empty(status.reason.as_str()))),
        ("code", Some(code.into())),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use apimachinery::names::Preset;

    #[test]
    fn audit_line_contains_one_event() {
        let names = Names::new(Preset::Svc, "example.test").unwrap();
        let received: Timestamp = "2025-01-02T03:04:05.123456Z".parse().unwrap();
        let mut event = Event {
            id: "the-id".into(),
            received,
            uri: "/api/v1/namespaces/a/configmaps/x?pretty=1".into(),
            user_agent: "tool/1".into(),
            source: "127.0.0.1".into(),
            attributes: Some(Arc::new(Attributes {
                verb: "get".into(),
                resource_request: true,
                version: "v1".into(),
                resource: "configmaps".into(),
                namespace: "a".into(),
                name: "x".into(),
                ..Attributes::default()
            })),
            object: ObjectReference { name: "other".into(), uid: "u-1".into(), ..ObjectReference::default() },
            user: Some(UserInfo { name: "alice".into(), groups: vec!["team".into()], ..UserInfo::default() }),
            impersonated: Some(UserInfo { name: "bob".into(), ..UserInfo::default() }),
            annotations: Vec::new(),
        };
        event.annotate("authorization.example.test/decision".to_owned(), "forbid");
        event.annotate("authorization.example.test/decision".to_owned(), "allow");
        let hidden = "ja\u{202e}ne\u{1b}[2J\u{7f}\u{9b}\n";
        event.impersonated = Some(UserInfo { name: hidden.into(), ..UserInfo::default() });
        let line = event.line(&names, Stage::ResponseComplete, received, 401, Some(&Status::unauthorized()));
        assert_eq!(line.iter().filter(|b| **b == b'\n').count(), 1);
        let text = std::str::from_utf8(&line).unwrap().trim_end();
        assert!(!text.chars().any(printable::is_unprintable), "{text}");
        let value: Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(value["apiVersion"], "audit.example.test/v1");
        assert_eq!(
            value["objectRef"],
            json!({"resource": "configmaps", "namespace": "a", "name": "x", "uid": "u-1", "apiVersion": "v1"})
        );
        assert_eq!(value["user"], json!({"username": "alice", "groups": ["team"]}));
        assert_eq!(value["impersonatedUser"], json!({"username": hidden}));
        assert_eq!(value["responseStatus"]["reason"], "Unauthorized");
        assert_eq!(value["requestReceivedTimestamp"], "2025-01-02T03:04:05.123456Z");
        assert_eq!(value["annotations"]["authorization.example.test/decision"], "forbid");
    }
}
