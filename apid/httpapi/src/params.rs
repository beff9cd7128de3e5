//! Options of verbs from the query or from a `DeleteOptions` body, for lists, watches, writes and connections.

use std::time::Duration;

use apimachinery::codec::{self, Limits};
use apimachinery::field::shorten;
use apimachinery::selector::field::FieldSelector;
use apimachinery::selector::label::LabelSelector;
use apimachinery::status::Status;
use apimachinery::time;
use bytes::Bytes;
use http::{HeaderMap, header};
use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::negotiate::BodyFormat;
use crate::query::Query;
use crate::request_info::RequestInfo;
use verbs::decode_error_status;
use verbs::deletion::options::{IGNORE_STORE_READ_ERROR, Preconditions, RawDeleteOptions};
use verbs::options::{ListOptions, RawWriteOptions};
use verbs::{ConnectOptions, STREAMS};

/// Maximum number of requirements in one selector; a selector with more returns 400. A list compares each
/// requirement with every object.
const MAX_REQUIREMENTS: usize = 500;

/// Parses the options of list, watch and deletecollection, with the authorized selectors.
///
/// # Errors
///
/// 400: a number or selector is invalid.
pub(super) fn list_options(query: &Query, info: &RequestInfo) -> Result<ListOptions, Status> {
    let timeout_seconds = integer(query, "timeoutSeconds")?;
    let labels = match &info.labels {
        Some(labels) => labels.clone(),
        // The selector is absent or invalid. Parsing returns the error of an invalid selector.
        None => LabelSelector::parse(query.text("labelSelector")).map_err(Status::bad_request)?,
    };
    let fields = match &info.fields {
        Some(fields) => fields.clone(),
        None => FieldSelector::parse(query.text("fieldSelector")).map_err(Status::bad_request)?,
    };
    for (parameter, requirements) in [("labelSelector", labels.len()), ("fieldSelector", fields.len())] {
        if requirements > MAX_REQUIREMENTS {
            let text = format!(
                "{parameter} has {requirements} requirements; at most {MAX_REQUIREMENTS} are allowed"
            );
            return Err(Status::bad_request(text));
        }
    }
    Ok(ListOptions {
        labels,
        fields,
        limit: usize::try_from(integer(query, "limit")?.unwrap_or(0)).unwrap_or(0),
        continue_token: query.text("continue").to_owned(),
        resource_version: query.text("resourceVersion").to_owned(),
        resource_version_match: query.text("resourceVersionMatch").to_owned(),
        timeout: timeout_seconds
            .and_then(|seconds| u64::try_from(seconds).ok())
            .filter(|s| *s > 0)
            .map(Duration::from_secs),
        allow_watch_bookmarks: query.switch("allowWatchBookmarks"),
        send_initial_events: query.has("sendInitialEvents").then(|| query.switch("sendInitialEvents")),
    })
}

/// Returns the options of create, update and patch, without validation.
pub(super) fn write_options(query: &Query, headers: &HeaderMap) -> RawWriteOptions {
    let agent = headers.get(header::USER_AGENT).map(|agent| String::from_utf8_lossy(agent.as_bytes()));
    RawWriteOptions {
        user_agent: agent.unwrap_or_default().into_owned(),
        dry_run: query.all("dryRun").map(str::to_owned).collect(),
        field_validation: query.text("fieldValidation").to_owned(),
        field_manager: query.text("fieldManager").to_owned(),
        force: query.has("force").then(|| query.switch("force")),
    }
}

/// Returns the options of delete, either all from the body or, if the body is empty, all from the query.
///
/// # Errors
///
/// 400: the body is not a `DeleteOptions`, or a field has the wrong type.
pub(super) fn delete_options(
    query: &Query,
    body: &[u8],
    format: BodyFormat,
    limits: Limits,
) -> Result<RawDeleteOptions, Status> {
    if body.is_empty() {
        delete_options_from_query(query)
    } else {
        delete_options_from_body(body, format, limits)
    }
}

/// Parses the options of requests for logs and of requests to containers.
///
/// # Errors
///
/// 400: a number is invalid.
pub(super) fn connect_options(query: &Query, info: &RequestInfo) -> Result<ConnectOptions, Status> {
    let port =
        |text: &str| parse_integer(text).and_then(|port| i32::try_from(port).map_err(|_| out_of_range(text)));
    Ok(ConnectOptions {
        streams: STREAMS.into_iter().filter(|name| query.switch(name)).collect(),
        command: query.all("command").map(str::to_owned).collect(),
        ports: query.all("ports").map(port).collect::<Result<_, _>>()?,
        path: info.path_after_subresource(),
        container: query.text("container").to_owned(),
        tail_lines: integer(query, "tailLines")?,
        limit_bytes: integer(query, "limitBytes")?,
        since_seconds: integer(query, "sinceSeconds")?,
        since_time: since_time(query)?,
        has_stream: query.first("stream").is_some(),
        follow: query.switch("follow"),
        previous: query.switch("previous"),
        timestamps: query.switch("timestamps"),
        insecure_skip_tls_verify_backend: query.switch("insecureSkipTLSVerifyBackend"),
    })
}

/// Reads the minimum time of log lines.
fn since_time(query: &Query) -> Result<Option<Timestamp>, Status> {
    let text = query.text("sinceTime");
    if text.is_empty() || text == "null" {
        return Ok(None);
    }
    time::read(text, false).map(Some).map_err(|error| {
        Status::bad_request(format!("parsing time {text:?} as {:?}: {error}", "2006-01-02T15:04:05Z07:00"))
    })
}

/// Converts a CBOR apply configuration to JSON. Duplicate keys are invalid.
///
/// # Errors
///
/// 400: the body is invalid.
pub(super) fn apply_configuration_from_cbor(body: &[u8], limits: Limits) -> Result<Bytes, Status> {
    let invalid_cbor = |reason: &str| Status::bad_request(format!("error decoding CBOR: {reason}"));
    let decoded =
        codec::cbor::decode(body, limits).map_err(|error| decode_error_status(&error, invalid_cbor))?;
    match decoded.duplicates.first() {
        Some(path) => Err(invalid_cbor(&format!("duplicate key `{}`", shorten(path)))),
        None => Ok(Bytes::from(decoded.value.to_string())),
    }
}

fn delete_options_from_query(query: &Query) -> Result<RawDeleteOptions, Status> {
    let text = |name: &str| query.first(name).filter(|value| !value.is_empty()).map(str::to_owned);
    let switch = |name: &str| query.has(name).then(|| query.switch(name));
    Ok(RawDeleteOptions {
        dry_run: query.all("dryRun").map(str::to_owned).collect(),
        grace_period_seconds: integer(query, "gracePeriodSeconds")?,
        propagation_policy: text("propagationPolicy"),
        orphan_dependents: switch("orphanDependents"),
        preconditions: None,
        ignore_store_read_error: switch(IGNORE_STORE_READ_ERROR),
    })
}

fn delete_options_from_body(
    body: &[u8],
    format: BodyFormat,
    limits: Limits,
) -> Result<RawDeleteOptions, Status> {
    let parsed = format.payload(body).parse(Some("meta/v1.DeleteOptions"), limits);
    let decoded = parsed.map_err(|error| decode_error_status(&error, invalid_body))?;
    let fields = match decoded.value {
        Value::Object(fields) => fields,
        Value::Null => Map::new(),
        _ => return Err(invalid_body("it is not an object")),
    };
    match fields.get("kind") {
        None | Some(Value::Null) => {}
        Some(Value::String(kind)) if kind.is_empty() || kind == "DeleteOptions" => {}
        Some(kind) => return Err(invalid_body(&format!("its kind is {}", shorten(&kind.to_string())))),
    }
    let preconditions = match fields.get("preconditions") {
        None | Some(Value::Null) => None,
        Some(Value::Object(map)) => {
            Some(Preconditions { uid: text(map, "uid")?, resource_version: text(map, "resourceVersion")? })
        }
        Some(_) => return Err(wrong_type("preconditions")),
    };
    let dry_run = match fields.get("dryRun") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(items)) => items
            .iter()
            .map(|item| item.as_str().map(str::to_owned).ok_or_else(|| wrong_type("dryRun")))
            .collect::<Result<_, _>>()?,
        Some(_) => return Err(wrong_type("dryRun")),
    };
    let grace_period_seconds = match fields.get("gracePeriodSeconds") {
        None | Some(Value::Null) => None,
        Some(value) => Some(value.as_i64().ok_or_else(|| wrong_type("gracePeriodSeconds"))?),
    };
    Ok(RawDeleteOptions {
        dry_run,
        grace_period_seconds,
        propagation_policy: text(&fields, "propagationPolicy")?,
        orphan_dependents: switch(&fields, "orphanDependents")?,
        preconditions,
        ignore_store_read_error: switch(&fields, IGNORE_STORE_READ_ERROR)?,
    })
}

fn switch(fields: &Map<String, Value>, name: &str) -> Result<Option<bool>, Status> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value.as_bool().map(Some).ok_or_else(|| wrong_type(name)),
    }
}

fn text(fields: &Map<String, Value>, name: &str) -> Result<Option<String>, Status> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(wrong_type(name)),
    }
}

fn invalid_body(reason: &str) -> Status {
    Status::bad_request(format!("the body of the request is not a DeleteOptions: {reason}"))
}

fn wrong_type(field: &str) -> Status {
    invalid_body(&format!("`{field}` has the wrong type"))
}

/// Parses an integer parameter, with the error messages of Go's parser.
fn integer(query: &Query, name: &str) -> Result<Option<i64>, Status> {
    query.first(name).filter(|text| !text.is_empty()).map(parse_integer).transpose()
}

fn parse_integer(text: &str) -> Result<i64, Status> {
    text.parse().map_err(|_| {
        let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
        let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        if is_number { out_of_range(text) } else { invalid_integer(text, "invalid syntax") }
    })
}

fn out_of_range(text: &str) -> Status {
    invalid_integer(text, "value out of range")
}

fn invalid_integer(text: &str, reason: &str) -> Status {
    let quoted = apimachinery::field::quote(text);
    Status::bad_request(format!("strconv.ParseInt: parsing {quoted}: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delete_options_body_replaces_query_options() {
        let query = Query::parse(Some("dryRun=All&gracePeriodSeconds=5"));
        let raw = delete_options(&query, b"", BodyFormat::Json, Limits::BODY).unwrap();
        assert_eq!((raw.dry_run.len(), raw.grace_period_seconds), (1, Some(5)));
        let raw = delete_options(
            &query,
            br#"{"apiVersion":"policy/v1","kind":"DeleteOptions","bogus":1}"#,
            BodyFormat::Json,
            Limits::BODY,
        )
        .unwrap();
        assert_eq!((raw.dry_run.len(), raw.grace_period_seconds), (0, None));
        let raw = delete_options(
            &query,
            br#"{"preconditions":{"uid":"u","resourceVersion":null}}"#,
            BodyFormat::Json,
            Limits::BODY,
        )
        .unwrap();
        assert_eq!(raw.preconditions, Some(Preconditions { uid: Some("u".into()), resource_version: None }));
    }

    #[test]
    fn invalid_delete_options_body_returns_400() {
        for body in [
            r#"{"kind":"ConfigMap"}"#,
            r#"{"gracePeriodSeconds":"soon"}"#,
            r#"{"preconditions":[]}"#,
            r#"{"dryRun":"All"}"#,
            r#"{"dryRun":[1]}"#,
            r#"{"orphanDependents":"yes"}"#,
            r#"{"kind":3}"#,
            "[]",
            "{",
        ] {
            assert_eq!(
                delete_options(&Query::default(), body.as_bytes(), BodyFormat::Json, Limits::BODY)
                    .unwrap_err()
                    .code,
                400,
                "{body}"
            );
        }
    }

    fn list(raw: &str) -> Result<ListOptions, Status> {
        let query = Query::parse(Some(raw));
        list_options(&query, &RequestInfo::resolve(&http::Method::GET, "/api/v1/pods", &query))
    }

    #[test]
    fn invalid_selector_returns_400() {
        for raw in ["labelSelector=a+in+b", "fieldSelector=a"] {
            assert_eq!(list(raw).unwrap_err().code, 400, "{raw}");
        }
        let options = list("labelSelector=a%3Db&fieldSelector=metadata.name%3Dx").unwrap();
        assert!(!options.labels.is_empty() && options.fields.exact("metadata.name") == Some("x"));
    }

    #[test]
    fn selector_with_too_many_requirements_returns_400() {
        for (count, code) in [(MAX_REQUIREMENTS, None), (MAX_REQUIREMENTS + 1, Some(400))] {
            let labels: Vec<String> = (0..count).map(|i| format!("!k{i}")).collect();
            let fields = vec!["metadata.name!=x"; count];
            for raw in [
                format!("labelSelector={}", labels.join(",")),
                format!("fieldSelector={}", fields.join(",").replace('=', "%3D")),
            ] {
                assert_eq!(list(&raw).err().map(|status| status.code), code, "{count}");
            }
        }
    }

    #[test]
    fn invalid_number_parameter_returns_400() {
        for raw in ["limit=many", "timeoutSeconds=soon", "limit=1.5", "limit=99999999999999999999"] {
            assert_eq!(list(raw).unwrap_err().code, 400, "{raw}");
        }
        let options = list("limit=-3&timeoutSeconds=0&sendInitialEvents=false").unwrap();
        assert_eq!((options.limit, options.timeout, options.send_initial_events), (0, None, Some(false)));
    }
}
