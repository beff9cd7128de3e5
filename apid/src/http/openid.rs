//! Documents of the service-account token issuer (A-SA-24): OpenID Connect discovery and JWKS.

use apimachinery::status::Status;
use http::{HeaderValue, Method, header};

use super::request_context::RequestContext;
use super::respond::ApiResponse;

/// Path of the discovery document.
pub(super) const DISCOVERY: &str = "/.well-known/openid-configuration";
/// Path of the JWKS.
pub(super) const KEYS: &str = "/openid/v1/jwks";

/// Whether a request is for one of the documents.
pub(super) fn is_openid_request(context: &RequestContext) -> bool {
    matches!(context.head.uri.path(), DISCOVERY | KEYS)
}

/// Handles a request for a document; 404 if it does not exist. The path alone selects the document.
pub(super) async fn handle(context: &RequestContext) -> Result<ApiResponse, Status> {
    if !matches!(context.head.method, Method::GET | Method::HEAD) {
        return Err(Status::method_not_allowed());
    }
    let server_state = &context.server_state;
    let documents = server_state.auth.keys(&server_state.server_address).await?;
    let (document, media_type) = match context.head.uri.path() {
        DISCOVERY => (documents.discovery_document, "application/json"),
        _ => (documents.jwks, "application/jwk-set+json"),
    };
    if document.is_empty() {
        return Ok(ApiResponse::not_found());
    }
    let cached = HeaderValue::from_static("public, max-age=3600");
    Ok(ApiResponse::text_as(200, document, media_type).with_header(header::CACHE_CONTROL, cached))
}
