//! Rules for the URL of a webhook.
//!
//! # Contract
//!
//! [`validate_webhook_url`] splits a URL as the parser of kube-apiserver does. The URL has the scheme
//! `https` and a host; user information, a query and a fragment are not permitted.

use apimachinery::field::{FieldError, FieldErrors, FieldPath, quote};

const FORM: &str = "; desired format: https://host[/path]";

/// Parts of a URL.
#[derive(Debug, Default, PartialEq, Eq)]
struct Url<'a> {
    scheme: String,
    user: Option<&'a str>,
    host: &'a str,
    query: &'a str,
    fragment: &'a str,
}

/// Validates the URL of a webhook.
pub(super) fn validate_webhook_url(text: &str, path: &FieldPath) -> FieldErrors {
    let url = match parse(text) {
        Ok(url) => url,
        Err(reason) => {
            let detail = format!("url must be a valid URL: parse {}: {reason}{FORM}", quote(text));
            return FieldError::required(path, &detail).into();
        }
    };
    let mut errors = FieldErrors::new();
    if url.scheme != "https" {
        let detail = format!("'https' is the only allowed URL scheme{FORM}");
        errors.push(FieldError::invalid(path, url.scheme, &detail));
    }
    if url.host.is_empty() {
        errors.push(FieldError::invalid(path, "", &format!("host must be specified{FORM}")));
    }
    if let Some(user) = url.user {
        errors.push(FieldError::invalid(path, user, "user information is not permitted in the URL"));
    }
    if !url.fragment.is_empty() {
        errors.push(FieldError::invalid(path, url.fragment, "fragments are not permitted in the URL"));
    }
    if !url.query.is_empty() {
        errors.push(FieldError::invalid(path, url.query, "query parameters are not permitted in the URL"));
    }
    errors
}

/// Whether a text is an absolute URL with a scheme and a host.
pub(super) fn is_absolute(text: &str) -> bool {
    parse(text).is_ok_and(|url| !url.scheme.is_empty() && !url.host.is_empty())
}

fn parse(text: &str) -> Result<Url<'_>, String> {
    if text.bytes().any(|byte| byte.is_ascii_control()) {
        return Err("net/url: invalid control character in URL".to_owned());
    }
    let (rest, fragment) = text.split_once('#').unwrap_or((text, ""));
    let (scheme, rest) = expressions::split_scheme(rest)?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let mut url = Url { scheme: scheme.to_ascii_lowercase(), query, fragment, ..Url::default() };
    let Some(rest) = rest.strip_prefix("//") else {
        let first = rest.split('/').next().unwrap_or("");
        if scheme.is_empty() && first.contains(':') {
            return Err("first path segment in URL cannot contain colon".to_owned());
        }
        check_escapes(rest)?;
        return Ok(url);
    };
    let (authority, url_path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    let (user, host) = match authority.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, authority),
    };
    check_host(host)?;
    check_escapes(url_path)?;
    (url.user, url.host) = (user, host);
    Ok(url)
}

fn check_host(host: &str) -> Result<(), String> {
    let after_host = if host.starts_with('[') {
        host.rsplit_once(']').map(|(_, port)| port).ok_or("missing ']' in host")?
    } else {
        host.rfind(':').and_then(|at| host.get(at..)).unwrap_or("")
    };
    let is_port = after_host
        .strip_prefix(':')
        .map_or(after_host.is_empty(), |port| port.bytes().all(|byte| byte.is_ascii_digit()));
    if !is_port {
        return Err(format!("invalid port {} after host", quote(after_host)));
    }
    if let Some(invalid) =
        host.chars().find(|c| matches!(c, ' ' | '"' | '<' | '>' | '\\' | '^' | '`' | '{' | '|' | '}'))
    {
        return Err(format!("invalid character {} in host name", quote(&invalid.to_string())));
    }
    check_escapes(host)
}

/// Checks that each `%` begins an escape of two hexadecimal digits.
fn check_escapes(text: &str) -> Result<(), String> {
    for (at, _) in text.match_indices('%') {
        let escape = text.as_bytes().get(at..at + 3);
        if !escape.is_some_and(|escape| escape.iter().skip(1).all(u8::is_ascii_hexdigit)) {
            let shown: String = text.get(at..).unwrap_or("").chars().take(3).collect();
            return Err(format!("invalid URL escape {}", quote(&shown)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_split_into_parts() {
        let url = parse("HTTPS://u:p@h.example:8443/a?b=c#d").unwrap();
        let expected = Url {
            scheme: "https".to_owned(),
            user: Some("u:p"),
            host: "h.example:8443",
            query: "b=c",
            fragment: "d",
        };
        assert_eq!(url, expected);
        assert_eq!(parse("x").unwrap().scheme, "");
        for (text, reason) in [
            (":x", "missing protocol scheme"),
            ("1a:b", "first path segment in URL cannot contain colon"),
            ("https://h/%zz", "invalid URL escape \"%zz\""),
            ("https://h:x/", "invalid port \":x\" after host"),
            ("https://a b/", "invalid character \" \" in host name"),
            ("https://[::1/", "missing ']' in host"),
            ("a\n", "net/url: invalid control character in URL"),
        ] {
            assert_eq!(parse(text), Err(reason.to_owned()), "{text}");
        }
        assert!(is_absolute("https://h.example/1") && !is_absolute("/a") && !is_absolute("x"));
    }
}
