//! Identity of a PKCS #10 certificate request.
//! CertificateSigningRequests carry the request as base64 of PEM.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serving::certs::requests::RequestedIdentity;

/// Parses the identity of a certificate request in the same way as the signer.
///
/// # Errors
///
/// The defect of the request.
pub(crate) fn identity(encoded: &str) -> Result<RequestedIdentity, String> {
    let pem = STANDARD.decode(encoded).map_err(|error| error.to_string())?;
    RequestedIdentity::from_pem(&pem).map_err(|error| error.to_string())
}
