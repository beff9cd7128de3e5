//! Rules for the certificates of a conversion webhook.

use apimachinery::field::{FieldError, FieldPath};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

/// Validates a bundle of PEM certificates in base64.
pub(super) fn validate_bundle(bundle: &str, path: &FieldPath) -> Option<FieldError> {
    let reason = check_bundle(bundle).err()?;
    Some(FieldError::invalid(path, bundle, &format!("unable to load root certificates: {reason}")))
}

/// Checks that a bundle has at least one certificate, and that each is well-formed.
fn check_bundle(bundle: &str) -> Result<(), &'static str> {
    const NO_CERTIFICATE: &str = "data does not contain any valid RSA or ECDSA certificates";
    let bytes = STANDARD.decode(bundle).map_err(|_| NO_CERTIFICATE)?;
    let text = String::from_utf8_lossy(&bytes);
    let mut count = 0_usize;
    for block in text.split(BEGIN).skip(1) {
        let Some((body, _)) = block.split_once(END) else { continue };
        let body: String = body.split_ascii_whitespace().collect();
        let Ok(der) = STANDARD.decode(body) else { continue };
        if !is_der_sequence(&der) {
            return Err("x509: malformed certificate");
        }
        count += 1;
    }
    if count == 0 { Err(NO_CERTIFICATE) } else { Ok(()) }
}

/// Whether bytes are one DER sequence of exactly their length.
fn is_der_sequence(der: &[u8]) -> bool {
    match der {
        [0x30, length, content @ ..] if *length < 0x80 => usize::from(*length) == content.len(),
        [0x30, length, rest @ ..] => {
            let digits = usize::from(length & 0x7f);
            digits <= 4
                && rest.split_at_checked(digits).is_some_and(|(digits, content)| {
                    digits.iter().fold(0_usize, |value, digit| value << 8 | usize::from(*digit))
                        == content.len()
                })
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bundle_needs_well_formed_certificate() {
        let pem = |der: &[u8]| {
            let text = format!("# comment\n{BEGIN}\n{}\n{END}\n", STANDARD.encode(der));
            check_bundle(&STANDARD.encode(text))
        };
        assert_eq!(pem(&[0x30, 2, 5, 0]), Ok(()));
        assert_eq!(pem(&[0x30, 0x81, 2, 5, 0]), Ok(()));
        assert_eq!(pem(&[0x30, 3, 5, 0]), Err("x509: malformed certificate"));
        assert!(check_bundle("YQ==").is_err_and(|reason| reason.contains("does not contain")));
    }
}
