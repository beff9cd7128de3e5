//! Header fields of forwarded requests and responses.
//!
//! # Contract
//!
//! INVARIANT (no foreign identity): no header that a client sets names a user to a backend. Headers that differ from
//! an identity header only in case, or in underscores instead of hyphens, are removed too. Some backends treat them
//! as equal. Request trailers are never forwarded.

use std::net::IpAddr;

use apimachinery::user::UserInfo;
use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, HOST, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::{Target, TransportError};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const X_REMOTE_USER: HeaderName = HeaderName::from_static("x-remote-user");
const X_REMOTE_UID: HeaderName = HeaderName::from_static("x-remote-uid");
const X_REMOTE_GROUP: HeaderName = HeaderName::from_static("x-remote-group");

/// Names of identity headers, in lower case and with hyphens.
const IDENTITY_HEADERS: [&str; 7] = [
    "authorization",
    "x-remote-user",
    "x-remote-uid",
    "x-remote-group",
    "impersonate-user",
    "impersonate-uid",
    "impersonate-group",
];

/// Prefixes of identity headers with further attributes of the user.
const IDENTITY_PREFIXES: [&str; 2] = ["x-remote-extra-", "impersonate-extra-"];

/// The characters of an attribute that are percent-encoded in a header name: `%`, and all that are not token
/// characters of RFC 9110.
const NOT_TOKEN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'!')
    .remove(b'#')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'*')
    .remove(b'+')
    .remove(b'-')
    .remove(b'.')
    .remove(b'^')
    .remove(b'_')
    .remove(b'`')
    .remove(b'|')
    .remove(b'~');

/// A value of a user that a header cannot contain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the {0} of the user contains characters that a header cannot contain")]
pub struct UnsendableUser(&'static str);

/// Removes the credentials of the client, and all headers with which a client could name a user to a backend.
pub fn remove_client_identity(headers: &mut HeaderMap) {
    headers.remove(AUTHORIZATION);
    let is_identity = |name: &HeaderName| {
        let name = name.as_str().replace('_', "-");
        IDENTITY_HEADERS.contains(&name.as_str())
            || IDENTITY_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    };
    let found: Vec<HeaderName> = headers.keys().filter(|name| is_identity(name)).cloned().collect();
    for name in found {
        headers.remove(name);
    }
}

/// Removes the headers that concern one connection only, and those that `Connection` names. `TE: trailers` stays.
pub fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = elements(headers, CONNECTION)
        .filter_map(|name| HeaderName::from_bytes(name.as_bytes()).ok())
        .collect();
    let accepts_trailers = elements(headers, TE).any(|element| element.eq_ignore_ascii_case("trailers"));
    for name in named {
        headers.remove(name);
    }
    for name in [
        CONNECTION,
        PROXY_CONNECTION,
        KEEP_ALIVE,
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
        TE,
        TRAILER,
        TRANSFER_ENCODING,
        UPGRADE,
    ] {
        headers.remove(name);
    }
    if accepts_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
}

/// Sets the identity headers of a user, after the headers of the client have been removed.
///
/// # Errors
///
/// A value contains control characters.
pub fn set_remote_user(headers: &mut HeaderMap, user: &UserInfo) -> Result<(), UnsendableUser> {
    let value = |text: &str, part| HeaderValue::from_bytes(text.as_bytes()).map_err(|_| UnsendableUser(part));
    headers.insert(X_REMOTE_USER, value(&user.name, "name")?);
    if !user.uid.is_empty() {
        headers.insert(X_REMOTE_UID, value(&user.uid, "uid")?);
    }
    for group in &user.groups {
        headers.append(X_REMOTE_GROUP, value(group, "groups")?);
    }
    for (key, values) in &user.extra {
        let name = format!("x-remote-extra-{}", utf8_percent_encode(key, NOT_TOKEN));
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| UnsendableUser("extra keys"))?;
        for text in values {
            headers.append(&name, value(text, "extra values")?);
        }
    }
    Ok(())
}

/// Adds the address of the client to `X-Forwarded-For`.
pub fn append_forwarded_for(headers: &mut HeaderMap, client: IpAddr) {
    let mut addresses: Vec<String> = elements(headers, X_FORWARDED_FOR).map(str::to_owned).collect();
    addresses.push(client.to_canonical().to_string());
    // Elements of a valid header are valid.
    if let Ok(value) = HeaderValue::from_str(&addresses.join(", ")) {
        headers.insert(X_FORWARDED_FOR, value);
    }
}

/// Whether a request asks for a switch to a protocol that this server forwards.
///
/// A switch to another version of HTTP, or to TLS, is none: further requests on such a connection would reach the
/// backend with the credentials of this server, without authorization. A server may ignore such a switch.
pub fn is_upgrade(headers: &HeaderMap) -> bool {
    requested_protocols(headers).next().is_some()
}

/// Returns the protocols that a request asks to switch to.
fn requested_protocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let is_requested = elements(headers, CONNECTION).any(|element| element.eq_ignore_ascii_case("upgrade"));
    elements(headers, UPGRADE).filter(move |protocol| is_requested && !carries_requests(protocol))
}

/// Whether the requests of a client would be hidden in the bytes of a protocol. `protocol`: `NAME` or `NAME/VERSION`.
fn carries_requests(protocol: &str) -> bool {
    let name = protocol.split('/').next().unwrap_or_default().trim();
    ["h2c", "h2", "http", "tls"].iter().any(|carrier| name.eq_ignore_ascii_case(carrier))
}

/// Whether the head of a 101 names protocols, and only those that the request asks for.
pub(crate) fn switches_as_requested(request: &HeaderMap, response: &HeaderMap) -> bool {
    let is_requested = |protocol: &str| {
        requested_protocols(request).any(|requested| requested.eq_ignore_ascii_case(protocol))
    };
    elements(response, UPGRADE).next().is_some() && elements(response, UPGRADE).all(is_requested)
}

/// Removes what the backend says about access from other origins: browsers would apply it to this server.
pub(crate) fn remove_cross_origin(headers: &mut HeaderMap) {
    for name in [
        ACCESS_CONTROL_ALLOW_CREDENTIALS,
        ACCESS_CONTROL_ALLOW_HEADERS,
        ACCESS_CONTROL_ALLOW_METHODS,
        ACCESS_CONTROL_ALLOW_ORIGIN,
    ] {
        headers.remove(name);
    }
}

/// Prepares the headers of a client for a backend; the body determines the framing.
pub fn for_backend(client_headers: &HeaderMap, client: Option<IpAddr>) -> HeaderMap {
    let mut headers = client_headers.clone();
    let protocols = requested_protocols(&headers).collect::<Vec<_>>().join(", ");
    // Elements of a valid header are valid.
    let upgrade = HeaderValue::from_str(&protocols).ok().filter(|protocols| !protocols.is_empty());
    remove_hop_by_hop(&mut headers);
    remove_client_identity(&mut headers);
    headers.remove(CONTENT_LENGTH);
    if let Some(client) = client {
        append_forwarded_for(&mut headers, client);
    }
    if let Some(protocol) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, protocol);
    }
    headers
}

pub(crate) fn set_default_host(headers: &mut HeaderMap, target: &Target) -> Result<(), TransportError> {
    if !headers.contains_key(HOST) {
        let host = HeaderValue::from_str(&target.authority());
        headers.insert(HOST, host.map_err(|error| TransportError::Request(error.to_string()))?);
    }
    Ok(())
}

/// Returns the elements of a comma-separated header.
pub(crate) fn elements(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &str> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim).filter(|element| !element.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in list {
            headers.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
        }
        headers
    }

    fn names(headers: &HeaderMap) -> Vec<&str> {
        let mut names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn identity_headers_are_removed_in_every_spelling() {
        let mut sent = headers(&[
            ("X-Remote-User", "root"),
            ("x-remote_user", "root"),
            ("X_REMOTE_USER", "root"),
            ("x_remote-uid", "7"),
            ("X-Remote-Group", "system:masters"),
            ("X_Remote_Group", "system:masters"),
            ("X-Remote-Extra-Scopes", "all"),
            ("x_remote_extra_scopes", "all"),
            ("Impersonate-User", "root"),
            ("Impersonate_Extra-a", "root"),
            ("Authorization", "Bearer x"),
            ("Impersonate-Nothing", "1"),
            ("X-Remote-Address", "1"),
            ("X-Custom", "1"),
        ]);
        remove_client_identity(&mut sent);
        assert_eq!(names(&sent), ["impersonate-nothing", "x-custom", "x-remote-address"]);
    }

    #[test]
    fn headers_of_one_connection_are_removed_with_those_that_connection_names() {
        let mut sent = headers(&[
            ("Connection", "X-Drop, keep-alive"),
            ("Connection", "x-other"),
            ("X-Drop", "1"),
            ("X-Other", "1"),
            ("Keep-Alive", "timeout=5"),
            ("TE", "gzip, trailers"),
            ("Proxy-Authorization", "Basic x"),
            ("Proxy-Connection", "keep-alive"),
            ("Trailer", "X-T"),
            ("Transfer-Encoding", "chunked"),
            ("Upgrade", "h2c"),
            ("X-Keep", "1"),
        ]);
        assert!(!is_upgrade(&sent));
        remove_hop_by_hop(&mut sent);
        assert_eq!(names(&sent), ["te", "x-keep"]);
        assert_eq!(sent[TE], "trailers");
    }

    #[test]
    fn connection_header_cannot_remove_headers_that_the_server_sets() {
        let sent =
            headers(&[("Connection", "X-Forwarded-For, X-Remote-User"), ("X-Forwarded-For", "192.0.2.7")]);
        let prepared = for_backend(&sent, Some("::ffff:127.0.0.1".parse().unwrap()));
        assert_eq!(prepared[X_FORWARDED_FOR], "127.0.0.1");
    }

    #[test]
    fn user_becomes_headers_with_encoded_keys() {
        let user = UserInfo {
            name: "jürgen".to_owned(),
            uid: "u-1".to_owned(),
            groups: vec!["a".to_owned(), "b".to_owned()],
            extra: [("example.com/reason".to_owned(), vec!["why not".to_owned(), "b".to_owned()])].into(),
        };
        let mut sent = HeaderMap::new();
        set_remote_user(&mut sent, &user).unwrap();
        assert_eq!(sent[X_REMOTE_USER], "jürgen");
        assert_eq!(sent[X_REMOTE_UID], "u-1");
        assert_eq!(sent.get_all(X_REMOTE_GROUP).iter().collect::<Vec<_>>(), ["a", "b"]);
        let extra: Vec<_> = sent.get_all("x-remote-extra-example.com%2freason").iter().collect();
        assert_eq!(extra, ["why not", "b"]);
        let broken =
            UserInfo { name: "a\r\nX-Remote-Group: system:masters".to_owned(), ..UserInfo::default() };
        let error = set_remote_user(&mut sent, &broken).unwrap_err().to_string();
        assert!(error.contains("name") && !error.contains("masters"), "{error}");
    }

    #[test]
    fn forwarded_for_is_appended_and_upgrade_is_kept() {
        let sent = headers(&[
            ("X-Forwarded-For", "192.0.2.7"),
            ("Connection", "keep-alive, Upgrade"),
            ("Upgrade", "SPDY/3.1"),
            ("Content-Length", "0"),
        ]);
        let prepared = for_backend(&sent, Some("192.0.2.8".parse().unwrap()));
        assert_eq!(prepared[X_FORWARDED_FOR], "192.0.2.7, 192.0.2.8");
        assert_eq!(
            (&prepared[CONNECTION], &prepared[UPGRADE]),
            (&"Upgrade".parse().unwrap(), &"SPDY/3.1".parse().unwrap())
        );
        assert_eq!(names(&prepared), ["connection", "upgrade", "x-forwarded-for"]);
    }

    #[test]
    fn switch_to_http_or_tls_is_no_upgrade() {
        for (protocol, expected) in [
            ("websocket", Some("websocket")),
            ("SPDY/3.1", Some("SPDY/3.1")),
            ("h2c", None),
            ("H2C", None),
            ("TLS/1.0", None),
            ("tls/1.2, HTTP/2.0", None),
            ("", None),
            ("h2c, websocket", Some("websocket")),
            ("a, b/2", Some("a, b/2")),
        ] {
            let sent = headers(&[("Connection", "Upgrade, HTTP2-Settings"), ("Upgrade", protocol)]);
            assert_eq!(is_upgrade(&sent), expected.is_some(), "{protocol}");
            let prepared = for_backend(&sent, None);
            let forwarded = prepared.get(UPGRADE).map(|value| value.to_str().unwrap());
            assert_eq!(forwarded, expected, "{protocol}");
            assert_eq!(prepared.contains_key(CONNECTION), expected.is_some(), "{protocol}");
        }
    }

    #[test]
    fn answer_to_upgrade_names_a_requested_protocol() {
        let request = headers(&[("Connection", "Upgrade"), ("Upgrade", "h2c, WebSocket, SPDY/3.1")]);
        for (protocol, expected) in [
            ("websocket", true),
            ("spdy/3.1", true),
            ("SPDY/2", false),
            ("h2c", false),
            ("websocket, h2c", false),
        ] {
            let response = headers(&[("Upgrade", protocol)]);
            assert_eq!(switches_as_requested(&request, &response), expected, "{protocol}");
        }
        assert!(!switches_as_requested(&request, &HeaderMap::new()));
        assert!(!switches_as_requested(&request, &headers(&[("Upgrade", "")])));
    }
}
