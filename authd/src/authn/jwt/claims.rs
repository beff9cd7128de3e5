//! The claims of a token: strict decoding and the checks of registered claims (RFC 7519 section 4.1).
//!
//! # Contract
//!
//! [`read`] decodes all claims of a verified payload; [`check`] returns the validity of the token.
//!
//! # Reference
//!
//! As in go-oidc: no leeway for `exp`, five minutes for `nbf`. Stricter than go-oidc: duplicate claims are
//! rejected, and an `iat` more than five minutes ahead too (requirement A-OIDC-5).

use apimachinery::codec::{DecodeError, Limits, json};
use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::tokens::claims::{TokenError, first_valid, time_claim};
use crate::tokens::jose;

/// Limits of the claims in bytes and in levels of nesting. Providers nest claims about three levels deep.
const LIMITS: Limits = Limits { bytes: jose::MAX_TOKEN_BYTES, depth: 32, ..Limits::BODY };
/// Limit in characters of the path of a claim in an error; a longer path is truncated.
const MAX_NAME_CHARS: usize = 100;
/// Seconds that the issuer's clock may be ahead of the local clock, for `nbf` and `iat`.
const LEEWAY: f64 = 300.0;

/// The failed check of the claims.
/// The error texts contain names of claims and the accepted audiences.
/// The only claim value in them is an `iss` of a wrong type.
#[derive(Debug, thiserror::Error)]
pub enum ClaimsError {
    /// The payload is not JSON, or a claim has a wrong type.
    #[error("the claims cannot be read: {0}")]
    Malformed(String),
    /// The claims nest too deeply; contains the maximum number of levels.
    #[error("the claims nest deeper than {0} levels")]
    TooDeep(usize),
    /// A claim appears twice; contains its path.
    #[error("duplicate claim `{0}`")]
    Duplicate(String),
    /// The payload is JSON, but not an object.
    #[error("the claims are not an object")]
    NoObject,
    /// The claim `iss` names a different issuer.
    #[error("the token has a different issuer")]
    OtherIssuer,
    /// A required claim is absent.
    #[error("the claim `{0}` is missing")]
    Missing(&'static str),
    /// The claim `aud` contains none of the accepted audiences.
    #[error("the token has none of the audiences {0}")]
    OtherAudience(String),
    /// A time claim is not a number.
    #[error("{0}")]
    Time(TokenError),
    /// The time of `exp` has passed.
    #[error("the token expired {seconds} s ago")]
    Expired {
        /// Seconds since the time of `exp`.
        seconds: i64,
    },
    /// The time of `nbf` or `iat` is more than five minutes ahead.
    #[error("the token will be {event} in {seconds} s (claim `{claim}`)")]
    NotYet {
        /// The event in the future: `valid` for `nbf`, `issued` for `iat`.
        event: &'static str,
        /// The claim with the future time: `nbf` or `iat`.
        claim: &'static str,
        /// Seconds until the time of the claim.
        seconds: i64,
    },
}

/// Decodes all claims.
///
/// # Errors
///
/// The payload is not JSON or not an object, nests too deeply, or has a duplicate claim at any level.
pub fn read(payload: &[u8]) -> Result<Map<String, Value>, ClaimsError> {
    let decoded = json::decode(payload, LIMITS).map_err(|error| match error {
        DecodeError::TooDeep(depth) => ClaimsError::TooDeep(depth),
        other => ClaimsError::Malformed(other.to_string()),
    })?;
    if let Some(path) = decoded.duplicates.first() {
        return Err(ClaimsError::Duplicate(path.chars().take(MAX_NAME_CHARS).collect()));
    }
    match decoded.value {
        Value::Object(claims) => Ok(claims),
        _ => Err(ClaimsError::NoObject),
    }
}

/// The validity period of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// The first moment at which the token is valid; None if no claim sets one.
    pub not_before: Option<Timestamp>,
    /// Time at which the token expires.
    pub expires: Timestamp,
}

/// Checks issuer, audience and time, and returns the validity period.
///
/// # Errors
///
/// [`ClaimsError`]: the first check that failed.
pub fn check(
    claims: &Map<String, Value>,
    issuer: &str,
    audiences: &[String],
    now: Timestamp,
) -> Result<Validity, ClaimsError> {
    if claims.get("iss").and_then(Value::as_str) != Some(issuer) {
        return Err(ClaimsError::OtherIssuer);
    }
    let is_accepted_audience = |audience: &Value| {
        audience.as_str().is_some_and(|text| audiences.iter().any(|accepted| accepted == text))
    };
    let is_intended = match claims.get("aud") {
        None | Some(Value::Null) => return Err(ClaimsError::Missing("aud")),
        Some(Value::Array(list)) => list.iter().any(is_accepted_audience),
        Some(single) => is_accepted_audience(single),
    };
    if !is_intended {
        return Err(ClaimsError::OtherAudience(audiences.join(", ")));
    }
    let time = |name: &str| time_claim(claims, name).map_err(ClaimsError::Time);
    let ends = time("exp")?.ok_or(ClaimsError::Missing("exp"))?;
    let now_seconds = now.as_millisecond() as f64 / 1000.0;
    if now_seconds >= ends {
        return Err(ClaimsError::Expired { seconds: (now_seconds - ends).min(1e12) as i64 });
    }
    let starts = [time("nbf")?, time("iat")?];
    for ((claim, event), start) in [("nbf", "valid"), ("iat", "issued")].into_iter().zip(starts) {
        if let Some(start) = start.filter(|start| *start > now_seconds + LEEWAY) {
            let seconds = (start - now_seconds).min(1e12) as i64;
            return Err(ClaimsError::NotYet { event, claim, seconds });
        }
    }
    // The float conversion saturates; an expiry that a [`Timestamp`] cannot hold becomes [`Timestamp::MAX`].
    let expires = Timestamp::from_second(ends as i64).unwrap_or(Timestamp::MAX);
    Ok(Validity { not_before: first_valid(starts, LEEWAY), expires })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn malformed_claims_are_rejected() {
        for (payload, expected) in [
            (r#"{"a":1}"#.to_owned(), ""),
            (r#"{"a":1,"a":2}"#.to_owned(), "duplicate claim `a`"),
            (r#"{"x":{"b":1,"b":1}}"#.to_owned(), "duplicate claim `x.b`"),
            ("[]".to_owned(), "the claims are not an object"),
            ("{".to_owned(), "the claims cannot be read: "),
            (String::new(), "the claims cannot be read: "),
            (
                format!("{{\"a\":{}}}", "[".repeat(40) + &"]".repeat(40)),
                "the claims nest deeper than 32 levels",
            ),
            (format!("{{\"a\":{}", "[".repeat(100_000)), "the claims nest deeper than 32 levels"),
        ] {
            let got = read(payload.as_bytes()).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(
                if expected.is_empty() { got.is_empty() } else { got.starts_with(expected) },
                "{payload:.60}: {got}"
            );
        }
    }

    #[test]
    fn token_issuer_audience_and_time_are_checked() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        let good = json!({"iss": "https://a", "aud": "x", "exp": 1_000_001});
        for (change, expected) in [
            (json!({}), Ok(1_000_001)),
            (json!({"aud": ["z", "y"]}), Ok(1_000_001)),
            (json!({"exp": 1_000_000.5}), Ok(1_000_000)),
            (json!({"iat": 999_000, "nbf": 999_000}), Ok(1_000_001)),
            (json!({"iat": 1_000_300, "nbf": 1_000_300}), Ok(1_000_001)),
            (json!({"exp": 1e300}), Ok(Timestamp::MAX.as_second())),
            (json!({"iss": "https://b"}), Err("the token has a different issuer")),
            (json!({"iss": null}), Err("the token has a different issuer")),
            (json!({"aud": null}), Err("the claim `aud` is missing")),
            (json!({"aud": "z"}), Err("the token has none of the audiences x, y")),
            (json!({"aud": []}), Err("the token has none of the audiences x, y")),
            (json!({"aud": [["x"]]}), Err("the token has none of the audiences x, y")),
            (json!({"aud": 1}), Err("the token has none of the audiences x, y")),
            (json!({"exp": null}), Err("the claim `exp` is missing")),
            (json!({"exp": "1000001"}), Err("the claim `exp` is not a number of seconds")),
            (json!({"exp": 1_000_000}), Err("the token expired 0 s ago")),
            (json!({"exp": 999_000}), Err("the token expired 1000 s ago")),
            (json!({"exp": -1e300}), Err("the token expired 1000000000000 s ago")),
            (json!({"nbf": 1_000_301}), Err("the token will be valid in 301 s (claim `nbf`)")),
            (json!({"iat": 1_003_600}), Err("the token will be issued in 3600 s (claim `iat`)")),
            (json!({"iat": "now"}), Err("the claim `iat` is not a number of seconds")),
        ] {
            let mut claims = good.as_object().cloned().unwrap();
            claims.extend(change.as_object().cloned().unwrap());
            let audiences = ["x".to_owned(), "y".to_owned()];
            let got = check(&claims, "https://a", &audiences, now).map(|valid| valid.expires.as_second());
            assert_eq!(got.map_err(|error| error.to_string()), expected.map_err(str::to_owned), "{change}");
        }
        let missing = |name: &str| {
            let mut claims = good.as_object().cloned().unwrap();
            claims.remove(name);
            check(&claims, "https://a", &["x".to_owned()], now).unwrap_err().to_string()
        };
        assert_eq!(missing("iss"), "the token has a different issuer");
        assert_eq!(missing("aud"), "the claim `aud` is missing");
        assert_eq!(missing("exp"), "the claim `exp` is missing");
    }
    #[test]
    fn token_with_nbf_and_iat_is_valid_from_the_later_less_the_leeway() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        for (claims, expected) in [
            (json!({}), None),
            (json!({"nbf": 1_000_100}), Some(999_800)),
            (json!({"nbf": 1_000_100, "iat": 1_000_200}), Some(999_900)),
            (json!({"nbf": 1_000_250, "iat": 999_000}), Some(999_950)),
        ] {
            let mut all = json!({"iss": "i", "aud": "x", "exp": 2_000_000}).as_object().cloned().unwrap();
            all.extend(claims.as_object().cloned().unwrap());
            let valid = check(&all, "i", &["x".to_owned()], now).unwrap();
            assert_eq!(valid.not_before.map(|start| start.as_second()), expected, "{claims}");
        }
    }
}
