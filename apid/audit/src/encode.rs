//! The forms of an event: JSON of the log, an item of the webhook's list, and the legacy line.
//!
//! # Invariants
//!
//! INVARIANT (one line): an encoded event of the log is one line. Control and bidirectional characters in texts of
//! clients are escaped.

use std::fmt::Write as _;

use apimachinery::attributes::Attributes;
use apimachinery::field::quote;
use apimachinery::names::Names;
use apimachinery::printable::is_unprintable;
use apimachinery::status::Status;
use apimachinery::time::micro_time;
use apimachinery::user::UserInfo;
use jiff::Timestamp;
use jiff::tz::Offset;
use serde_json::Value;

use crate::event::{Event, Outcome};
use crate::stage::Stage;

/// Estimated size of an event without objects, in bytes.
const TYPICAL_BYTES: usize = 1024;

/// The names in encoded events.
#[derive(Clone, Debug, Default)]
pub(crate) struct EventNames {
    /// `audit.DOMAIN/v1`.
    pub(crate) api_version: String,
    /// The fields `kind` and `apiVersion` of an event, with a comma at the end.
    type_fields: String,
    /// Key of the annotation of a truncated event.
    truncated: String,
}

impl EventNames {
    pub(crate) fn new(names: &Names) -> Self {
        let group = names.group("audit");
        let api_version = format!("{group}/v1");
        let type_fields = format!(r#""kind":"Event","apiVersion":"{api_version}","#);
        EventNames { api_version, type_fields, truncated: format!("{group}/truncated") }
    }
}

/// An event at a stage, ready to be encoded.
#[derive(Clone, Copy)]
pub(crate) struct StageEvent<'a> {
    pub(crate) names: &'a EventNames,
    pub(crate) event: &'a Event,
    pub(crate) stage: Stage,
    /// The time of the stage.
    pub(crate) at: Timestamp,
    /// The response; None at [`Stage::RequestReceived`].
    pub(crate) outcome: Option<Outcome<'a>>,
    /// Whether the event omits its objects because it is too large.
    pub(crate) is_truncated: bool,
}

impl StageEvent<'_> {
    /// Returns the event as a line of JSON.
    pub(crate) fn json_line(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(TYPICAL_BYTES + self.object_bytes());
        out.push(b'{');
        out.extend_from_slice(self.names.type_fields.as_bytes());
        self.write_fields(&mut out);
        out.extend_from_slice(b"}\n");
        out
    }

    /// Returns the event as an item of an EventList, which has neither kind nor apiVersion.
    pub(crate) fn list_item(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(TYPICAL_BYTES + self.object_bytes());
        out.push(b'{');
        self.write_fields(&mut out);
        out.push(b'}');
        out
    }

    /// Returns the size by which an event is truncated: that of its line of JSON, in bytes.
    pub(crate) fn json_bytes_of_item(&self, item: &[u8]) -> usize {
        item.len() + self.names.type_fields.len() + 1
    }

    /// Returns the event as a line of the format `legacy`.
    pub(crate) fn legacy_line(&self) -> Vec<u8> {
        let event = self.event;
        let none = || "<none>".to_owned();
        let quoted_list = |list: &[String]| list.iter().map(|text| quote(text)).collect::<Vec<_>>().join(",");
        let user = event.user.as_ref().filter(|user| !user.name.is_empty());
        let groups = user.filter(|user| !user.groups.is_empty());
        let impersonated = self.impersonated();
        let impersonated_groups = impersonated.filter(|user| !user.groups.is_empty());
        let namespace = event.resource_attributes().map(|attributes| attributes.namespace.as_str());
        let code = self.outcome.map(|outcome| outcome.code.to_string());
        let fields = [
            ("id", event.id.clone()),
            ("stage", self.stage.as_str().to_owned()),
            ("ip", event.sources.first().cloned().unwrap_or_else(|| "<unknown>".to_owned())),
            ("method", event.attributes.as_ref().map_or_else(String::new, |found| found.verb.clone())),
            ("user", user.map_or_else(none, |user| user.name.clone())),
            ("groups", groups.map_or_else(none, |user| quoted_list(&user.groups))),
            ("as", impersonated.map_or_else(|| "<self>".to_owned(), |user| user.name.clone())),
            (
                "asgroups",
                impersonated_groups.map_or_else(|| "<lookup>".to_owned(), |user| quoted_list(&user.groups)),
            ),
            ("user-agent", event.user_agent.clone()),
            ("namespace", namespace.filter(|text| !text.is_empty()).map_or_else(none, str::to_owned)),
            ("uri", event.uri.clone()),
            ("response", code.unwrap_or_else(|| "<deferred>".to_owned())),
        ];
        let mut line = format!("{} AUDIT:", micro_time(event.received));
        for (name, value) in fields {
            // Writing to a String does not fail.
            let _ = write!(line, " {name}={}", quote(&value));
        }
        line.push('\n');
        line.into_bytes()
    }

    fn object_bytes(&self) -> usize {
        if self.has_objects() { self.event.object_bytes() } else { 0 }
    }

    /// Whether the event contains objects, as far as its level asks for them.
    fn has_objects(&self) -> bool {
        !self.is_truncated && self.outcome.is_some() && self.stage != Stage::Panic
    }

    /// The impersonated user. The stage RequestReceived precedes impersonation.
    fn impersonated(&self) -> Option<&UserInfo> {
        self.event.impersonated.as_deref().filter(|_| self.stage != Stage::RequestReceived)
    }

    /// Writes the fields from `level`, in the order of kube-apiserver.
    fn write_fields(&self, out: &mut Vec<u8>) {
        let event = self.event;
        let attributes = event.attributes.as_deref();
        out.extend_from_slice(b"\"level\":\"");
        out.extend_from_slice(event.level().as_str().as_bytes());
        out.extend_from_slice(b"\",\"auditID\":");
        push_string(out, &event.id);
        out.extend_from_slice(b",\"stage\":\"");
        out.extend_from_slice(self.stage.as_str().as_bytes());
        out.extend_from_slice(b"\",\"requestURI\":");
        push_string(out, &event.uri);
        out.extend_from_slice(b",\"verb\":");
        push_string(out, attributes.map_or("", |attributes| attributes.verb.as_str()));
        out.extend_from_slice(b",\"user\":");
        match event.user.as_deref() {
            Some(user) => push_user(out, user),
            None => out.extend_from_slice(b"{}"),
        }
        if let Some(user) = self.impersonated() {
            out.extend_from_slice(b",\"impersonatedUser\":");
            push_user(out, user);
        }
        if !event.sources.is_empty() {
            push_texts(out, "sourceIPs", &event.sources);
        }
        push_optional(out, "userAgent", &event.user_agent);
        if let Some(attributes) = event.resource_attributes() {
            out.extend_from_slice(b",\"objectRef\":");
            self.push_reference(out, attributes);
        }
        if let Some(outcome) = self.outcome {
            out.extend_from_slice(b",\"responseStatus\":");
            push_status(out, outcome);
        }
        if self.has_objects() {
            let objects =
                [("requestObject", &event.request_object), ("responseObject", &event.response_object)];
            for (name, object) in objects {
                if let Some(object) = object {
                    push_name(out, name);
                    push_json(out, object);
                }
            }
        }
        push_name(out, "requestReceivedTimestamp");
        push_time(out, event.received);
        push_name(out, "stageTimestamp");
        push_time(out, if self.stage == Stage::RequestReceived { event.received } else { self.at });
        self.push_annotations(out);
    }

    /// Writes the reference to the object. Without a name in the path, the name is that of the object. The stage
    /// RequestReceived precedes the body.
    fn push_reference(&self, out: &mut Vec<u8>, attributes: &Attributes) {
        let object = (self.stage != Stage::RequestReceived).then_some(&self.event.object);
        let name = match (attributes.name.as_str(), object) {
            ("", Some(object)) => object.name.as_str(),
            (name, _) => name,
        };
        let fields = [
            ("resource", attributes.resource.as_str()),
            ("namespace", attributes.namespace.as_str()),
            ("name", name),
            ("uid", object.map_or("", |object| object.uid.as_str())),
            ("apiGroup", attributes.group.as_str()),
            ("apiVersion", attributes.version.as_str()),
            ("resourceVersion", object.map_or("", |object| object.resource_version.as_str())),
            ("subresource", attributes.subresource.as_str()),
        ];
        let start = out.len();
        fields.iter().for_each(|(name, value)| push_optional(out, name, value));
        open_object(out, start);
        out.push(b'}');
    }

    fn push_annotations(&self, out: &mut Vec<u8>) {
        let annotations: &[(String, String)] = match self.stage {
            Stage::RequestReceived => &[],
            _ => &self.event.annotations,
        };
        if annotations.is_empty() && !self.is_truncated {
            return;
        }
        push_name(out, "annotations");
        let start = out.len();
        for (key, value) in annotations {
            out.push(b',');
            push_string(out, key);
            out.push(b':');
            push_string(out, value);
        }
        if self.is_truncated {
            out.push(b',');
            push_string(out, &self.names.truncated);
            out.extend_from_slice(b":\"true\"");
        }
        open_object(out, start);
        out.push(b'}');
    }
}

/// Replaces the comma before the first field by the brace that opens the object, or adds the brace.
fn open_object(out: &mut Vec<u8>, start: usize) {
    match out.get_mut(start) {
        Some(first) => *first = b'{',
        None => out.push(b'{'),
    }
}

/// Writes a comma and the name of a field.
fn push_name(out: &mut Vec<u8>, name: &str) {
    out.extend_from_slice(b",\"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
}

/// Writes a field unless it is empty.
fn push_optional(out: &mut Vec<u8>, name: &str, value: &str) {
    if !value.is_empty() {
        push_name(out, name);
        push_string(out, value);
    }
}

fn push_texts(out: &mut Vec<u8>, name: &str, texts: &[String]) {
    push_name(out, name);
    push_list(out, texts);
}

fn push_list(out: &mut Vec<u8>, texts: &[String]) {
    out.push(b'[');
    for (index, text) in texts.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        push_string(out, text);
    }
    out.push(b']');
}

fn push_user(out: &mut Vec<u8>, user: &UserInfo) {
    out.extend_from_slice(b"{\"username\":");
    push_string(out, &user.name);
    push_optional(out, "uid", &user.uid);
    if !user.groups.is_empty() {
        push_texts(out, "groups", &user.groups);
    }
    if !user.extra.is_empty() {
        push_name(out, "extra");
        let start = out.len();
        for (key, values) in &user.extra {
            out.push(b',');
            push_string(out, key);
            out.push(b':');
            push_list(out, values);
        }
        open_object(out, start);
        out.push(b'}');
    }
    out.push(b'}');
}

/// Writes the status of the response: the code and, if the response is a Status, its other fields.
fn push_status(out: &mut Vec<u8>, outcome: Outcome<'_>) {
    out.extend_from_slice(b"{\"metadata\":{}");
    if let Some(Value::Object(status)) = outcome.status.map(Status::to_value) {
        for name in ["status", "message", "reason", "details"] {
            if let Some(value) = status.get(name) {
                push_name(out, name);
                push_json(out, value.to_string().as_bytes());
            }
        }
    }
    push_name(out, "code");
    out.extend_from_slice(outcome.code.to_string().as_bytes());
    out.push(b'}');
}

/// Whether a byte of a text needs no escape in JSON and no closer look.
fn is_plain(byte: u8) -> bool {
    matches!(byte, b' '..=b'~') & (byte != b'"') & (byte != b'\\')
}

/// Writes a text as a JSON string.
fn push_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    // The fold has no early exit, so that the compiler examines many bytes at once.
    if text.bytes().fold(true, |plain, byte| plain & is_plain(byte)) {
        out.extend_from_slice(text.as_bytes());
    } else {
        push_escaped(out, text);
    }
    out.push(b'"');
}

fn push_escaped(out: &mut Vec<u8>, text: &str) {
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend_from_slice(&[b'\\', u8::try_from(character).unwrap_or(b'"')]),
            '\n' => out.extend_from_slice(b"\\n"),
            '\t' => out.extend_from_slice(b"\\t"),
            '\r' => out.extend_from_slice(b"\\r"),
            character if is_unprintable(character) => push_unicode_escape(out, character),
            character => out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

fn push_unicode_escape(out: &mut Vec<u8>, character: char) {
    for unit in character.encode_utf16(&mut [0; 2]) {
        out.extend_from_slice(format!("\\u{unit:04x}").as_bytes());
    }
}

/// Writes a JSON document without control and bidirectional characters in its strings. Between tokens of an encoded
/// document no line feed occurs.
fn push_json(out: &mut Vec<u8>, json: &[u8]) {
    if json.iter().fold(true, |plain, byte| plain & matches!(byte, b' '..=b'~')) {
        out.extend_from_slice(json);
        return;
    }
    for character in String::from_utf8_lossy(json).chars() {
        match character {
            // White space between tokens of a document that a client sent.
            '\n' | '\t' | '\r' => out.push(b' '),
            character if is_unprintable(character) => push_unicode_escape(out, character),
            character => out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

/// Writes a time with microseconds as a JSON string.
fn push_time(out: &mut Vec<u8>, at: Timestamp) {
    let time = Offset::UTC.to_datetime(at);
    let Ok(year @ 0..=9999) = u32::try_from(time.year()) else {
        return push_string(out, &micro_time(at));
    };
    let part = |value: i8| u32::try_from(value).unwrap_or_default();
    let micros = u32::try_from(time.subsec_nanosecond() / 1_000).unwrap_or_default();
    out.push(b'"');
    push_digits(out, year, 4);
    for (separator, value) in [
        (b'-', part(time.month())),
        (b'-', part(time.day())),
        (b'T', part(time.hour())),
        (b':', part(time.minute())),
        (b':', part(time.second())),
    ] {
        out.push(separator);
        push_digits(out, value, 2);
    }
    out.push(b'.');
    push_digits(out, micros, 6);
    out.extend_from_slice(b"Z\"");
}

/// Writes a number with leading zeros. `count`: the number of digits, at most 6.
fn push_digits(out: &mut Vec<u8>, value: u32, count: usize) {
    let mut digits = [b'0'; 6];
    let mut rest = value;
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + u8::try_from(rest % 10).unwrap_or_default();
        rest /= 10;
    }
    out.extend_from_slice(digits.get(6_usize.saturating_sub(count)..).unwrap_or_default());
}

#[cfg(test)]
#[path = "tests/encode.rs"]
mod tests;
