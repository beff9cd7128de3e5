//! Documents of the service-account token issuer (requirement A-SA-24): OpenID Connect discovery and JWKS.

use apimachinery::status::Status;
use authproto::auth::KeysResponse;
use http::{HeaderValue, header};

use crate::request_context::RequestContext;
use crate::response::respond::ApiResponse;

/// Path of the discovery document.
pub(super) const DISCOVERY_PATH: &str = "/.well-known/openid-configuration";
/// Path of the JWKS.
pub(super) const KEYS_PATH: &str = "/openid/v1/jwks";

/// Returns the OpenID Connect discovery document; 404 if the issuer has none.
pub(super) async fn discovery_document(context: &RequestContext) -> Result<ApiResponse, Status> {
    let documents = issuer_documents(context).await?;
    Ok(public_document(documents.discovery_document, "application/json"))
}

/// Returns the JWKS; 404 if the issuer has none.
pub(super) async fn key_set(context: &RequestContext) -> Result<ApiResponse, Status> {
    Ok(public_document(issuer_documents(context).await?.jwks, "application/jwk-set+json"))
}

async fn issuer_documents(context: &RequestContext) -> Result<KeysResponse, Status> {
    context.api_state().auth.keys(&context.http_state.settings.server_address).await
}

fn public_document(document: Vec<u8>, media_type: &'static str) -> ApiResponse {
    if document.is_empty() {
        return ApiResponse::not_found();
    }
    let cache_control = HeaderValue::from_static("public, max-age=3600");
    ApiResponse::text_as(200, document, media_type).with_header(header::CACHE_CONTROL, cache_control)
}
