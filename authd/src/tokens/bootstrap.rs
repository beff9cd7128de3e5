//! Bootstrap tokens: format and expiration (requirements A-BOOT-1 to -4, A-BOOT-20 to -24).

use jiff::Timestamp;

/// Splits a token into id and secret: 6 and 16 characters of `[a-z0-9]`, separated by a dot.
pub fn split_token(token: &str) -> Option<(&str, &str)> {
    let (id, secret) = token.split_once('.')?;
    let is_valid_part = |text: &str, length: usize| {
        text.len() == length && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    (is_valid_part(id, 6) && is_valid_part(secret, 16)).then_some((id, secret))
}

/// The reason why a bootstrap token is not valid now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpirationError {
    /// The token has expired.
    #[error("the token has expired")]
    Expired,
    /// The expiration is malformed.
    #[error("the expiration is not an RFC 3339 time")]
    Malformed,
}

/// Parses the `expiration` of a token Secret. Returns None if the text is empty, and the token never expires.
///
/// # Errors
///
/// The token has expired, or the expiration cannot be parsed.
pub fn parse_expiration(text: &str, now: Timestamp) -> Result<Option<Timestamp>, ExpirationError> {
    if text.is_empty() {
        return Ok(None);
    }
    match text.parse::<Timestamp>() {
        Ok(expiry) if now < expiry => Ok(Some(expiry)),
        Ok(_) => Err(ExpirationError::Expired),
        Err(_) => Err(ExpirationError::Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bootstrap_token_has_id_of_6_and_secret_of_16_characters() {
        assert_eq!(split_token("abc123.0123456789abcdef"), Some(("abc123", "0123456789abcdef")));
        for token in [
            "",
            "abcdef",
            "abcde.0123456789abcdef",
            "ABCDEF.0123456789abcdef",
            "abcdef.0123456789abcde",
            "abcdef.0123456789abcdef0",
            "abcdef-0123456789abcdef",
            "abcdef.0123456789abcdeF",
            "abcdef.0123456789abcdef\n",
            "abcdef.01234567.9abcdef",
        ] {
            assert_eq!(split_token(token), None, "{token}");
        }
    }
}
