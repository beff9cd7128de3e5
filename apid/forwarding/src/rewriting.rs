//! Rewriting of responses whose client sees the backend below a path of this server.
//!
//! # Contract
//!
//! A `Location` that is absolute on the backend gets the prefix of the proxy, so that the client stays on this backend.
//! A `Location` of another host, and a relative one, are unchanged. A `Set-Cookie` with a path gets the prefix before
//! the path, so that the cookie reaches only this backend; its `Domain` is removed for the same reason.
//!
//! # Reference
//!
//! kube-apiserver rewrites `Location` in the same way, and also links in HTML, which apid does not. It does not
//! change cookies.

use http::header::{LOCATION, SET_COOKIE};
use http::{HeaderMap, HeaderValue};

use crate::url_path::clean_directory;

/// Names of the backend that the client may use.
pub(crate) struct BackendNames<'a> {
    /// Path of this server below which the client sees the backend, without slash at the end.
    pub(crate) prefix: &'a str,
    /// `HOST:PORT` of the backend.
    pub(crate) authority: &'a str,
    /// The header `Host` of the request.
    pub(crate) request_host: &'a str,
}

/// Rewrites the headers of a response.
pub(crate) fn rewrite(headers: &mut HeaderMap, names: &BackendNames<'_>) {
    let location = headers.get(LOCATION).and_then(|value| value.to_str().ok());
    if let Some(Ok(value)) =
        location.and_then(|text| names.location(text)).map(|text| HeaderValue::from_str(&text))
    {
        headers.insert(LOCATION, value);
    }
    let rewritten: Vec<HeaderValue> =
        headers.get_all(SET_COOKIE).into_iter().map(|value| names.cookie(value)).collect();
    headers.remove(SET_COOKIE);
    for value in rewritten {
        headers.append(SET_COOKIE, value);
    }
}

impl BackendNames<'_> {
    /// Returns the location for the client; None if it stays as it is.
    fn location(&self, location: &str) -> Option<String> {
        let (origin, rest) = split_origin(location);
        let authority = origin.rsplit('/').next().unwrap_or_default();
        let is_other_host =
            !authority.is_empty() && authority != self.authority && authority != self.request_host;
        let path_end = rest.find(['?', '#']).unwrap_or(rest.len());
        let (path, suffix) = rest.split_at_checked(path_end)?;
        if is_other_host || !path.starts_with('/') {
            return None;
        }
        let origin = if authority == self.request_host { origin } else { "" };
        let has_prefix =
            path.strip_prefix(self.prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        let prefix = if has_prefix { "" } else { self.prefix };
        Some(format!("{origin}{prefix}{}{suffix}", clean_directory(path)))
    }

    /// Returns a cookie for the client.
    fn cookie(&self, value: &HeaderValue) -> HeaderValue {
        let Ok(text) = value.to_str() else { return value.clone() };
        let mut attributes = text.split(';');
        let mut rewritten = attributes.next().unwrap_or_default().to_owned();
        for attribute in attributes {
            let (name, content) = attribute.split_once('=').unwrap_or((attribute, ""));
            let (name, path) = (name.trim(), content.trim());
            if name.eq_ignore_ascii_case("domain") {
                continue;
            }
            if name.eq_ignore_ascii_case("path") && path.starts_with('/') {
                rewritten.push_str(&format!("; Path={}{path}", self.prefix));
            } else {
                rewritten.push(';');
                rewritten.push_str(attribute);
            }
        }
        HeaderValue::from_str(&rewritten).unwrap_or_else(|_| value.clone())
    }
}

/// Splits a URL into scheme and authority (`https://host`, `//host` or `""`), and the rest.
fn split_origin(url: &str) -> (&str, &str) {
    let is_scheme = |text: &str| {
        !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'))
    };
    let begin = match url.find("//") {
        Some(0) => 2,
        Some(slashes)
            if url.get(..slashes).and_then(|text| text.strip_suffix(':')).is_some_and(is_scheme) =>
        {
            slashes + 2
        }
        _ => return ("", url),
    };
    let authority = url.get(begin..).unwrap_or_default();
    let end = begin + authority.find(['/', '?', '#']).unwrap_or(authority.len());
    url.split_at_checked(end).unwrap_or(("", url))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: BackendNames<'_> = BackendNames {
        prefix: "/api/v1/nodes/n/proxy",
        authority: "10.0.0.1:80",
        request_host: "localhost:8001",
    };

    #[test]
    fn location_on_backend_gets_the_prefix_and_other_locations_stay() {
        for (location, expected) in [
            ("/elsewhere?x=1#y", "/api/v1/nodes/n/proxy/elsewhere?x=1#y"),
            ("/", "/api/v1/nodes/n/proxy/"),
            ("/a/../../b/", "/api/v1/nodes/n/proxy/b/"),
            ("http://10.0.0.1:80/x", "/api/v1/nodes/n/proxy/x"),
            ("//10.0.0.1:80//evil.example.com/", "/api/v1/nodes/n/proxy/evil.example.com/"),
            ("http://localhost:8001/x", "http://localhost:8001/api/v1/nodes/n/proxy/x"),
            ("/api/v1/nodes/n/proxy/x", "/api/v1/nodes/n/proxy/x"),
            ("/api/v1/nodes/n/proxyx", "/api/v1/nodes/n/proxy/api/v1/nodes/n/proxyx"),
            ("below", "below"),
            ("?x", "?x"),
            ("http://other.example.com/elsewhere", "http://other.example.com/elsewhere"),
            ("http://user@10.0.0.1:80/x", "http://user@10.0.0.1:80/x"),
            ("http://10.0.0.1:80", "http://10.0.0.1:80"),
        ] {
            let mut headers = HeaderMap::from_iter([(LOCATION, location.parse().unwrap())]);
            rewrite(&mut headers, &NAMES);
            assert_eq!(headers[LOCATION], expected, "{location}");
        }
    }

    #[test]
    fn cookie_with_path_is_confined_to_the_backend() {
        for (cookie, expected) in [
            ("c=1", "c=1"),
            ("c=1; Path=/", "c=1; Path=/api/v1/nodes/n/proxy/"),
            ("c=1; HttpOnly; path=/a; Secure", "c=1; HttpOnly; Path=/api/v1/nodes/n/proxy/a; Secure"),
            ("c=1; Domain=example.com; Max-Age=5", "c=1; Max-Age=5"),
            ("c=1; Path=relative", "c=1; Path=relative"),
        ] {
            let mut headers = HeaderMap::from_iter([(SET_COOKIE, cookie.parse().unwrap())]);
            headers.append(SET_COOKIE, "d=2".parse().unwrap());
            rewrite(&mut headers, &NAMES);
            let found: Vec<_> = headers.get_all(SET_COOKIE).into_iter().collect();
            assert_eq!(found, [expected, "d=2"], "{cookie}");
        }
    }
}
