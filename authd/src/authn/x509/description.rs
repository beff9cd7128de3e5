//! Descriptions of rejected certificates for the log and the audit log.
//!
//! # Contract
//!
//! [`describe`] names subject, issuer, serial number and SHA-256 of a certificate, so that operators find the
//! certificate. [`describe_failure`] states the failed check in words.
//!
//! # Invariants
//!
//! INVARIANT (text only): the certificate is not verified. A description never identifies a user, has no
//! control characters and is at most some hundred characters long.

use apimachinery::field::quote;
use apimachinery::printable::is_unprintable;
use jiff::Timestamp;
use rustls_pki_types::UnixTime;
use x509_parser::prelude::{FromDer, X509Certificate, X509Name};

use crate::tokens::sha256_hex;

/// Maximum number of bytes of a serial number in a description. RFC 5280 allows 20.
const MAX_SERIAL_BYTES: usize = 24;

/// Names subject, issuer, serial number and fingerprint of a certificate in DER.
pub(super) fn describe(der: &[u8]) -> String {
    let fingerprint = sha256_hex(der);
    let Ok((_, certificate)) = X509Certificate::from_der(der) else {
        return format!("certificate with SHA-256 {fingerprint}");
    };
    let serial: Vec<String> =
        certificate.raw_serial().iter().take(MAX_SERIAL_BYTES).map(|byte| format!("{byte:02x}")).collect();
    format!(
        "certificate of {} (issuer {}, serial {}, SHA-256 {fingerprint})",
        name_text(certificate.subject()),
        name_text(certificate.issuer()),
        serial.join(":"),
    )
}

/// Returns a distinguished name as a quoted text: long names are truncated, characters without a glyph escaped.
pub(super) fn name_text(name: &X509Name<'_>) -> String {
    // `quote` escapes control characters.
    let visible = |c: char| if is_unprintable(c) && !c.is_control() { '\u{fffd}' } else { c };
    quote(&name.to_string().chars().map(visible).collect::<String>())
}

/// States in words why a certificate chain is not valid.
pub(super) fn describe_failure(error: &webpki::Error) -> String {
    use webpki::Error;
    match error {
        Error::CertExpired { not_after, .. } => format!("expired on {}", date(*not_after)),
        Error::CertNotValidYet { not_before, .. } => format!("not valid before {}", date(*not_before)),
        Error::UnknownIssuer => "signed by an unknown CA".to_owned(),
        Error::InvalidSignatureForPublicKey => "not signed with the key of the CA of this name".to_owned(),
        Error::CaUsedAsEndEntity => "the certificate of a CA, not of a client".to_owned(),
        Error::EndEntityUsedAsCa => "signed by a certificate that is not of a CA".to_owned(),
        Error::RequiredEkuNotFoundContext(_) | Error::EmptyEkuExtension => {
            "not issued for client authentication (extended key usage)".to_owned()
        }
        Error::PathLenConstraintViolated => "longer than the path length that a CA allows".to_owned(),
        Error::NameConstraintViolation => "outside of the names that a CA may sign".to_owned(),
        Error::UnsupportedCriticalExtension => "has an unknown critical extension".to_owned(),
        Error::UnsupportedCertVersion => "not of X.509 version 3".to_owned(),
        Error::BadDer
        | Error::BadDerTime
        | Error::TrailingData(_)
        | Error::ExtensionValueInvalid
        | Error::InvalidCertValidity
        | Error::InvalidSerialNumber
        | Error::SignatureAlgorithmMismatch => format!("malformed: {error}"),
        Error::UnsupportedSignatureAlgorithmContext(_)
        | Error::UnsupportedSignatureAlgorithmForPublicKeyContext(_) => {
            "signed with an unsupported algorithm".to_owned()
        }
        other => other.to_string(),
    }
}

/// Returns a time as text.
pub(super) fn date(time: UnixTime) -> String {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).map_or_else(|_| format!("second {seconds}"), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serving::certs::Authority;
    use std::time::Duration;

    #[test]
    fn description_names_subject_issuer_serial_and_fingerprint_without_control_characters() {
        let dir = tempfile::tempdir().unwrap();
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let (cert, key) = (dir.path().join("ca.crt"), dir.path().join("ca.key"));
        let authority = Authority::ensure(&cert, &key, "clients", now).unwrap();
        let name = "ja\u{202e}ne\u{200b}\n\"x";
        let pair = authority.client(name, &["dev".to_owned()], Duration::from_secs(60), now).unwrap();
        let der: rustls_pki_types::CertificateDer<'_> =
            rustls_pki_types::pem::PemObject::from_pem_slice(pair.cert.as_bytes()).unwrap();
        let text = describe(&der);
        assert!(text.contains("dev") && text.contains("CN=clients"), "{text}");
        assert!(text.contains("serial ") && text.contains(&sha256_hex(&der)), "{text}");
        assert!(!text.contains(['\u{202e}', '\u{200b}', '\n']) && text.contains("\\n\\\"x"), "{text}");
        assert!(describe(b"no certificate").starts_with("certificate with SHA-256 "));
    }
}
