//! The routes outside the resource grammar: an axum router for discovery, health, version, metrics, backups,
//! OpenAPI and OpenID Connect documents.
//!
//! # Contract
//!
//! [`handle`] serves a request that names no resource. Requests for resources never reach the
//! router: `execution::route` reads from the attributes whether a request names a resource. [`serving::server`]
//! accepts the connections and limits them; axum has no setting for these limits.
//!
//! # Invariants
//!
//! INVARIANT (one reading): the router matches the segments that `request_info` parsed, not the path of the
//! request.

use std::convert::Infallible;
use std::sync::{Arc, LazyLock};

use apimachinery::status::Status;
use axum::extract::{Extension, Request};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, any, get, post};
use axum::{Router, body};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tower::Service as _;

use crate::request_context::RequestContext;
use crate::request_info::HEALTH_ENDPOINTS;
use crate::response::respond::ApiResponse;
use crate::{backup, openapi, openid, paths};

/// Bytes that are percent-encoded in a path segment: all except the unreserved characters of RFC 3986.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

static ROUTER: LazyLock<Router> = LazyLock::new(router);

/// The context of a routed request.
type Context = Extension<Arc<RequestContext>>;

/// Serves a request that names no resource.
///
/// # Errors
///
/// The Status of the route.
pub(super) async fn handle(context: &Arc<RequestContext>) -> Result<ApiResponse, Status> {
    if has_excess_slash(context) {
        return Ok(ApiResponse::not_found());
    }
    let mut request = Request::new(body::Body::empty());
    *request.method_mut() = context.head.method.clone();
    *request.uri_mut() = route_path(&context.info.segments).parse().map_err(Status::internal)?;
    request.extensions_mut().insert(Arc::clone(context));
    // A router without middleware is always ready.
    let result: Result<Response, Infallible> = ROUTER.clone().call(request).await;
    let Ok(response) = result;
    let result = response.extensions().get::<RouteResult>().and_then(RouteResult::take);
    result.unwrap_or_else(|| Err(Status::internal("the route has no response")))
}

/// Roots of paths that do not exist with a slash at the end. The segments of a path have no such slash.
const EXACT_ROOTS: [&str; 5] = ["healthz", "livez", "readyz", "metrics", "openapi"];

/// Whether the path ends with a slash although only the path without this slash exists, as in kube-apiserver.
fn has_excess_slash(context: &RequestContext) -> bool {
    let root = context.info.segments.first().map_or("", String::as_str);
    EXACT_ROOTS.contains(&root) && context.head.uri.path().ends_with('/')
}

/// Returns the path that consists of these segments, percent-encoded.
fn route_path(segments: &[String]) -> String {
    let mut path = String::new();
    for segment in segments {
        path.push('/');
        path.extend(utf8_percent_encode(segment, ENCODED));
    }
    if path.is_empty() { "/".to_owned() } else { path }
}

fn router() -> Router {
    let health = HEALTH_ENDPOINTS.into_iter().fold(Router::new(), |router, endpoint| {
        let route = document_route(move |context| paths::health(context, endpoint));
        router.route(&format!("/{endpoint}"), route.clone()).route(&format!("/{endpoint}/{{*check}}"), route)
    });
    // The discovery of an unknown group or version is 404 with each method.
    let discovery =
        any(|Extension(context): Context| async move { RouteResult::new(paths::discovery(&context)) });
    health
        .route("/", document_route(paths::root))
        .route("/version", document_route(paths::version))
        .route("/metrics", document_route(paths::metrics))
        .route("/debug/api_priority_and_fairness/dump_priority_levels", document_route(paths::flow_levels))
        .route("/debug/api_priority_and_fairness/dump_queues", document_route(paths::flow_queues))
        .route("/debug/api_priority_and_fairness/dump_requests", document_route(paths::flow_requests))
        .route("/metrics/slis", document_route(paths::service_level_indicators))
        .route(
            backup::PATH,
            post(async |Extension(context): Context| RouteResult::new(backup::handle(&context).await)),
        )
        .route("/api", discovery.clone())
        .route("/api/{*rest}", discovery.clone())
        .route("/apis", discovery.clone())
        .route("/apis/{*rest}", discovery)
        .route(openapi::V2_PATH, waiting_route(|context| Box::pin(openapi::version_2(context))))
        .route(openapi::V3_PATH, waiting_route(|context| Box::pin(openapi::version_3_index(context))))
        .route(
            &format!("{}/{{*document}}", openapi::V3_PATH),
            waiting_route(|context| Box::pin(openapi::group_version(context))),
        )
        .route(openid::DISCOVERY_PATH, waiting_route(|context| Box::pin(openid::discovery_document(context))))
        .route(openid::KEYS_PATH, waiting_route(|context| Box::pin(openid::key_set(context))))
        .fallback(async || RouteResult::new(Ok(ApiResponse::not_found())))
        .method_not_allowed_fallback(async || RouteResult::new(Err(Status::method_not_allowed())))
}

/// Returns a route for GET and HEAD whose handler does not wait.
fn document_route<F>(handler: F) -> MethodRouter
where
    F: Fn(&RequestContext) -> Result<ApiResponse, Status> + Clone + Send + Sync + 'static,
{
    get(move |Extension(context): Context| async move { RouteResult::new(handler(&context)) })
}

/// Returns a route for GET and HEAD whose handler waits.
fn waiting_route(handler: fn(&RequestContext) -> BoxFuture<'_, Result<ApiResponse, Status>>) -> MethodRouter {
    get(move |Extension(context): Context| async move { RouteResult::new(handler(&context).await) })
}

/// The result of a route. An extension of axum's response carries it through the router, because only
/// `respond` turns results into HTTP responses.
#[derive(Clone)]
struct RouteResult(Arc<Mutex<Option<Result<ApiResponse, Status>>>>);

impl RouteResult {
    fn new(result: Result<ApiResponse, Status>) -> Self {
        RouteResult(Arc::new(Mutex::new(Some(result))))
    }

    fn take(&self) -> Option<Result<ApiResponse, Status>> {
        self.0.lock().take()
    }
}

impl IntoResponse for RouteResult {
    fn into_response(self) -> Response {
        let mut response = Response::new(body::Body::empty());
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn route_path_encodes_reserved_characters_only() {
        let path = |segments: &[&str]| {
            route_path(&segments.iter().map(|segment| (*segment).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(path(&[]), "/");
        assert_eq!(path(&["openapi", "v3", "apis", "apps", "v1"]), "/openapi/v3/apis/apps/v1");
        assert_eq!(path(&[".well-known", "openid-configuration"]), openid::DISCOVERY_PATH);
        assert_eq!(path(&["livez", "a b?c{d}", "é"]), "/livez/a%20b%3Fc%7Bd%7D/%C3%A9");
    }
}
