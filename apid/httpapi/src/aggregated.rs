//! Requests for API versions that other servers serve.
//!
//! # Contract
//!
//! [`remote_of`] says whether another server serves the version of a path; [`handle`] sends an authorized request there.
//! The server gets the user in `X-Remote-*` headers and the client certificate of this server, and decides about the
//! request again. Bodies, streams and upgrades pass through.
//!
//! # Reference
//!
//! kube-aggregator: an API that is not available, or whose Service has no address, is answered with 503 in plain text.

use std::sync::Arc;

use aggregation::{Aggregation, RemoteApi, sorted_query};
use apimachinery::status::Status;
use forwarding::{Appearance, Forward, ForwardError, Forwarded};
use http::{HeaderValue, header};
use serving::body::Body;

use crate::request_context::RequestContext;
use crate::request_info::RequestInfo;
use crate::response::respond::{AUDIT_ID, ApiResponse};
use authclient::Authorized;

/// Returns the API version that another server serves, if the path is of such a version or of its OpenAPI document.
pub(super) fn remote_of(aggregation: &Aggregation, info: &RequestInfo) -> Option<Arc<RemoteApi>> {
    let attributes = &info.attributes;
    if attributes.resource_request {
        return aggregation.remote(&attributes.group, &attributes.version);
    }
    let segments: Vec<&str> = info.segments.iter().map(String::as_str).collect();
    match segments.as_slice() {
        ["api", version] => aggregation.remote("", version),
        ["apis", group, version] => aggregation.remote(group, version),
        ["openapi", "v3", "apis", group, version] => {
            let has_document = aggregation.openapi().v3_urls.contains_key(&format!("apis/{group}/{version}"));
            aggregation.remote(group, version).filter(|_| has_document)
        }
        _ => None,
    }
}

/// Sends a request to the server of its version.
///
/// # Errors
///
/// 400 for a request or a user that HTTP cannot carry; 508 for a request that has come back to this server.
pub(super) async fn handle(
    context: &RequestContext,
    remote: &RemoteApi,
    authorized: &Authorized,
    body: Body,
) -> Result<Result<Forwarded, ApiResponse>, Status> {
    // The loop is reported before the state of the server, so that a check of this server names the loop.
    context.api_state().forwarding.hops.check(&context.head.headers)?;
    let unavailable = || Ok(Err(plain_failure("service unavailable")));
    let Ok(transport) = remote.backend.transport() else { return unavailable() };
    if !remote.is_available {
        return unavailable();
    }
    let target = match remote.backend.target().await {
        Ok(target) => target,
        Err(error) => {
            tracing::debug!(name = remote.name, %error, "Service of an APIService has no address");
            context.http_state.aggregation.report_unreachable(remote);
            return unavailable();
        }
    };
    let is_bodiless = http_body::Body::is_end_stream(&body);
    let forward = Forward {
        hops: &context.api_state().forwarding.hops,
        transport,
        target: &target,
        path_and_query: path_and_query(context),
        client: context.connection.peer.map(|peer| peer.ip()),
        appearance: Appearance::Aggregated,
        user: Some(authorized.user()),
        extra_headers: HeaderValue::from_str(&context.id).ok().map(|id| (AUDIT_ID, id)).into_iter().collect(),
    };
    match forwarding::forward(&context.head, body, forward).await {
        Ok(forwarded) => Ok(Ok(forwarded)),
        Err(error @ (ForwardError::Request(_) | ForwardError::User(_) | ForwardError::Loop(_))) => {
            Err(error.into())
        }
        Err(error) => {
            // A client that breaks its own body breaks the exchange, too.
            let is_of_server = match &error {
                ForwardError::Unreachable(cause) | ForwardError::Dial(cause) => {
                    cause.is_connect() || is_bodiless
                }
                _ => false,
            };
            if is_of_server {
                context.http_state.aggregation.report_unreachable(remote);
            }
            Ok(Err(plain_failure(&error.to_string())))
        }
    }
}

fn path_and_query(context: &RequestContext) -> String {
    let uri = &context.head.uri;
    match uri.query().filter(|query| !query.is_empty()) {
        Some(query) => format!("{}?{}", uri.path(), sorted_query(query)),
        None => uri.path().to_owned(),
    }
}

/// Returns 503 in plain text.
fn plain_failure(text: &str) -> ApiResponse {
    ApiResponse::text(503, format!("{text}\n"))
        .with_header(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"))
}
