//! Status object: failures that clients see, and results of deletes (requirements D-ERR).
//!
//! # Contract
//!
//! Constructors set code, reason, details and the texts that clients know. `Display` is the message.
//!
//! # Invariants
//!
//! INVARIANT (bounded): the body of [`Status::to_value`] has at most 256 kB in each encoding, for any texts.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use serde_json::{Map, Value, json};

use crate::field::{ERRORS_MAX, FieldErrorList, aggregate, quote_name};
use crate::gvk::{GroupKind, GroupResource};

/// Maximum number of bytes of the message in a body, after JSON escaping; a longer message is truncated.
const MESSAGE_MAX: usize = 64 * 1024;
/// Maximum number of bytes of each other text in a body, after JSON escaping; a longer text is truncated.
const TEXT_MAX: usize = 4 * 1024;
/// Maximum number of bytes of all causes in a body, after JSON escaping; further causes are dropped.
const CAUSES_MAX: usize = 128 * 1024;
/// Maximum number of bytes of a cause in JSON, not counting its texts.
const CAUSE_FRAME: usize = 48;

/// Truncates a text whose escaped form would exceed a number of bytes: `text… (3000 bytes)`.
fn truncate_escaped(text: &str, max: usize) -> Cow<'_, str> {
    if text.len() <= max / 6 {
        return Cow::Borrowed(text);
    }
    let mut used = 0;
    for (at, c) in text.char_indices() {
        used += escaped_len(c);
        if used > max {
            let start = text.get(..at).unwrap_or_default();
            return Cow::Owned(format!("{start}… ({} bytes)", text.len()));
        }
    }
    Cow::Borrowed(text)
}

/// Maximum number of bytes of a character in a JSON or YAML string.
///
/// The other encodings of a Status need no more.
fn escaped_len(c: char) -> usize {
    match c {
        // YAML doubles a single quote in a single-quoted string.
        '"' | '\\' | '\'' => 2,
        // YAML escapes these characters.
        '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}' => 6,
        c if c.is_control() => 6,
        c => c.len_utf8(),
    }
}

/// Machine-readable reasons, each with its HTTP code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// No reason in the body; [`Reason::code`] is only a default.
    Unknown,
    /// 400
    BadRequest,
    /// 401
    Unauthorized,
    /// 403
    Forbidden,
    /// 404
    NotFound,
    /// 405
    MethodNotAllowed,
    /// 406
    NotAcceptable,
    /// 409
    AlreadyExists,
    /// 409
    Conflict,
    /// 410
    Gone,
    /// 410: history is compacted, list again
    Expired,
    /// 413
    RequestEntityTooLarge,
    /// 415
    UnsupportedMediaType,
    /// 422
    Invalid,
    /// 429
    TooManyRequests,
    /// 500
    InternalError,
    /// 500: stored objects cannot be read
    StorageReadError,
    /// 500: try again
    ServerTimeout,
    /// 503
    ServiceUnavailable,
    /// 503: another server runs the loop of the write. The body has the reason `ServiceUnavailable`.
    NotLeading,
    /// 504
    Timeout,
}

impl Reason {
    /// Returns the reason in the body.
    pub fn as_str(self) -> &'static str {
        self.text_and_code().0
    }

    /// Returns the HTTP code of the reason.
    pub fn code(self) -> u16 {
        self.text_and_code().1
    }

    fn text_and_code(self) -> (&'static str, u16) {
        match self {
            Reason::Unknown => ("", 500),
            Reason::BadRequest => ("BadRequest", 400),
            Reason::Unauthorized => ("Unauthorized", 401),
            Reason::Forbidden => ("Forbidden", 403),
            Reason::NotFound => ("NotFound", 404),
            Reason::MethodNotAllowed => ("MethodNotAllowed", 405),
            Reason::NotAcceptable => ("NotAcceptable", 406),
            Reason::AlreadyExists => ("AlreadyExists", 409),
            Reason::Conflict => ("Conflict", 409),
            Reason::Gone => ("Gone", 410),
            Reason::Expired => ("Expired", 410),
            Reason::RequestEntityTooLarge => ("RequestEntityTooLarge", 413),
            Reason::UnsupportedMediaType => ("UnsupportedMediaType", 415),
            Reason::Invalid => ("Invalid", 422),
            Reason::TooManyRequests => ("TooManyRequests", 429),
            Reason::InternalError => ("InternalError", 500),
            Reason::StorageReadError => ("StorageReadError", 500),
            Reason::ServerTimeout => ("ServerTimeout", 500),
            Reason::ServiceUnavailable | Reason::NotLeading => ("ServiceUnavailable", 503),
            Reason::Timeout => ("Timeout", 504),
        }
    }
}

/// One cause of a failure.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Cause {
    /// Machine-readable reason; `""` is omitted.
    pub reason: String,
    /// Message for people.
    pub message: String,
    /// Field path; `""` is omitted.
    pub field: String,
}

/// Field `details` of a Status: the object that the Status concerns, and the causes. Empty fields are
/// omitted.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Details {
    /// Object name.
    pub name: String,
    /// Full group name.
    pub group: String,
    /// Resource, or the kind where Kubernetes uses the kind.
    pub kind: String,
    /// Object uid.
    pub uid: String,
    /// Causes.
    pub causes: Vec<Cause>,
    /// Seconds until a retry makes sense; 0 is omitted. Also sent as `Retry-After`.
    pub retry_after_seconds: u32,
}

/// Status body. A failure unless created by [`Status::success`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// HTTP code.
    pub code: u16,
    /// Reason.
    pub reason: Reason,
    /// Reason in the body instead of [`Status::reason`], from a remote service; `""`: none.
    pub remote_reason: String,
    /// Message for people; user input is quoted.
    pub message: String,
    /// Details; None omits `details` in the body.
    pub details: Option<Box<Details>>,
    /// Whether the field `status` is `Success` instead of `Failure`.
    pub success: bool,
    /// `metadata.continue`: a token to continue a list whose token has expired; `""` is omitted.
    pub continue_token: String,
}

impl Status {
    /// Creates a failure with the code of the reason.
    pub fn failure(reason: Reason, message: impl Into<String>) -> Self {
        let message = match message.into() {
            short if short.len() <= MESSAGE_MAX / 6 => short,
            long => truncate_escaped(&long, MESSAGE_MAX).into_owned(),
        };
        Status {
            code: reason.code(),
            reason,
            remote_reason: String::new(),
            message,
            details: None,
            success: false,
            continue_token: String::new(),
        }
    }

    /// Creates the result of a delete that returns no object.
    pub fn success(details: Details) -> Self {
        let status = Self::failure(Reason::Unknown, "").with_details(details);
        Status { code: 200, success: true, ..status }
    }

    /// Creates the result of a successful action subresource such as a binding or an eviction: 201.
    pub fn action_success() -> Self {
        Status { code: 201, details: None, ..Self::success(Details::default()) }
    }

    /// Sets the details.
    #[must_use]
    pub fn with_details(mut self, details: Details) -> Self {
        self.details = Some(Box::new(details));
        self
    }

    /// 400: the request is malformed.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::failure(Reason::BadRequest, message)
    }

    /// 401. The response does not contain the reason.
    pub fn unauthorized() -> Self {
        Self::failure(Reason::Unauthorized, "Unauthorized")
    }

    /// 403 on a resource: `pods "x" is forbidden: <reason>`; without a name `pods is forbidden: <reason>`.
    pub fn forbidden(resource: &GroupResource, name: &str, reason: &str) -> Self {
        let message = match (resource.resource.as_str(), name) {
            ("", _) => format!("forbidden: {reason}"),
            (_, "") => format!("{resource} is forbidden: {reason}"),
            _ => format!("{resource} {} is forbidden: {reason}", quote_name(name)),
        };
        Self::resource_failure(Reason::Forbidden, resource, name, message)
    }

    /// 404 on an object: `configmaps "x" not found`.
    pub fn not_found(resource: &GroupResource, name: &str) -> Self {
        let message = format!("{resource} {} not found", quote_name(name));
        Self::resource_failure(Reason::NotFound, resource, name, message)
    }

    /// 404 on a resource that an existing group version does not serve.
    pub fn unknown_resource() -> Self {
        Self::failure(Reason::NotFound, "the server could not find the requested resource")
            .with_details(Details::default())
    }

    /// 405: the resource exists and does not support the HTTP method.
    pub fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::failure(Reason::MethodNotAllowed, message).with_details(Details::default())
    }

    /// 501: discovery lists the resource, but this release does not implement it.
    ///
    /// `subresource` is `""` for the main resource.
    pub fn not_implemented(resource: &GroupResource, subresource: &str) -> Self {
        let subject = if subresource.is_empty() {
            resource.to_string()
        } else {
            format!("{subresource} of {resource}")
        };
        let message = format!("the server does not implement {subject}");
        Status { code: 501, ..Self::failure(Reason::Unknown, message) }
    }

    /// 406: the client accepts none of the media types in `accepted`.
    pub fn not_acceptable(accepted: &[&str]) -> Self {
        let message = format!("only the following media types are accepted: {}", accepted.join(", "));
        Self::failure(Reason::NotAcceptable, message)
    }

    /// 409: the name exists.
    pub fn already_exists(resource: &GroupResource, name: &str) -> Self {
        let message = format!("{resource} {} already exists", quote_name(name));
        Self::resource_failure(Reason::AlreadyExists, resource, name, message)
    }

    /// 409: `Operation cannot be fulfilled on configmaps "x": <reason>`.
    pub fn conflict(resource: &GroupResource, name: &str, reason: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {resource} {}: {reason}", quote_name(name));
        Self::resource_failure(Reason::Conflict, resource, name, message)
    }

    /// 409: optimistic lock failed, the object changed since it was read.
    pub fn stale_version(resource: &GroupResource, name: &str) -> Self {
        Self::conflict(
            resource,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    /// 410: the requested history is compacted.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::failure(Reason::Expired, message)
    }

    /// 413: the body of the request exceeds a limit.
    pub fn too_large(message: impl Into<String>) -> Self {
        Self::failure(Reason::RequestEntityTooLarge, message)
    }

    /// 415: the media type of the body is none of those in `accepted`.
    pub fn unsupported_media_type(accepted: &[&str]) -> Self {
        Self::failure(
            Reason::UnsupportedMediaType,
            format!(
                "the body of the request was in an unknown format - accepted media types include: {}",
                accepted.join(", ")
            ),
        )
    }

    /// 415 with empty details: the routes of the resource do not accept the media type of the body.
    pub fn unroutable_media_type() -> Self {
        Self::failure(Reason::UnsupportedMediaType, "415: Unsupported Media Type")
            .with_details(Details::default())
    }

    /// The failure that clients of Kubernetes see for a response without a Status. `request` names the request, for
    /// example `get pods x`; `text` is the body of the response.
    pub fn of_response(code: u16, request: &str, text: &str) -> Self {
        let fixed = |reason, message: &str| (reason, message.to_owned());
        let (reason, message) = match code {
            400 => fixed(Reason::BadRequest, "the server rejected our request for an unknown reason"),
            401 => fixed(Reason::Unauthorized, "the server has asked for the client to provide credentials"),
            403 => (Reason::Forbidden, text.trim_end().to_owned()),
            404 => fixed(Reason::NotFound, "the server could not find the requested resource"),
            405 => fixed(
                Reason::MethodNotAllowed,
                "the server does not allow this method on the requested resource",
            ),
            409 => fixed(Reason::Conflict, "the server reported a conflict"),
            422 => fixed(Reason::Invalid, "the server rejected our request due to an error in our request"),
            429 => fixed(
                Reason::TooManyRequests,
                "the server has received too many requests and has asked us to try again later",
            ),
            503 => fixed(Reason::ServiceUnavailable, "the server is currently unable to handle the request"),
            504 => fixed(
                Reason::Timeout,
                "the server was unable to return a response in the time allotted, but may still be processing the \
                 request",
            ),
            500.. => (
                Reason::InternalError,
                format!("an error on the server ({text:?}) has prevented the request from succeeding"),
            ),
            _ => (Reason::Unknown, String::new()),
        };
        let message = match message.is_empty() {
            true => format!(
                "the server responded with the status code {code} but did not return more information"
            ),
            false => message,
        };
        Status { code, ..Self::failure(reason, format!("{message} ({request})")) }
    }

    /// 422 with a cause for each of the first 100 errors. The message contains the number of further errors.
    pub fn invalid<E: FieldErrorList + ?Sized>(kind: &GroupKind, name: &str, errors: &E) -> Self {
        let all = errors.as_ref();
        let kept = all.get(..ERRORS_MAX).unwrap_or(all);
        let more = all.len() - kept.len() + errors.more();
        let mut seen = HashSet::with_capacity(kept.len());
        let mut texts: Vec<String> = Vec::with_capacity(kept.len() + 1);
        for text in kept.iter().map(ToString::to_string) {
            if seen.insert(text.clone()) {
                texts.push(text);
            }
        }
        if more > 0 {
            texts.push(format!("and {more} more"));
        }
        let list = aggregate(&texts);
        let causes = kept
            .iter()
            .map(|e| Cause {
                reason: e.kind.reason().to_owned(),
                message: e.body(),
                field: e.path.to_string(),
            })
            .collect();
        let head = format!("{kind} {} is invalid", quote_name(name));
        let message = if kept.is_empty() { head } else { format!("{head}: {list}") };
        Self::failure(Reason::Invalid, message).with_details(Details {
            name: name.to_owned(),
            group: kind.group.clone(),
            kind: kind.kind.clone(),
            causes,
            ..Details::default()
        })
    }

    /// 500. The client sees the message: it must not contain unnecessary internal information.
    pub fn internal(message: impl fmt::Display) -> Self {
        let causes = vec![Cause { message: message.to_string(), ..Cause::default() }];
        Self::failure(Reason::InternalError, format!("Internal error occurred: {message}"))
            .with_details(Details { causes, ..Details::default() })
    }

    /// 503 with `Retry-After`.
    pub fn unavailable(message: impl Into<String>, retry_after_seconds: u32) -> Self {
        Self::failure(Reason::ServiceUnavailable, message)
            .with_details(Details { retry_after_seconds, ..Details::default() })
    }

    /// 504: a resource version that this server has not reached.
    pub fn version_too_large(requested: u64, current: u64) -> Self {
        let message = format!("Too large resource version: {requested}, current: {current}");
        Self::failure(Reason::Timeout, format!("Timeout: {message}")).with_details(Details {
            causes: vec![Cause {
                reason: "ResourceVersionTooLarge".to_owned(),
                message: "Too large resource version".to_owned(),
                field: String::new(),
            }],
            retry_after_seconds: 1,
            ..Details::default()
        })
    }

    fn resource_failure(reason: Reason, resource: &GroupResource, name: &str, message: String) -> Self {
        Self::failure(reason, message).with_details(Details {
            name: name.to_owned(),
            group: resource.group.clone(),
            kind: resource.resource.clone(),
            ..Details::default()
        })
    }

    /// Returns the body of the response, with texts truncated to the limits.
    pub fn to_value(&self) -> Value {
        let mut body = Map::new();
        body.insert("kind".into(), "Status".into());
        body.insert("apiVersion".into(), "v1".into());
        let metadata = match self.continue_token.as_str() {
            "" => json!({}),
            token => json!({"continue": token}),
        };
        body.insert("metadata".into(), metadata);
        body.insert("status".into(), if self.success { "Success" } else { "Failure" }.into());
        if !self.message.is_empty() {
            body.insert("message".into(), truncate_escaped(&self.message, MESSAGE_MAX).into());
        }
        if !self.remote_reason.is_empty() {
            body.insert("reason".into(), truncate_escaped(&self.remote_reason, TEXT_MAX).into());
        } else if self.reason != Reason::Unknown {
            body.insert("reason".into(), self.reason.as_str().into());
        }
        if let Some(details) = &self.details {
            body.insert("details".into(), details.to_value());
        }
        if !self.success || self.code != 200 {
            body.insert("code".into(), self.code.into());
        }
        Value::Object(body)
    }
}

impl Details {
    fn to_value(&self) -> Value {
        let mut out = texts_to_map([
            ("name", &self.name),
            ("group", &self.group),
            ("kind", &self.kind),
            ("uid", &self.uid),
        ]);
        if !self.causes.is_empty() {
            let mut room = CAUSES_MAX;
            let causes = self.causes.iter().map_while(|cause| {
                room = room.checked_sub(cause.size())?;
                Some(cause.to_value())
            });
            out.insert("causes".into(), causes.collect());
        }
        if self.retry_after_seconds != 0 {
            out.insert("retryAfterSeconds".into(), self.retry_after_seconds.into());
        }
        Value::Object(out)
    }
}

impl Cause {
    /// Returns the maximum number of bytes that the cause takes in a JSON body.
    fn size(&self) -> usize {
        let texts = [&self.reason, &self.message, &self.field].map(|text| truncate_escaped(text, TEXT_MAX));
        CAUSE_FRAME + texts.iter().flat_map(|text| text.chars()).map(escaped_len).sum::<usize>()
    }

    fn to_value(&self) -> Value {
        let fields = [("reason", &self.reason), ("message", &self.message), ("field", &self.field)];
        Value::Object(texts_to_map(fields))
    }
}

/// Returns the texts that are not empty, truncated to the limit, by their fields.
fn texts_to_map<const N: usize>(fields: [(&str, &String); N]) -> Map<String, Value> {
    let texts = fields.into_iter().filter(|(_, text)| !text.is_empty());
    texts.map(|(field, text)| (field.to_owned(), truncate_escaped(text, TEXT_MAX).into())).collect()
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Status {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::{FieldError, FieldErrors, FieldPath};

    fn config_map() -> GroupKind {
        GroupKind { group: String::new(), kind: "ConfigMap".into() }
    }

    #[test]
    fn stale_version_has_the_message_that_clients_match() {
        let resource = GroupResource { group: String::new(), resource: "configmaps".into() };
        assert_eq!(
            Status::stale_version(&resource, "x").message,
            "Operation cannot be fulfilled on configmaps \"x\": the object has been modified; please apply your \
             changes to the latest version and try again"
        );
    }

    #[test]
    fn status_of_million_errors_has_100_causes_and_count_in_linear_time() {
        let errors: Vec<FieldError> =
            (0..1_000_000).map(|i| FieldError::required(&FieldPath::new("data").index(i), "")).collect();
        // A comparison of each error with all earlier errors would take hours.
        let status = Status::invalid(&config_map(), "x", &errors);
        let collected: FieldErrors = errors.into_iter().collect();
        assert_eq!((collected.len(), collected.iter().count()), (1_000_000, 100));
        assert_eq!(status, Status::invalid(&config_map(), "x", &collected));
        assert_eq!(status.details.as_ref().unwrap().causes.len(), 100);
        assert!(status.message.ends_with("data[99]: Required value, and 999900 more]"), "{}", status.message);
    }

    #[test]
    fn status_lists_100_errors_and_omits_duplicate_messages() {
        let path = FieldPath::new("data");
        let errors: FieldErrors =
            (0..100).map(|i| FieldError::required(&path, &format!("{}", i / 2))).collect();
        let status = Status::invalid(&config_map(), "x", &errors);
        let texts: Vec<String> = (0..50).map(|i| format!("data: Required value: {i}")).collect();
        assert_eq!(status.message, format!(r#"ConfigMap "x" is invalid: [{}]"#, texts.join(", ")));
        assert_eq!(status.details.unwrap().causes.len(), 100);
    }

    #[test]
    fn body_of_a_status_never_exceeds_256_kilobytes() {
        let texts =
            ["a", "\u{1}", "\"", "é", "漢", "\u{85}", "\u{2028}", "\u{feff}", "\u{ffff}", "\"'''''''''"];
        for text in texts {
            let long = text.repeat(1_000_000);
            let cause = Cause { reason: long.clone(), message: long.clone(), field: long.clone() };
            let details = Details {
                name: long.clone(),
                group: long.clone(),
                kind: long.clone(),
                uid: long.clone(),
                causes: vec![cause; 40],
                retry_after_seconds: 1,
            };
            let body = Status::bad_request(long).with_details(details).to_value();
            assert!(body.to_string().len() < 256_000, "{text:?}: {}", body.to_string().len());
            let yaml = crate::codec::yaml::encode(&body).len();
            assert!(yaml < 256_000, "{text:?}: {yaml}");
            assert!(body["details"]["causes"].as_array().is_some_and(|causes| causes.len() >= 8), "{text:?}");
        }
    }

    #[test]
    fn invalid_status_has_one_cause_per_error() {
        let path = FieldPath::new("metadata.name");
        let status = Status::invalid(
            &GroupKind { group: String::new(), kind: "ConfigMap".into() },
            "x",
            &[FieldError::required(&path, ""), FieldError::invalid(&path, "", "too short")],
        );
        assert_eq!(status.code, 422);
        assert_eq!(
            status.message,
            r#"ConfigMap "x" is invalid: [metadata.name: Required value, metadata.name: Invalid value: "": too short]"#
        );
        let body = status.to_value();
        assert_eq!(body["details"]["causes"][1]["reason"], "FieldValueInvalid");
        assert_eq!(body["details"]["causes"][1]["field"], "metadata.name");
    }
}
