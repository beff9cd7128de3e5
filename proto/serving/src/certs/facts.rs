//! Facts of certificates, for listings and for decisions about their renewal and revocation.

use std::path::Path;
use std::time::Duration;

use aws_lc_rs::digest;
use jiff::Timestamp;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::prelude::{FromDer, X509Certificate, X509Name};
use x509_parser::x509::SubjectPublicKeyInfo;

use super::{
    Authority, BACKDATING, CertError, alternative_names, end_of_validity, is_authority, is_renewal_due,
    is_signed_by, pem, since_epoch, subject_key,
};

/// A certificate and what people read of it. The certificate is not verified.
#[derive(Clone, Debug)]
pub struct CertificateFacts {
    /// The certificate, DER.
    pub der: Vec<u8>,
    /// Subject as text, for example `O=developers, CN=alice`.
    pub subject: String,
    /// Subject, DER.
    pub subject_der: Vec<u8>,
    /// Last common name of the subject; `""` without one.
    pub common_name: String,
    /// Issuer as text.
    pub issuer: String,
    /// Serial number as in the certificate, perhaps with leading zeros.
    pub serial: Vec<u8>,
    /// Start of the validity.
    pub not_before: Timestamp,
    /// End of the validity.
    pub not_after: Timestamp,
    /// SHA-256 of the certificate, hexadecimal.
    pub fingerprint: String,
    /// DNS names and addresses.
    pub names: Vec<String>,
    /// Whether the certificate is that of a CA.
    pub is_authority: bool,
    /// Whether the certificate is issued for the authentication of clients.
    pub is_client: bool,
}

impl CertificateFacts {
    /// Reads all certificates of a PEM file.
    ///
    /// # Errors
    ///
    /// The file is unreadable, or one of its certificates is malformed.
    pub fn read_all(path: &Path) -> Result<Vec<Self>, CertError> {
        let content = std::fs::read(path).map_err(|error| CertError::unusable(path, error))?;
        let read = |der: Result<CertificateDer<'static>, _>| {
            let der = der.map_err(|error: rustls_pki_types::pem::Error| CertError::unusable(path, error))?;
            Self::read(&der).ok_or_else(|| CertError::unusable(path, "not an X.509 certificate"))
        };
        CertificateDer::pem_slice_iter(&content).map(read).collect()
    }

    /// Reads the first certificate of a PEM text.
    ///
    /// # Errors
    ///
    /// The text has no certificate, or the certificate is malformed.
    pub fn of_pem(text: &str) -> Result<Self, CertError> {
        let der = CertificateDer::from_pem_slice(text.as_bytes()).ok();
        der.and_then(|der| Self::read(&der))
            .ok_or_else(|| CertError::Generate("the new certificate cannot be parsed".to_owned()))
    }

    /// Reads a certificate in DER; None if it is malformed.
    pub fn read(der: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let usages = certificate.extended_key_usage().ok().flatten();
        Some(CertificateFacts {
            subject: certificate.subject().to_string(),
            subject_der: certificate.subject().as_raw().to_vec(),
            common_name: common_name(certificate.subject()),
            issuer: certificate.issuer().to_string(),
            serial: certificate.raw_serial().to_vec(),
            not_before: Timestamp::from_second(certificate.validity().not_before.timestamp()).ok()?,
            not_after: end_of_validity(&certificate).ok()?,
            fingerprint: hexadecimal(digest::digest(&digest::SHA256, der).as_ref(), ""),
            names: alternative_names(&certificate),
            is_authority: is_authority(&certificate),
            is_client: !is_authority(&certificate) && usages.is_none_or(|usages| usages.value.client_auth),
            der: der.to_vec(),
        })
    }

    /// The serial number as in log lines of rejected certificates: `4f:00:a1`.
    pub fn serial_text(&self) -> String {
        hexadecimal(&self.serial, ":")
    }

    /// Time from the creation of the certificate to its end.
    pub fn lifetime(&self) -> Duration {
        since_epoch(self.not_after).saturating_sub(since_epoch(self.not_before) + BACKDATING)
    }

    /// Whether the certificate is due for renewal.
    pub fn is_renewal_due(&self, now: Timestamp) -> bool {
        is_renewal_due(self.not_before, self.not_after, now)
    }

    /// The certificate as PEM.
    pub fn pem(&self) -> String {
        pem(&self.der)
    }

    /// Whether the authority with this certificate issued the certificate, by the names in both. Without a key identifier
    /// the signature decides.
    pub fn is_issued_by(&self, authority: &CertificateFacts) -> bool {
        let parsed = (X509Certificate::from_der(&self.der), X509Certificate::from_der(&authority.der));
        let (Ok((_, certificate)), Ok((_, authority))) = parsed else { return false };
        let (subject, key_id) = (authority.subject().as_raw(), subject_key(&authority));
        is_signed_by(&certificate, subject, key_id, authority.public_key())
    }
}

impl Authority {
    /// Whether this authority, which signs, has issued a certificate. Without a key identifier the signature decides.
    pub fn is_issuer_of(&self, certificate: &CertificateFacts) -> bool {
        let parsed =
            (X509Certificate::from_der(&certificate.der), SubjectPublicKeyInfo::from_der(&self.public_key));
        let (Ok((_, certificate)), Ok((_, public_key))) = parsed else { return false };
        is_signed_by(&certificate, &self.subject, self.key_id.as_deref(), &public_key)
    }

    /// Whether this authority or an earlier one of its bundle has issued a certificate.
    pub fn is_in_bundle_of(&self, certificate: &CertificateFacts) -> bool {
        X509Certificate::from_der(&certificate.der)
            .is_ok_and(|(_, certificate)| self.end_of_issuer(&certificate).is_some())
    }
}

/// Returns a serial number without leading zeros, as numbers are compared.
pub fn without_leading_zeros(serial: &[u8]) -> &[u8] {
    let zeros = serial.iter().take_while(|byte| **byte == 0).count();
    serial.get(zeros..).unwrap_or_default()
}

/// Returns bytes in hexadecimal with a separator between them.
fn hexadecimal(bytes: &[u8], separator: &str) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(separator)
}

fn common_name(name: &X509Name<'_>) -> String {
    let names = name.iter_common_name().filter_map(|name| name.as_str().ok());
    names.last().unwrap_or_default().to_owned()
}
