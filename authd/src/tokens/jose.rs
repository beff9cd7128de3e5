//! JSON Web Signatures in compact form (RFC 7515).
//! Only the nine asymmetric algorithms of RFC 7518 are supported.
//!
//! # Contract
//!
//! [`SignedToken::parse`] decodes a token without trusting it; [`SignedToken::verify`] returns the payload if
//! a key verifies the signature. Base64url must be canonical and without padding. The header must not repeat
//! a member that is read here, and must have neither `crit` nor `b64`.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

use super::algorithm::Algorithm;
use super::keys::{SigningKey, VerifyingKey};

/// Limit in bytes of a token. Providers issue shorter tokens, and a request header cannot be so long.
pub const MAX_TOKEN_BYTES: usize = 256 * 1024;
/// Limit in bytes of a header in base64url; a token with a longer header is rejected.
const MAX_HEADER_BYTES: usize = 8 * 1024;

/// The reason why a text is not a supported signed token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenFormatError {
    /// The token does not have three parts.
    #[error("not a signed token of three parts")]
    NotCompact,
    /// The token is longer than [`MAX_TOKEN_BYTES`], or its encoded header longer than 8 KiB.
    #[error("the token is too long")]
    TooLong,
    /// A part is not base64url without padding; contains the name of the part.
    #[error("the {0} is not base64url without padding")]
    Base64(&'static str),
    /// The header is not valid JSON of the required form.
    #[error("the header cannot be read: {0}")]
    Header(String),
    /// The algorithm of the header is not supported.
    #[error("the algorithm `{0}` is not supported")]
    Algorithm(String),
    /// The header has `crit` or `b64`.
    #[error("unsupported critical header parameters")]
    Critical,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: Option<String>,
    #[serde(default)]
    typ: Option<String>,
    #[serde(default)]
    crit: Option<serde::de::IgnoredAny>,
    #[serde(default)]
    b64: Option<serde::de::IgnoredAny>,
}

/// A decoded token, not verified yet. Contains the token text: no `Debug`.
pub struct SignedToken<'a> {
    /// The signed text: header and payload as received.
    input: &'a str,
    /// `alg` of the header.
    pub algorithm: Algorithm,
    /// `kid` of the header, the key id; None if absent.
    pub kid: Option<String>,
    /// `typ` of the header, unmodified; None if absent.
    pub typ: Option<String>,
    payload: Vec<u8>,
    signature: Vec<u8>,
}

impl<'a> SignedToken<'a> {
    /// Decodes a token.
    ///
    /// # Errors
    ///
    /// [`TokenFormatError`].
    pub fn parse(token: &'a str) -> Result<Self, TokenFormatError> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(TokenFormatError::TooLong);
        }
        let (input, signature) = token.rsplit_once('.').ok_or(TokenFormatError::NotCompact)?;
        let (header, payload) = input.split_once('.').ok_or(TokenFormatError::NotCompact)?;
        if payload.contains('.') {
            return Err(TokenFormatError::NotCompact);
        }
        if header.len() > MAX_HEADER_BYTES {
            return Err(TokenFormatError::TooLong);
        }
        let decode =
            |text: &str, part| URL_SAFE_NO_PAD.decode(text).map_err(|_| TokenFormatError::Base64(part));
        let header = decode(header, "header")?;
        // The derived decoder rejects duplicates of the members of [`Header`].
        let header: Header =
            serde_json::from_slice(&header).map_err(|error| TokenFormatError::Header(error.to_string()))?;
        if header.crit.is_some() || header.b64.is_some() {
            return Err(TokenFormatError::Critical);
        }
        let Some(algorithm) = Algorithm::parse(&header.alg) else {
            return Err(TokenFormatError::Algorithm(header.alg.chars().take(32).collect()));
        };
        Ok(SignedToken {
            input,
            algorithm,
            kid: header.kid,
            typ: header.typ,
            payload: decode(payload, "payload")?,
            signature: decode(signature, "signature")?,
        })
    }

    /// Returns the unverified payload.
    pub fn unverified_payload(&self) -> &[u8] {
        &self.payload
    }

    /// Returns the payload if this key verifies the signature.
    pub fn verify(&self, key: &VerifyingKey) -> Option<&[u8]> {
        key.verify(self.algorithm, self.input.as_bytes(), &self.signature).then_some(&self.payload)
    }
}

/// Returns the unverified payload of a token with any header.
/// Returns None if the text does not have three parts, or the payload is not base64url.
pub fn unverified_payload(token: &str) -> Option<Vec<u8>> {
    let mut parts = token.split('.');
    let (_, payload, _, None) = (parts.next()?, parts.next()?, parts.next()?, parts.next()) else {
        return None;
    };
    URL_SAFE_NO_PAD.decode(payload).ok()
}

/// Signs claims and returns the compact form.
pub(super) fn sign(
    key: &SigningKey,
    header: &serde_json::Value,
    claims: &[u8],
) -> Result<String, aws_lc_rs::error::Unspecified> {
    let mut token = URL_SAFE_NO_PAD.encode(header.to_string());
    token.push('.');
    URL_SAFE_NO_PAD.encode_string(claims, &mut token);
    let signature = key.sign(token.as_bytes())?;
    token.push('.');
    URL_SAFE_NO_PAD.encode_string(signature, &mut token);
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(header: &str) -> String {
        format!("{}.{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode("{}"), "c2ln")
    }

    fn parse_error(token: &str) -> String {
        SignedToken::parse(token).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn malformed_jws_is_rejected_with_reason() {
        for (text, expected) in [
            ("", "not a signed token of three parts"),
            ("a.b", "not a signed token of three parts"),
            ("a.b.c.d", "not a signed token of three parts"),
            ("!.e30.e30", "the header is not base64url without padding"),
            ("e30=.e30.e30", "the header is not base64url without padding"),
        ] {
            assert_eq!(parse_error(text), expected, "{text}");
        }
        for (header, expected) in [
            (r#"{"alg":"none"}"#, "the algorithm `none` is not supported"),
            (r#"{"alg":"None"}"#, "the algorithm `None` is not supported"),
            (r#"{"alg":"HS256"}"#, "the algorithm `HS256` is not supported"),
            (r#"{"alg":"EdDSA"}"#, "the algorithm `EdDSA` is not supported"),
            (r#"{"alg":"rs256"}"#, "the algorithm `rs256` is not supported"),
            (r#"{"alg":"RS256","crit":["exp"]}"#, "unsupported critical header parameters"),
            (r#"{"alg":"RS256","b64":false}"#, "unsupported critical header parameters"),
        ] {
            assert_eq!(parse_error(&token(header)), expected, "{header}");
        }
        for header in [r#"{"alg":"RS256","alg":"none"}"#, r#"{}"#, "[]", "{", r#"{"alg":1}"#] {
            assert!(parse_error(&token(header)).starts_with("the header cannot be read"), "{header}");
        }
        assert_eq!(parse_error(&"a".repeat(MAX_TOKEN_BYTES + 1)), "the token is too long");
        assert_eq!(parse_error(""), TokenFormatError::NotCompact.to_string());
        let long = format!(r#"{{"alg":"RS256","x":"{}"}}"#, "a".repeat(MAX_HEADER_BYTES));
        assert_eq!(parse_error(&token(&long)), "the token is too long");
    }

    #[test]
    fn jose_algorithms_parse_their_names() {
        for algorithm in Algorithm::ALL {
            assert_eq!(Algorithm::parse(algorithm.as_str()), Some(algorithm));
            let header = format!(r#"{{"alg":"{algorithm}","kid":"k","typ":"JWT"}}"#);
            let token = token(&header);
            let signed = SignedToken::parse(&token).map_err(|error| error.to_string()).unwrap();
            assert_eq!((signed.algorithm, signed.kid.as_deref()), (algorithm, Some("k")));
            assert_eq!(signed.unverified_payload(), b"{}");
        }
    }
}
