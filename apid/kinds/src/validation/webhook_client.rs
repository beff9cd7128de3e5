//! Rules for the URL or service of a webhook.

use apimachinery::field::FieldErrors;

use super::Field;
use crate::format;

/// End of the messages about a URL.
const FORM: &str = "; desired format: https://host[/path]";

/// Validates the URL of a webhook: `https` with a host, without user information, query and fragment.
pub(crate) fn check_url(field: &Field<'_, '_>, errors: &mut FieldErrors) {
    let text = field.text();
    if let Some(reason) = parse_error(text) {
        errors.push(field.required(&format!("url must be a valid URL: parse {text:?}: {reason}{FORM}")));
        return;
    }
    let (rest, fragment) = text.split_once('#').unwrap_or((text, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (scheme, rest) = rest.split_once(':').filter(|(scheme, _)| is_scheme(scheme)).unwrap_or(("", rest));
    let authority = rest.strip_prefix("//").map_or("", |rest| rest.split('/').next().unwrap_or(""));
    let (user, host) = match authority.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, authority),
    };
    let scheme = scheme.to_ascii_lowercase();
    if scheme != "https" {
        errors.push(field.invalid_value(scheme, &format!("'https' is the only allowed URL scheme{FORM}")));
    }
    if host.is_empty() {
        errors.push(field.invalid_value(host, &format!("host must be specified{FORM}")));
    }
    if let Some(user) = user {
        errors.push(field.invalid_value(user, "user information is not permitted in the URL"));
    }
    if !fragment.is_empty() {
        errors.push(field.invalid_value(fragment, "fragments are not permitted in the URL"));
    }
    if !query.is_empty() {
        errors.push(field.invalid_value(query, "query parameters are not permitted in the URL"));
    }
}

/// Whether a text is a URL scheme: `[a-zA-Z][-+.a-zA-Z0-9]*`.
fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
}

/// The reason why the Go package `net/url` does not parse a URL.
fn parse_error(text: &str) -> Option<String> {
    if text.bytes().any(|b| b < b' ' || b == 0x7f) {
        return Some("net/url: invalid control character in URL".to_owned());
    }
    if text.starts_with(':') {
        return Some("missing protocol scheme".to_owned());
    }
    let path = text.split(['#', '?']).next().unwrap_or("");
    let first = path.split('/').next().unwrap_or("");
    if let Some((scheme, _)) = first.split_once(':')
        && !is_scheme(scheme)
    {
        return Some("first path segment in URL cannot contain colon".to_owned());
    }
    let authority = path.split_once("//").map_or("", |(_, rest)| rest.split('/').next().unwrap_or(""));
    let host = authority.rsplit('@').next().unwrap_or("");
    if let Some(invalid) = host.chars().find(|c| matches!(c, ' ' | '\\' | '^' | '`' | '{' | '|' | '}')) {
        return Some(format!("invalid character {:?} in host name", invalid.to_string()));
    }
    let port = if host.starts_with('[') {
        host.rsplit(']').next()
    } else {
        host.find(':').and_then(|i| host.get(i..))
    };
    if let Some(port) = port.filter(|port| !port.is_empty())
        && !port.strip_prefix(':').is_some_and(|digits| digits.bytes().all(|b| b.is_ascii_digit()))
    {
        return Some(format!("invalid port {port:?} after host"));
    }
    invalid_escape(text).map(|escape| format!("invalid URL escape {escape:?}"))
}

/// The first percent sign without two hexadecimal digits, with the characters that follow it.
fn invalid_escape(text: &str) -> Option<String> {
    text.match_indices('%').find_map(|(at, _)| {
        let escape: String = text.get(at..)?.chars().take(3).collect();
        let digits = escape.get(1..)?;
        let is_valid = digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_hexdigit());
        (!is_valid).then_some(escape)
    })
}

/// Validates the service of a webhook. Defaulting has set an absent port.
pub(crate) fn check_service(service: &Field<'_, '_>, errors: &mut FieldErrors) {
    // kube-apiserver swaps the fields: it reports a missing name at `namespace`, and a missing namespace at
    // `name`.
    for (reported, name) in [("name", "namespace"), ("namespace", "name")] {
        if service.child(name).text().is_empty() {
            errors.push(service.child(reported).required(""));
        }
    }
    let port = service.child("port");
    if !(1..=65_535).contains(&port.integer().unwrap_or(0)) {
        errors.push(port.invalid("port is not valid: must be between 1 and 65535, inclusive"));
    }
    check_path(&service.child("path"), errors);
}

fn check_path(path: &Field<'_, '_>, errors: &mut FieldErrors) {
    let text = path.text();
    if matches!(text, "" | "/") {
        return;
    }
    if text == "//" {
        errors.push(path.invalid("segment[0] may not be empty"));
        return;
    }
    if !text.starts_with('/') {
        errors.push(path.invalid("must start with a '/'"));
    }
    // kube-apiserver ignores the first character even if it is not a slash.
    let mut characters = text.chars();
    let first = characters.next();
    // kube-apiserver skips exactly one byte. The remaining bytes of a longer character are invalid UTF-8,
    // which its messages show as the replacement character.
    let rest = characters.as_str();
    let segments = match first.is_some_and(|first| first.len_utf8() > 1) {
        true => format!("{}{rest}", char::REPLACEMENT_CHARACTER),
        false => rest.to_owned(),
    };
    for (i, segment) in segments.strip_suffix('/').unwrap_or(&segments).split('/').enumerate() {
        if segment.is_empty() {
            errors.push(path.invalid(&format!("segment[{i}] may not be empty")));
            continue;
        }
        for message in format::subdomain(segment) {
            errors.push(path.invalid(&format!("segment[{i}]: {message}")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn url_of_webhook_is_validated() {
        for (text, count) in [
            ("https://a.example", 0),
            ("https://[::1]:8443/hook", 0),
            ("HTTPS://a.example:443/x", 0),
            ("http://a.example", 1),
            ("x", 2),
            ("https:///x", 1),
            ("https://u:p@a.example", 1),
            ("https://a.example/x?a=b#c", 2),
            ("https://a b/", 1),
            ("https://a:x/", 1),
            ("https://a/%zz", 1),
            ("1:x", 1),
        ] {
            let value = json!(text);
            let mut errors = FieldErrors::new();
            check_url(&Field::new(Some(&value), "url"), &mut errors);
            assert_eq!(errors.len(), count, "{text}: {errors:?}");
        }
    }
}
