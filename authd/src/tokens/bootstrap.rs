//! Bootstrap tokens: their form, and when they end (requirements A-BOOT-1 to -4, A-BOOT-20 to -24).

use jiff::Timestamp;

/// Id and secret of a token: six and sixteen characters of `[a-z0-9]`, with a dot between them.
pub fn parts(token: &str) -> Option<(&str, &str)> {
    let (id, secret) = token.split_once('.')?;
    let fits = |text: &str, length: usize| {
        text.len() == length && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    (fits(id, 6) && fits(secret, 16)).then_some((id, secret))
}

/// When a token ends, by the text of its Secret; None: never.
///
/// # Errors
///
/// It has ended: the time has come, or cannot be read.
pub fn expiration(text: &str, now: Timestamp) -> Result<Option<Timestamp>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    match text.parse::<Timestamp>() {
        Ok(at) if now < at => Ok(Some(at)),
        Ok(_) => Err("the token has expired".to_owned()),
        Err(_) => Err("its expiration is not a time of RFC 3339".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_six_and_sixteen_characters() {
        assert_eq!(parts("abc123.0123456789abcdef"), Some(("abc123", "0123456789abcdef")));
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
            assert_eq!(parts(token), None, "{token}");
        }
    }
}
