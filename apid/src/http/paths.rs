//! Non-resource paths: discovery, health, version, metrics.

use std::collections::BTreeSet;

use apimachinery::status::Status;
use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode, header};
use serde_json::{Value, json};

use super::backup;
use super::encoding::Encoding;
use super::negotiate::{Format, Offer, Shape, accept};
use super::protobuf;
use super::request_context::{HEALTH_ENDPOINTS, RequestContext};
use super::respond::ApiResponse;
use crate::discovery::{Document, DocumentEncoding, RELEASE};

/// Handles a non-resource request.
pub(super) fn handle(context: &RequestContext) -> Result<ApiResponse, Status> {
    let segments: Vec<&str> = context.info.segments.iter().map(String::as_str).collect();
    let response = match segments.as_slice() {
        [] => root(context),
        ["version"] => version(context),
        ["metrics"] => metrics(context),
        ["metrics", "slis"] => service_level_indicators(context),
        segments if segments == backup::SEGMENTS => return backup::handle(context),
        [endpoint, rest @ ..] if HEALTH_ENDPOINTS.contains(endpoint) => {
            return health(context, endpoint, rest);
        }
        ["api" | "apis", ..] => return discovery(context, &segments),
        _ => return Ok(ApiResponse::not_found()),
    };
    reading(context)?;
    response
}

/// Rejects methods other than GET and HEAD.
fn reading(context: &RequestContext) -> Result<(), Status> {
    match context.head.method {
        Method::GET | Method::HEAD => Ok(()),
        _ => Err(Status::method_not_allowed()),
    }
}

/// Returns a document that is no API kind.
fn plain(context: &RequestContext, value: &Value) -> Result<ApiResponse, Status> {
    let negotiated = accept(&context.head.headers, Offer::Document, context.encoding_support())?;
    Ok(ApiResponse::document(200, value.to_string(), negotiated.format))
}

fn root(context: &RequestContext) -> Result<ApiResponse, Status> {
    let mut paths: BTreeSet<String> = context.kinds.discovery().paths().map(str::to_owned).collect();
    for endpoint in HEALTH_ENDPOINTS {
        paths.insert(format!("/{endpoint}"));
    }
    paths.extend([super::openid::DISCOVERY, super::openid::KEYS].map(str::to_owned));
    paths.extend(
        ["/metrics", "/metrics/slis", "/openapi/v2", "/openapi/v3", "/store/backup", "/version"]
            .map(str::to_owned),
    );
    plain(context, &json!({"paths": paths}))
}

fn version(context: &RequestContext) -> Result<ApiResponse, Status> {
    plain(
        context,
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

/// Returns the metrics of this process, and those of authd that the reference server also has.
fn metrics(context: &RequestContext) -> Result<ApiResponse, Status> {
    let server_state = &context.server_state;
    let text = server_state.metrics.text() + &server_state.auth.authd_metrics();
    Ok(ApiResponse::text_as(200, text, serving::metrics::MEDIA_TYPE))
}

/// Returns the results of health checks as metrics.
fn service_level_indicators(context: &RequestContext) -> Result<ApiResponse, Status> {
    let text = context.server_state.request_metrics.health.text();
    Ok(ApiResponse::text_as(200, text, serving::metrics::MEDIA_TYPE))
}

fn health(context: &RequestContext, endpoint: &str, rest: &[&str]) -> Result<ApiResponse, Status> {
    reading(context)?;
    let checks = match endpoint {
        "livez" => &context.server_state.health.livez,
        "readyz" => &context.server_state.health.readyz,
        _ => &context.server_state.health.healthz,
    };
    let check = (!rest.is_empty()).then(|| rest.join("/"));
    let own_name = context.server_state.names.behaviour.verbose_ends_with_own_name;
    let query = context.head.uri.query().unwrap_or("");
    let response = checks.answer(endpoint, check.as_deref(), query, own_name);
    response.log(endpoint);
    let health_metrics = &context.server_state.request_metrics.health;
    health_metrics.record(endpoint, check.as_deref(), checks, &response);
    let options = HeaderValue::from_static("nosniff");
    Ok(ApiResponse::text(response.status, response.body).with_header(header::X_CONTENT_TYPE_OPTIONS, options))
}

fn discovery(context: &RequestContext, segments: &[&str]) -> Result<ApiResponse, Status> {
    let path = format!("/{}", segments.join("/"));
    let discovery = context.kinds.discovery();
    let Some(document) = discovery.document(&path) else {
        return match segments {
            ["apis", group, ..] if !discovery.has_group(group) => Ok(ApiResponse::not_found()),
            _ => Err(Status::unknown_resource()),
        };
    };
    reading(context)?;
    let offer = if segments.len() == 1 { Offer::Discovery } else { Offer::Plain };
    let negotiated = accept(&context.head.headers, offer, context.encoding_support())?;
    let aggregated = match negotiated.shape {
        Shape::AggregatedDiscovery(version) => {
            discovery.aggregated(&path, version).map(|document| (document, version))
        }
        _ => None,
    };
    let vary = HeaderValue::from_static("Accept");
    let Some((document, version)) = aggregated else {
        return Ok(encoded(context, document, negotiated.format).with_header(header::VARY, vary));
    };
    let known = context.head.headers.get(header::IF_NONE_MATCH).map(HeaderValue::as_bytes);
    let response = if known == Some(document.etag.as_bytes()) {
        ApiResponse::empty(StatusCode::NOT_MODIFIED.as_u16())
    } else {
        let group = context.server_state.names.group("apidiscovery");
        let media_type =
            format!("{};g={group};v={version};as=APIGroupDiscoveryList", negotiated.format.media_type());
        let media_type = HeaderValue::from_str(&media_type).map_err(Status::internal)?;
        encoded(context, document, negotiated.format).with_header(header::CONTENT_TYPE, media_type)
    };
    let etag = HeaderValue::from_str(&document.etag).map_err(Status::internal)?;
    Ok(response.with_header(header::ETAG, etag).with_header(header::VARY, vary))
}

/// Encodes a document as negotiated. Its encodings are made once and shared by all responses.
fn encoded(context: &RequestContext, document: &Document, format: Format) -> ApiResponse {
    let Some(encoding) = Encoding::of(format, context.response_options.pretty) else {
        let message = document.encoded(DocumentEncoding::Protobuf, |json| {
            let value = serde_json::from_slice(json).unwrap_or_default();
            protobuf::document(&value).unwrap_or_default().into()
        });
        // Empty: the type has no Protobuf message.
        return match message.is_empty() {
            true => encoded(context, document, Format::Json),
            false => ApiResponse::shared(200, message, format.media_type()),
        };
    };
    let kept = match encoding {
        Encoding::Compact => return ApiResponse::shared(200, document.body.clone(), format.media_type()),
        Encoding::Indented => DocumentEncoding::Indented,
        Encoding::Yaml => DocumentEncoding::Yaml,
        Encoding::Cbor => DocumentEncoding::Cbor,
    };
    let encode = |json: &Bytes| encoding.document(&serde_json::from_slice(json).unwrap_or_default()).into();
    ApiResponse::shared(200, document.encoded(kept, encode), format.media_type())
}
