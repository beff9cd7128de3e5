//! Subject of a PKCS #10 certificate request.
//! CertificateSigningRequests carry the request as base64 of PEM.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer as _;

/// Subject of a certificate request.
pub(crate) struct Subject {
    /// First common name.
    pub(crate) common_name: String,
    /// Organizations.
    pub(crate) organizations: Vec<String>,
}

/// Parses the subject of a certificate request.
///
/// # Errors
///
/// The defect of the request.
pub(crate) fn subject(encoded: &str) -> Result<Subject, String> {
    let text = STANDARD.decode(encoded).map_err(|error| error.to_string())?;
    let pem = x509_parser::pem::parse_x509_pem(&text).ok().map(|(_, pem)| pem);
    let pem = pem.filter(|pem| pem.label == "CERTIFICATE REQUEST");
    let pem = pem.ok_or("PEM block type must be CERTIFICATE REQUEST")?;
    let malformed = |error| format!("malformed certificate request: {error}");
    let (_, request) = X509CertificationRequest::from_der(&pem.contents).map_err(malformed)?;
    let subject = &request.certification_request_info.subject;
    let organizations = subject.iter_organization().filter_map(|group| group.as_str().ok());
    let common_name = subject.iter_common_name().find_map(|name| name.as_str().ok());
    Ok(Subject {
        common_name: common_name.unwrap_or_default().to_owned(),
        organizations: organizations.map(str::to_owned).collect(),
    })
}
