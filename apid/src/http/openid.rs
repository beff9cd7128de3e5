//! The documents of the issuer of service-account tokens (requirements A-SA-24): OpenID Connect discovery and the keys.

use apimachinery::status::Status;
use http::{HeaderValue, Method, header};

use super::exchange::Exchange;
use super::paths;
use super::respond::Answer;

/// Where the discovery document is.
pub(super) const DISCOVERY: &str = "/.well-known/openid-configuration";
/// Where the keys are.
pub(super) const KEYS: &str = "/openid/v1/jwks";

/// Whether a request is for one of the documents.
pub(super) fn is_asked(exchange: &Exchange) -> bool {
    matches!(exchange.head.uri.path(), DISCOVERY | KEYS)
}

/// Answers with a document; 404 when there is none. Which of the two is not a matter of negotiation.
pub(super) async fn answer(exchange: &Exchange) -> Result<Answer, Status> {
    if !matches!(exchange.head.method, Method::GET | Method::HEAD) {
        return Err(Status::method_not_allowed());
    }
    let plane = &exchange.plane;
    let documents = plane.auth.keys(&plane.server_address).await?;
    let (document, media_type) = match exchange.head.uri.path() {
        DISCOVERY => (documents.discovery_document, "application/json"),
        _ => (documents.jwks, "application/jwk-set+json"),
    };
    if document.is_empty() {
        return Ok(paths::not_found());
    }
    let cached = HeaderValue::from_static("public, max-age=3600");
    Ok(Answer::text_as(200, document, media_type).with_header(header::CACHE_CONTROL, cached))
}
