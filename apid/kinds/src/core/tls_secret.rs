//! Warnings about the certificate and the key of a TLS secret.
//!
//! # Invariants
//!
//! INVARIANT (no secrets in warnings): a warning contains the types of PEM blocks, never their content.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::certificates::pem;

/// Returns the reason why servers cannot load the certificate and the key, which are in base64. None if they
/// can.
pub(super) fn defect(certificate: &str, key: &str) -> Option<String> {
    let (certificates, keys) = (labels(certificate), labels(key));
    if !certificates.iter().any(|label| label == "CERTIFICATE") {
        return Some(match certificates.as_slice() {
            [] => "tls: failed to find any PEM data in certificate input".to_owned(),
            [label] if label.ends_with("PRIVATE KEY") => {
                "tls: failed to find certificate PEM data in certificate input, \
                 but did find a private key; PEM inputs may have been switched"
                    .to_owned()
            }
            labels => format!(
                "tls: failed to find \"CERTIFICATE\" PEM block in certificate input after skipping PEM blocks of the \
                 following types: [{}]",
                labels.join(" ")
            ),
        });
    }
    if keys.iter().any(|label| label.ends_with("PRIVATE KEY")) {
        return None;
    }
    Some(match keys.as_slice() {
        [] => "tls: failed to find any PEM data in key input".to_owned(),
        [label] if label == "CERTIFICATE" => {
            "tls: found a certificate rather than a key in the PEM for the private key".to_owned()
        }
        labels => format!(
            "tls: failed to find PEM block with type ending in \"PRIVATE KEY\" in key input after skipping PEM blocks of \
             the following types: [{}]",
            labels.join(" ")
        ),
    })
}

/// Labels of the PEM blocks in a base64 value.
fn labels(base64: &str) -> Vec<String> {
    let bytes = BASE64.decode(base64).unwrap_or_default();
    pem::blocks(&String::from_utf8_lossy(&bytes)).into_iter().map(|block| block.label).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_without_usable_blocks_returns_defect() {
        let block =
            |label: &str| BASE64.encode(format!("-----BEGIN {label}-----\nYQ==\n-----END {label}-----\n"));
        let (certificate, key) = (block("CERTIFICATE"), block("RSA PRIVATE KEY"));
        assert_eq!(defect(&certificate, &key), None);
        for (certificate, key, reason) in [
            ("", &*key, "failed to find any PEM data in certificate input"),
            (&*key, &*key, "PEM inputs may have been switched"),
            (&block("X"), &*key, "the following types: [X]"),
            (&*certificate, "", "failed to find any PEM data in key input"),
            (&*certificate, &*certificate, "found a certificate rather than a key"),
            (&*certificate, &block("X"), "the following types: [X]"),
        ] {
            let found = defect(certificate, key).unwrap();
            assert!(found.starts_with("tls: ") && found.contains(reason), "{found}");
        }
    }
}
