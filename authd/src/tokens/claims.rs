//! The claims of service-account tokens (requirements A-SA-22).

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The failed check of a service-account token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// No configured key verifies the signature.
    #[error("no key of --service-account-key-file verifies the signature")]
    Signature,
    /// The payload is not an object of claims.
    #[error("the claims cannot be read: {0}")]
    Payload(String),
    /// A required claim is missing.
    #[error("the claim `{0}` is missing")]
    MissingClaim(String),
    /// A claim is malformed.
    #[error("the claim `{name}` cannot be read: {reason}")]
    MalformedClaim {
        /// The name of the claim.
        name: String,
        /// The reason why the claim cannot be read.
        reason: String,
    },
    /// A time claim is not a number; contains its name.
    #[error("the claim `{0}` is not a number of seconds")]
    TimeClaim(String),
    /// The claim `sub` and the private claims name different service accounts.
    #[error("the claim `sub` and the private claims name different accounts")]
    Subject,
    /// The token has expired.
    #[error("the token has expired")]
    Expired,
    /// The time of `nbf` or `iat` is ahead by more than the allowed clock skew.
    #[error("the token is not valid yet")]
    NotYetValid,
}

/// An object in the private claims.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct ObjectIdentity {
    /// The name of the object.
    pub name: String,
    /// The uid of the object; may be empty.
    #[serde(default)]
    pub uid: String,
}

/// The private claims of a token: its service account and the objects that it is bound to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct PrivateClaims {
    /// The namespace of the service account.
    pub namespace: String,
    /// The node of the pod, or the node that the token is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<ObjectIdentity>,
    /// The pod that the token is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<ObjectIdentity>,
    /// The Secret that the token is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<ObjectIdentity>,
    /// The service account.
    pub serviceaccount: ObjectIdentity,
    /// Unix time in seconds. Later uses of the token are logged, because the client should have refreshed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warnafter: Option<i64>,
}

/// The verified claims of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    /// The audiences of the token.
    pub audiences: Vec<String>,
    /// The expiry; None for a legacy token without `exp`.
    pub expires: Option<Timestamp>,
    /// The first moment at which the token is valid; None if no claim sets one.
    pub not_before: Option<Timestamp>,
    /// The token id; `""` for a legacy token.
    pub id: String,
    /// The service account and the bound object.
    pub private: PrivateClaims,
    /// Whether this is a legacy token, which must equal the token in its Secret.
    pub legacy: bool,
}

/// `system:serviceaccount:<namespace>:<name>`.
pub fn subject(namespace: &str, name: &str) -> String {
    format!("system:serviceaccount:{namespace}:{name}")
}

/// Returns the unverified issuer of a payload. Returns None if the payload has no issuer.
///
/// # Errors
///
/// The payload is not a JSON object, or its `iss` is duplicated or not a string.
pub fn unverified_issuer(payload: &[u8]) -> Result<Option<String>, TokenError> {
    #[derive(Deserialize)]
    struct IssuerClaim {
        iss: Option<String>,
    }
    // serde_json limits the nesting to 128 levels.
    let claims = serde_json::from_slice::<IssuerClaim>(payload);
    claims.map(|claims| claims.iss).map_err(|error| TokenError::Payload(error.to_string()))
}

/// Decodes the claims of a payload.
pub(super) fn parse_claims(payload: &[u8]) -> Result<Map<String, Value>, TokenError> {
    serde_json::from_slice(payload).map_err(|error| TokenError::Payload(error.to_string()))
}

/// Returns the audiences of a token: the claim `aud` is one string or a list.
pub fn audiences(claims: &Map<String, Value>) -> Vec<String> {
    match claims.get("aud") {
        Some(Value::String(audience)) => vec![audience.clone()],
        Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => Vec::new(),
    }
}

/// Returns the Unix time in seconds of a time claim; None if the claim is absent or null.
///
/// # Errors
///
/// The claim is not a number.
pub fn time_claim(claims: &Map<String, Value>, name: &str) -> Result<Option<f64>, TokenError> {
    match claims.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Number(number)) => Ok(number.as_f64()),
        Some(_) => Err(TokenError::TimeClaim(name.to_owned())),
    }
}

/// Returns the first moment at which a token is valid: the later of `nbf` and `iat`, minus the leeway.
/// All times are in seconds. Returns None if both claims are absent.
pub fn first_valid(starts: [Option<f64>; 2], leeway: f64) -> Option<Timestamp> {
    let latest = starts.into_iter().flatten().reduce(f64::max)?;
    // The float conversion saturates.
    Timestamp::from_millisecond(((latest - leeway) * 1000.0).floor() as i64).ok()
}

/// Checks that `sub` is the service account of the private claims.
pub(super) fn check_subject(claims: &Map<String, Value>, private: &PrivateClaims) -> Result<(), TokenError> {
    let claimed_subject = claims.get("sub").and_then(Value::as_str).unwrap_or_default();
    if claimed_subject == subject(&private.namespace, &private.serviceaccount.name) {
        Ok(())
    } else {
        Err(TokenError::Subject)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unverified_payload_gives_issuer_only() {
        let read = |text: &str| unverified_issuer(text.as_bytes());
        assert_eq!(read(r#"{"sub":"x","iss":"https://a","n":{}}"#).unwrap().as_deref(), Some("https://a"));
        for payload in ["{}", r#"{"iss":null}"#] {
            assert_eq!(read(payload).unwrap(), None);
        }
        for bad in ["", "[]", "{", r#"{"iss":1}"#, r#"{"iss":"a","iss":"b"}"#] {
            assert!(read(bad).is_err(), "{bad}");
        }
        let deep = format!("{{\"a\":{}", "[".repeat(100_000));
        assert!(read(&deep).is_err());
    }
}
