//! The handlers of discovery, health, version and metrics; `routes` selects them.

use std::collections::BTreeSet;
use std::sync::Arc;

use apimachinery::status::Status;
use flowcontrol::Dump;
use http::{HeaderValue, Method, StatusCode, header};
use serde_json::json;

use crate::backup;
use crate::negotiate::{self, Format, Offer, Shape, accept};
use crate::request_context::RequestContext;
use crate::request_info::HEALTH_ENDPOINTS;
use crate::response::chunked_document::{self, LazyDocument};
use crate::response::list_encoding::Encoding;
use crate::response::protobuf;
use crate::response::respond::ApiResponse;
use crate::{openapi, openid};
use discovery::{Document, DocumentEncoding, RELEASE};

/// Returns the paths of the server, as JSON for each `Accept`.
pub(super) fn root(context: &RequestContext) -> Result<ApiResponse, Status> {
    let mut paths: BTreeSet<String> = context.documents().discovery().paths().map(str::to_owned).collect();
    paths.extend(HEALTH_ENDPOINTS.map(|endpoint| format!("/{endpoint}")));
    paths.extend([openid::DISCOVERY_PATH, openid::KEYS_PATH, backup::PATH].map(str::to_owned));
    paths.extend(
        ["/metrics", "/metrics/slis", openapi::V2_PATH, openapi::V3_PATH, "/version"].map(str::to_owned),
    );
    Ok(ApiResponse::document(200, json!({"paths": paths}).to_string(), Format::Json))
}

/// Returns the version of Kubernetes that the API follows, the build, and the platform. The document exists as JSON
/// only.
///
/// # Errors
///
/// 406: the client does not accept JSON.
pub(super) fn version(context: &RequestContext) -> Result<ApiResponse, Status> {
    let build = &context.http_state.settings.build;
    let versions = &context.http_state.settings.compatibility_versions;
    if negotiate::preferred_media_type(&context.head.headers, &[Format::Json.media_type()]).is_none() {
        return Err(negotiate::json_only());
    }
    let version = json!({
        "major": "1",
        "minor": serving::compatibility::CURRENT.to_string(),
        "gitVersion": RELEASE,
        "gitCommit": build.commit_id(),
        "gitTreeState": build.tree_state(),
        "buildDate": build.date(),
        "goVersion": "",
        "compiler": build.compiler,
        "platform": build.platform(),
        "emulationMajor": "1",
        "emulationMinor": versions.emulated.to_string(),
        "minCompatibilityMajor": "1",
        "minCompatibilityMinor": versions.min_compatible.to_string(),
    });
    Ok(ApiResponse::document(200, version.to_string(), Format::Json))
}

/// Returns the metrics of this process, and those of authd that kube-apiserver also has.
pub(super) fn metrics(context: &RequestContext) -> Result<ApiResponse, Status> {
    let text = context.http_state.metrics.text() + &context.api_state().auth.connection().shared_metrics();
    Ok(ApiResponse::text_as(200, text, serving::metrics::MEDIA_TYPE))
}

/// Returns a line for each priority level.
pub(super) fn flow_levels(context: &RequestContext) -> Result<ApiResponse, Status> {
    flow_dump(context, Dump::levels)
}

/// Returns a line for each queue of the priority levels.
pub(super) fn flow_queues(context: &RequestContext) -> Result<ApiResponse, Status> {
    flow_dump(context, Dump::queues)
}

/// Returns a line for each request that waits or runs.
pub(super) fn flow_requests(context: &RequestContext) -> Result<ApiResponse, Status> {
    let with_details = !matches!(context.query.text("includeRequestDetails"), "" | "0" | "false");
    flow_dump(context, |dump| dump.requests(with_details))
}

fn flow_dump(context: &RequestContext, format: impl FnOnce(&Dump) -> String) -> Result<ApiResponse, Status> {
    match context.http_state.flow_control() {
        Some(control) => Ok(ApiResponse::text(200, format(&control.dump()))),
        None => Ok(ApiResponse::not_found()),
    }
}

/// Returns the results of health checks as metrics.
pub(super) fn service_level_indicators(context: &RequestContext) -> Result<ApiResponse, Status> {
    let text = context.http_state.request_metrics.health.text();
    Ok(ApiResponse::text_as(200, text, serving::metrics::MEDIA_TYPE))
}

/// Responds to a health check; the segments after the endpoint name a single check.
pub(super) fn health(context: &RequestContext, endpoint: &str) -> Result<ApiResponse, Status> {
    let checks = match endpoint {
        "livez" => &context.http_state.health.livez,
        "readyz" => &context.http_state.health.readyz,
        _ => &context.http_state.health.healthz,
    };
    let check = context.info.segments.get(1..).filter(|rest| !rest.is_empty()).map(|rest| rest.join("/"));
    let ends_with_own_name = context.api_state().names.behaviour.verbose_ends_with_own_name;
    let query = context.head.uri.query().unwrap_or("");
    let response = checks.answer(endpoint, check.as_deref(), query, ends_with_own_name);
    response.log(endpoint);
    let health_metrics = &context.http_state.request_metrics.health;
    health_metrics.record(endpoint, check.as_deref(), checks, &response);
    let options = HeaderValue::from_static("nosniff");
    Ok(ApiResponse::text(response.status, response.body).with_header(header::X_CONTENT_TYPE_OPTIONS, options))
}

/// Returns a discovery document.
///
/// # Errors
///
/// 404 for an unknown group or version, then 405 for methods other than GET and HEAD, then 406 for an `Accept` that
/// cannot be served.
pub(super) fn discovery(context: &RequestContext) -> Result<ApiResponse, Status> {
    let segments: Vec<&str> = context.info.segments.iter().map(String::as_str).collect();
    let path = format!("/{}", segments.join("/"));
    let documents = context.documents();
    let discovery = documents.discovery();
    let Some(document) = discovery.document(&path) else {
        return match segments.as_slice() {
            ["apis", group, ..] if !discovery.has_group(group) => Ok(ApiResponse::not_found()),
            _ => Err(Status::unknown_resource()),
        };
    };
    if !matches!(context.head.method, Method::GET | Method::HEAD) {
        return Err(Status::method_not_allowed());
    }
    let offer = if segments.len() == 1 { Offer::Discovery } else { Offer::Plain };
    let encoding_support = context.encoding_support();
    let negotiated = accept(&context.head.headers, offer, encoding_support).map_err(|status| {
        let is_of_aggregation_layer = matches!(segments.as_slice(), ["apis"] | ["apis", _]);
        if is_of_aggregation_layer { negotiate::only_accepted(encoding_support) } else { status }
    })?;
    let aggregated = match negotiated.shape {
        Shape::AggregatedDiscovery(version) => {
            discovery.aggregated(&path, version).map(|document| (document, version))
        }
        _ => None,
    };
    let vary = HeaderValue::from_static("Accept");
    let pretty = context.response_options.pretty;
    let audited = aggregated.map_or(document, |(document, _)| document);
    context.audit_response(|| Ok(audited.segments().concat()));
    let Some((document, version)) = aggregated else {
        return Ok(encoded_document(document, negotiated.format, pretty).with_header(header::VARY, vary));
    };
    let if_none_match = context.head.headers.get(header::IF_NONE_MATCH).map(HeaderValue::as_bytes);
    let response = if if_none_match == Some(document.etag.as_bytes()) {
        ApiResponse::empty(StatusCode::NOT_MODIFIED.as_u16())
    } else {
        let group = context.api_state().names.group("apidiscovery");
        let format = if document.is_encodable() { negotiated.format } else { Format::Json };
        let media_type = format!("{};g={group};v={version};as=APIGroupDiscoveryList", format.media_type());
        let media_type = HeaderValue::from_str(&media_type).map_err(Status::internal)?;
        encoded_document(document, format, pretty).with_header(header::CONTENT_TYPE, media_type)
    };
    let etag = HeaderValue::from_str(&document.etag).map_err(Status::internal)?;
    Ok(response.with_header(header::ETAG, etag).with_header(header::VARY, vary))
}

/// Returns a discovery document in the negotiated format.
///
/// A document that is too large for other encodings ([`Document::is_encodable`]) is sent as compact JSON. The
/// encodings of a document other than compact JSON are cached. Only a document that shares lists in memory
/// with other documents is encoded for each response, during the preparation of the response.
fn encoded_document(document: &Document, format: Format, pretty: bool) -> ApiResponse {
    if !document.is_encodable() {
        return compact_response(document);
    }
    let encoding = Encoding::for_format(format, pretty);
    let document_encoding = match encoding {
        Some(Encoding::Compact) => return compact_response(document),
        Some(Encoding::Indented) => DocumentEncoding::Indented,
        Some(Encoding::Yaml) => DocumentEncoding::Yaml,
        Some(Encoding::Cbor) => DocumentEncoding::Cbor,
        None => DocumentEncoding::Protobuf,
    };
    let encode = move |json: &[u8]| {
        let value = serde_json::from_slice(json).ok()?;
        match encoding {
            Some(encoding) => Some(encoding.document(&value)),
            None => protobuf::document(&value),
        }
    };
    if document.has_shared_lists() {
        let segments = Arc::clone(document.segments());
        let encoded = LazyDocument::new(move || {
            let encoded = encode(&segments.concat());
            encoded.ok_or_else(|| Status::internal("the discovery document cannot be encoded"))
        });
        return ApiResponse::list(Box::new(encoded), format);
    }
    match document.encoded(document_encoding, encode) {
        Some(encoded) => ApiResponse::shared(200, encoded, format.media_type()),
        None => compact_response(document),
    }
}

/// Returns a discovery document as compact JSON. Its segments are sent without joining them in memory.
fn compact_response(document: &Document) -> ApiResponse {
    match &**document.segments() {
        [whole] => ApiResponse::shared(200, whole.clone(), Format::Json.media_type()),
        _ => ApiResponse::list(chunked_document::segment_source(document.segments()), Format::Json),
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::names::{Names, Preset};
    use apimachinery::object::Object;
    use kinds::Registry;
    use serde_json::Value;

    use super::*;
    use crate::response::respond::ResponseOptions;
    use discovery::Discovery;

    const PROTOBUF: Format = Format::Protobuf("application/vnd.kubernetes.protobuf");

    /// Returns discovery with a custom kind that has long short names.
    fn discovery(short_names: usize) -> Discovery {
        let short_names: Vec<String> = (0..short_names).map(|i| format!("short-name-{i}")).collect();
        let definition = json!({"metadata": {"name": "widgets.example.com"},
            "spec": {"group": "example.com", "scope": "Cluster",
                "versions": [{"name": "v1", "served": true, "storage": true}]},
            "status": {"acceptedNames": {"plural": "widgets", "singular": "widget", "kind": "Widget",
                "listKind": "WidgetList", "shortNames": short_names}}});
        let names = Arc::new(Names::new(Preset::Kubernetes, "").unwrap());
        let definition = Object::from_value(definition).unwrap();
        let resources = kinds::custom::resources(&definition, &names).unwrap();
        Discovery::new(
            &Registry::new(&names).with_custom(resources),
            &names,
            "127.0.0.1:1",
            true,
            &Default::default(),
        )
    }

    #[test]
    fn document_with_shared_lists_is_encoded_during_preparation() {
        let discovery = discovery(1_000);
        let document = discovery.document("/apis/example.com/v1").unwrap();
        assert!(document.has_shared_lists() && document.is_encodable());
        for (format, pretty) in
            [(Format::Json, true), (Format::Yaml, false), (Format::Cbor, false), (PROTOBUF, false)]
        {
            let response_options = ResponseOptions { pretty, gzip: false };
            let mut response = encoded_document(document, format, pretty);
            assert!(response.is_costly(response_options), "{format:?}");
            response.prepare(response_options);
            assert_eq!(response.code(), 200, "{format:?}");
        }
        let response = encoded_document(document, Format::Json, false);
        assert!(!response.is_costly(ResponseOptions { pretty: false, gzip: false }));
    }

    #[test]
    fn large_document_with_shared_lists_is_sent_as_compact_json() {
        let discovery = discovery(400_000);
        let document = discovery.document("/apis/example.com/v1").unwrap();
        assert!(document.has_shared_lists() && !document.is_encodable());
        let response = encoded_document(document, Format::Yaml, false);
        assert!(!response.is_costly(ResponseOptions { pretty: false, gzip: false }));
    }

    #[test]
    fn discovery_documents_have_a_protobuf_message() {
        let discovery = discovery(0);
        let plain = ["/api", "/api/v1", "/apis", "/apis/apps", "/apis/apps/v1"];
        let plain = plain.iter().filter_map(|path| discovery.document(path));
        let aggregated =
            ["v2", "v2beta1"].into_iter().filter_map(|version| discovery.aggregated("/apis", version));
        let documents: Vec<&Document> = plain.chain(aggregated).collect();
        assert_eq!(documents.len(), 7);
        for document in documents {
            let value: Value = serde_json::from_slice(&document.text()).unwrap();
            assert!(protobuf::document(&value).is_some(), "{}", value["kind"]);
        }
    }
}
