//! Issuer metadata (OpenID Connect Discovery 1.0): its URL and the JWKS URL in it.

use apimachinery::codec::{DecodeError, json};
use serde_json::Value;

use super::validated::IssuerSettings;
use crate::tokens::jwk::LIMITS;

/// The metadata URL of an issuer (requirements A-OIDC-16, A-JWT-18, A-JWT-19).
pub(super) fn url(issuer: &IssuerSettings) -> String {
    if issuer.discovery_url.is_empty() {
        format!("{}/.well-known/openid-configuration", issuer.url.strip_suffix('/').unwrap_or(&issuer.url))
    } else {
        issuer.discovery_url.clone()
    }
}

/// The reason why a metadata document is rejected.
#[derive(Debug, thiserror::Error)]
pub enum MetadataError {
    /// The document is not JSON, or exceeds a limit.
    #[error("{0}")]
    Malformed(DecodeError),
    /// `issuer` or `jwks_uri` appears twice.
    #[error("duplicate member `{0}`")]
    Duplicate(String),
    /// A required member is absent or not a string.
    #[error("no string member `{0}`")]
    Missing(&'static str),
    /// The document belongs to a different issuer.
    #[error("issuer mismatch: `{0}`")]
    OtherIssuer(String),
    /// The JWKS URL is not https.
    #[error("`jwks_uri` does not begin with https://")]
    PlainHttp,
}

/// Returns the JWKS URL in the metadata document of an issuer.
///
/// # Errors
///
/// The document is malformed or has a different `issuer` (requirement A-JWT-22), or its JWKS URL is not
/// https.
pub fn keys_url(document: &[u8], issuer: &str) -> Result<String, MetadataError> {
    let decoded = json::decode(document, LIMITS).map_err(MetadataError::Malformed)?;
    if let Some(duplicate) =
        decoded.duplicates.iter().find(|path| matches!(path.as_str(), "issuer" | "jwks_uri"))
    {
        return Err(MetadataError::Duplicate(duplicate.clone()));
    }
    let text = |name: &'static str| {
        let value = decoded.value.get(name).and_then(Value::as_str);
        value.map(str::to_owned).ok_or(MetadataError::Missing(name))
    };
    let metadata_issuer = text("issuer")?;
    if metadata_issuer != issuer {
        return Err(MetadataError::OtherIssuer(metadata_issuer.chars().take(200).collect()));
    }
    let keys = text("jwks_uri")?;
    if keys.get(..8).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https://")) {
        Ok(keys)
    } else {
        Err(MetadataError::PlainHttp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discovery_url_follows_issuer_or_configuration() {
        for (issuer, discovery, expected) in [
            ("https://a.test", "", "https://a.test/.well-known/openid-configuration"),
            ("https://a.test/", "", "https://a.test/.well-known/openid-configuration"),
            ("https://a.test/realms/x", "", "https://a.test/realms/x/.well-known/openid-configuration"),
            ("https://a.test", "https://b.test/meta", "https://b.test/meta"),
        ] {
            let issuer = IssuerSettings {
                url: issuer.to_owned(),
                discovery_url: discovery.to_owned(),
                ..IssuerSettings::default()
            };
            assert_eq!(url(&issuer), expected);
        }
    }

    #[test]
    fn metadata_with_other_issuer_or_plain_http_jwks_uri_is_rejected() {
        let read = |text: &str| keys_url(text.as_bytes(), "https://a.test");
        assert_eq!(
            read(r#"{"issuer":"https://a.test","jwks_uri":"https://k.test/keys","x":[1]}"#).unwrap(),
            "https://k.test/keys"
        );
        for (text, expected) in [
            ("", "EOF while parsing"),
            ("[]", "no string member `issuer`"),
            (r#"{"issuer":1}"#, "no string member `issuer`"),
            (r#"{"issuer":"https://b.test","jwks_uri":"https://k"}"#, "issuer mismatch: `https://b.test`"),
            (r#"{"issuer":"https://a.test/","jwks_uri":"https://k"}"#, "issuer mismatch: `https://a.test/`"),
            (r#"{"issuer":"https://a.test"}"#, "no string member `jwks_uri`"),
            (
                r#"{"issuer":"https://a.test","jwks_uri":"http://k"}"#,
                "`jwks_uri` does not begin with https://",
            ),
            (r#"{"issuer":"https://b.test","issuer":"https://a.test"}"#, "duplicate member `issuer`"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }
}
