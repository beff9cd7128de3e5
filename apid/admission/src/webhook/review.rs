//! AdmissionReview: the request of a webhook call, and the checked response.

use std::collections::BTreeMap;

use apimachinery::codec::{Limits, json};
use apimachinery::names::Names;
use apimachinery::object::{Map, Value, byte};
use apimachinery::status::{Cause, Details, Reason, Status};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Kind of the body of a call and of its response.
const KIND: &str = "AdmissionReview";

/// A checked response of a webhook.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ReviewResponse {
    /// Whether the webhook allows the write.
    pub(super) is_allowed: bool,
    /// The Status of a denial.
    pub(super) status: Option<Value>,
    /// JSON Patch document.
    pub(super) patch: Option<Vec<u8>>,
    /// Type of the patch.
    pub(super) patch_type: String,
    /// Audit annotations.
    pub(super) annotations: BTreeMap<String, String>,
    /// Warnings for the client.
    pub(super) warnings: Vec<String>,
}

/// The reason why a response is unusable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ResponseError {
    #[error("failed to call webhook: {0}")]
    Undecodable(String),
    #[error("received invalid webhook response: {0}")]
    Invalid(String),
}

/// The `apiVersion` of an AdmissionReview.
pub(super) fn api_version(names: &Names, version: &str) -> String {
    format!("{}/{version}", names.group("admission"))
}

/// The body of a call: the request with its uid and objects. `object` and `old` are JSON.
pub(super) fn body(
    names: &Names,
    version: &str,
    uid: &str,
    request: &Map<String, Value>,
    object: &str,
    old: &str,
) -> String {
    let mut fields = json::to_text(request);
    // Without the closing brace, the uid and the objects can follow the last field of the request.
    fields.pop();
    let api_version = api_version(names, version);
    format!(
        "{{\"kind\":\"{KIND}\",\"apiVersion\":\"{api_version}\",\"request\":{fields},\"uid\":\"{uid}\",\
         \"object\":{object},\"oldObject\":{old}}}}}"
    )
}

/// Decodes a response and checks that it answers the request.
pub(super) fn read_response(
    bytes: &[u8],
    uid: &str,
    names: &Names,
    version: &str,
    is_mutating: bool,
) -> Result<ReviewResponse, ResponseError> {
    let undecodable_error = |error: &dyn std::fmt::Display| {
        ResponseError::Undecodable(format!("couldn't get version/kind; json parse error: {error}"))
    };
    let limits = Limits { bytes: bytes.len(), ..Limits::BODY };
    let decoded = json::decode(bytes, limits).map_err(|error| undecodable_error(&error))?;
    let Value::Object(mut review) = decoded.value else {
        return Err(undecodable_error(&"the response is not an object"));
    };
    let mut response = match review.remove("response") {
        None | Some(Value::Null) => {
            return Err(ResponseError::Invalid("webhook response was absent".to_owned()));
        }
        Some(Value::Object(response)) => response,
        Some(_) => return Err(ResponseError::Undecodable("response must be an object".to_owned())),
    };
    let is_v1 = version == "v1";
    let got_uid: String = take(&mut response, "uid", "a string", serde_json::from_value)?;
    if is_v1 && got_uid != uid {
        return Err(ResponseError::Invalid(format!("expected response.uid={uid:?}, got {got_uid:?}")));
    }
    if is_v1 {
        check_kind(&review, &api_version(names, version)).map_err(ResponseError::Invalid)?;
    }
    let (patch, patch_type) = take_patch(&mut response, is_v1, is_mutating)?;
    Ok(ReviewResponse {
        is_allowed: take(&mut response, "allowed", "a boolean", serde_json::from_value)?,
        status: response.remove("status").filter(|status| !status.is_null()),
        patch,
        patch_type,
        annotations: take(&mut response, "auditAnnotations", "a map of strings", serde_json::from_value)?,
        warnings: take(&mut response, "warnings", "a list of strings", serde_json::from_value)?,
    })
}

fn wrong_type(field: &str, expected: &str) -> ResponseError {
    ResponseError::Undecodable(format!("response.{field} must be {expected}"))
}

/// Takes a field with the type that `decode` reads; an absent field or null has the default of the type.
fn take<T: Default>(
    response: &mut Map<String, Value>,
    field: &str,
    expected: &str,
    decode: fn(Value) -> serde_json::Result<T>,
) -> Result<T, ResponseError> {
    match response.remove(field) {
        None | Some(Value::Null) => Ok(T::default()),
        Some(value) => decode(value).map_err(|_| wrong_type(field, expected)),
    }
}

fn check_kind(review: &Map<String, Value>, expected: &str) -> Result<(), String> {
    let text = |field: &str| review.get(field).and_then(Value::as_str).unwrap_or_default();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    if (api_version, kind) == (expected, KIND) {
        return Ok(());
    }
    let got = if api_version.contains('/') { api_version.to_owned() } else { format!("/{api_version}") };
    Err(format!("expected webhook response of {expected}, Kind={KIND}, got {got}, Kind={kind}"))
}

/// Takes the patch with its type. In v1 a mutating webhook must return both or neither; in v1beta1 the type
/// is ignored.
fn take_patch(
    response: &mut Map<String, Value>,
    is_v1: bool,
    is_mutating: bool,
) -> Result<(Option<Vec<u8>>, String), ResponseError> {
    let invalid = |text: &str| Err(ResponseError::Invalid(text.to_owned()));
    let patch = match response.remove("patch") {
        None | Some(Value::Null) => Vec::new(),
        Some(value) => bytes(&value).ok_or_else(|| wrong_type("patch", "base64 or an array of bytes"))?,
    };
    let patch = (!patch.is_empty()).then_some(patch);
    let patch_type: Option<String> = take(response, "patchType", "a string", serde_json::from_value)?;
    match (is_mutating, is_v1, patch, patch_type) {
        (false, true, Some(_), _) => invalid("validating webhook may not return response.patch"),
        (false, true, None, Some(_)) => invalid("validating webhook may not return response.patchType"),
        (false, ..) => Ok((None, String::new())),
        (true, false, patch, _) => Ok((patch, "JSONPatch".to_owned())),
        (true, true, Some(_), None) => invalid("webhook returned response.patch but not response.patchType"),
        (true, true, None, Some(_)) => invalid("webhook returned response.patchType but not response.patch"),
        (true, true, Some(_), Some(empty)) if empty.is_empty() => {
            invalid("webhook returned invalid response.patchType of \"\"")
        }
        (true, true, patch, patch_type) => Ok((patch, patch_type.unwrap_or_default())),
    }
}

/// Decodes bytes as the JSON decoder of Go does: base64, or an array of numbers.
fn bytes(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::String(text) if text.contains(['\r', '\n']) => {
            STANDARD.decode(text.replace(['\r', '\n'], "")).ok()
        }
        Value::String(text) => STANDARD.decode(text).ok(),
        Value::Array(items) => items.iter().map(byte).collect(),
        _ => None,
    }
}

/// The Status of a denial: that of the response, with a message that names the webhook.
pub(super) fn denial(webhook: &str, response_status: Option<&Value>) -> Status {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    let field = |name: &str| response_status.and_then(|status| status.get(name));
    let (message, reason) = (text(field("message")), text(field("reason")));
    let denied = format!("admission webhook {webhook:?} denied the request");
    let message = match (message.as_str(), reason.as_str()) {
        ("", "") => format!("{denied} without explanation"),
        ("", reason) => format!("{denied}: {reason}"),
        (message, _) => format!("{denied}: {message}"),
    };
    let code = field("code").and_then(Value::as_u64).and_then(|code| u16::try_from(code).ok()).unwrap_or(0);
    let mut status = Status::failure(Reason::Unknown, message);
    status.code = code.clamp(400, 599);
    status.remote_reason = reason;
    status.details = field("details").filter(|details| details.is_object()).map(|details| {
        let causes = details.get("causes").and_then(Value::as_array).into_iter().flatten();
        let cause = |cause: &Value| Cause {
            reason: text(cause.get("reason")),
            message: text(cause.get("message")),
            field: text(cause.get("field")),
        };
        let seconds = details.get("retryAfterSeconds").and_then(Value::as_u64).unwrap_or(0);
        Box::new(Details {
            name: text(details.get("name")),
            group: text(details.get("group")),
            kind: text(details.get("kind")),
            uid: text(details.get("uid")),
            causes: causes.map(cause).collect(),
            retry_after_seconds: u32::try_from(seconds).unwrap_or(u32::MAX),
        })
    });
    status
}
