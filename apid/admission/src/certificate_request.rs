//! Identity of a PKCS #10 certificate request.
//! CertificateSigningRequests carry the request as base64 of PEM.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serving::certs::requests::{RequestError, RequestedIdentity};

/// The error of a malformed certificate request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MalformedRequest {
    #[error(transparent)]
    Base64(#[from] base64::DecodeError),
    #[error(transparent)]
    Content(#[from] RequestError),
}

/// Parses the requested identity of a certificate request (base64 of PEM) in the same way as the signer.
///
/// # Errors
///
/// See [`MalformedRequest`].
pub(crate) fn identity(encoded: &str) -> Result<RequestedIdentity, MalformedRequest> {
    Ok(RequestedIdentity::from_pem(&STANDARD.decode(encoded)?)?)
}
