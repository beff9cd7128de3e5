//! Non-resource paths: discovery, health, version, metrics.

use std::collections::BTreeSet;

use apimachinery::status::Status;
use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode, header};
use serde_json::{Value, json};

use super::encoding::Encoding;
use super::exchange::Exchange;
use super::negotiate::{Format, Offer, Shape, accept};
use super::protobuf;
use super::respond::Answer;
use crate::discovery::{Document, DocumentEncoding, RELEASE};

/// The health check endpoints.
pub(super) const HEALTH: [&str; 3] = ["livez", "readyz", "healthz"];

/// Handles a non-resource request.
pub(super) fn answer(exchange: &Exchange) -> Result<Answer, Status> {
    let segments: Vec<&str> = exchange.info.segments.iter().map(String::as_str).collect();
    let answer = match segments.as_slice() {
        [] => root(exchange),
        ["version"] => version(exchange),
        ["metrics"] => metrics(exchange),
        [endpoint, rest @ ..] if HEALTH.contains(endpoint) => return health(exchange, endpoint, rest),
        ["api" | "apis", ..] => return discovery(exchange, &segments),
        _ => return Ok(not_found()),
    };
    reading(exchange)?;
    answer
}

/// Returns 404 in plain text, for an unknown path outside the API.
pub(super) fn not_found() -> Answer {
    Answer::text(404, "404 page not found\n")
}

/// Rejects methods other than GET and HEAD.
fn reading(exchange: &Exchange) -> Result<(), Status> {
    match exchange.head.method {
        Method::GET | Method::HEAD => Ok(()),
        _ => Err(Status::method_not_allowed()),
    }
}

/// Returns a document that is no API kind.
fn plain(exchange: &Exchange, value: &Value) -> Result<Answer, Status> {
    let negotiated = accept(&exchange.head.headers, Offer::Document, exchange.dialect())?;
    Ok(Answer::document(200, value.to_string(), negotiated.format))
}

fn root(exchange: &Exchange) -> Result<Answer, Status> {
    let mut paths: BTreeSet<String> = exchange.plane.discovery.paths().map(str::to_owned).collect();
    for endpoint in HEALTH {
        paths.insert(format!("/{endpoint}"));
    }
    paths.extend([super::openid::DISCOVERY, super::openid::KEYS].map(str::to_owned));
    paths.extend(["/metrics", "/openapi/v2", "/openapi/v3", "/version"].map(str::to_owned));
    plain(exchange, &json!({"paths": paths}))
}

fn version(exchange: &Exchange) -> Result<Answer, Status> {
    plain(
        exchange,
        &json!({
            "major": "1",
            "minor": "33",
            "gitVersion": RELEASE,
            "gitCommit": "",
            "gitTreeState": "",
            "buildDate": "",
            "goVersion": "",
            "compiler": "rustc",
            "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
            "emulationMajor": "1",
            "emulationMinor": "33",
            "minCompatibilityMajor": "1",
            "minCompatibilityMinor": "32",
        }),
    )
}

/// Returns the metrics of this process and authd's counters of configuration reloads.
fn metrics(exchange: &Exchange) -> Result<Answer, Status> {
    let plane = &exchange.plane;
    let text = plane.metrics.text() + &plane.auth.reload_metrics();
    Ok(Answer::text_as(200, text, serving::metrics::MEDIA_TYPE))
}

fn health(exchange: &Exchange, endpoint: &str, rest: &[&str]) -> Result<Answer, Status> {
    reading(exchange)?;
    let checks = match endpoint {
        "livez" => &exchange.plane.health.livez,
        "readyz" => &exchange.plane.health.readyz,
        _ => &exchange.plane.health.healthz,
    };
    let check = (!rest.is_empty()).then(|| rest.join("/"));
    let own_name = exchange.plane.names.behaviour.verbose_ends_with_own_name;
    let query = exchange.head.uri.query().unwrap_or("");
    let answer = checks.answer(endpoint, check.as_deref(), query, own_name);
    answer.log(endpoint);
    let options = HeaderValue::from_static("nosniff");
    Ok(Answer::text(answer.status, answer.body).with_header(header::X_CONTENT_TYPE_OPTIONS, options))
}

fn discovery(exchange: &Exchange, segments: &[&str]) -> Result<Answer, Status> {
    let path = format!("/{}", segments.join("/"));
    let discovery = &exchange.plane.discovery;
    let Some(document) = discovery.document(&path) else {
        return match segments {
            ["apis", group, ..] if !discovery.knows_group(group) => Ok(not_found()),
            _ => Err(Status::unknown_resource()),
        };
    };
    reading(exchange)?;
    let offer = if segments.len() == 1 { Offer::Discovery } else { Offer::Plain };
    let negotiated = accept(&exchange.head.headers, offer, exchange.dialect())?;
    let aggregated = match negotiated.shape {
        Shape::AggregatedDiscovery(version) => {
            discovery.aggregated(&path, version).map(|document| (document, version))
        }
        _ => None,
    };
    let vary = HeaderValue::from_static("Accept");
    let Some((document, version)) = aggregated else {
        return Ok(encoded(exchange, document, negotiated.format).with_header(header::VARY, vary));
    };
    let known = exchange.head.headers.get(header::IF_NONE_MATCH).map(HeaderValue::as_bytes);
    let answer = if known == Some(document.etag.as_bytes()) {
        Answer::empty(StatusCode::NOT_MODIFIED.as_u16())
    } else {
        let group = exchange.plane.names.group("apidiscovery");
        let media_type =
            format!("{};g={group};v={version};as=APIGroupDiscoveryList", negotiated.format.media_type());
        let media_type = HeaderValue::from_str(&media_type).map_err(Status::internal)?;
        encoded(exchange, document, negotiated.format).with_header(header::CONTENT_TYPE, media_type)
    };
    let etag = HeaderValue::from_str(&document.etag).map_err(Status::internal)?;
    Ok(answer.with_header(header::ETAG, etag).with_header(header::VARY, vary))
}

/// Encodes a document as negotiated. Its encodings are made once and shared by all responses.
fn encoded(exchange: &Exchange, document: &Document, format: Format) -> Answer {
    let Some(encoding) = Encoding::of(format, exchange.wishes.pretty) else {
        let message = document.encoded(DocumentEncoding::Protobuf, |json| {
            let value = serde_json::from_slice(json).unwrap_or_default();
            protobuf::document(&value).unwrap_or_default().into()
        });
        // Empty: the type has no Protobuf message.
        return match message.is_empty() {
            true => encoded(exchange, document, Format::Json),
            false => Answer::shared(200, message, format.media_type()),
        };
    };
    let kept = match encoding {
        Encoding::Compact => return Answer::shared(200, document.body.clone(), format.media_type()),
        Encoding::Indented => DocumentEncoding::Indented,
        Encoding::Yaml => DocumentEncoding::Yaml,
        Encoding::Cbor => DocumentEncoding::Cbor,
    };
    let encode = |json: &Bytes| encoding.document(&serde_json::from_slice(json).unwrap_or_default()).into();
    Answer::shared(200, document.encoded(kept, encode), format.media_type())
}
