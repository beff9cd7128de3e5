//! The credentials in the headers of a request, removed before any other component reads the headers.
//!
//! # Contract
//!
//! [`HeaderCredentials::take`] removes these headers (requirements A-BEAR, A-PROXY-18):
//!
//! - `Authorization`;
//! - the headers that an authenticating proxy may set, whichever client sent them, and headers whose names differ from
//!   them only by `_` for `-`: some servers read both as one name;
//! - the bearer token among the sub-protocols of a WebSocket client.
//!
//! A WebSocket client must send the token once, beside a sub-protocol that the server can select. A malformed
//! token is an invalid credential, not a missing one.
//!
//! # Invariants
//!
//! INVARIANT (removed for all later readers): after `take`, no header contains a credential or is a header of
//! an authenticating proxy. [`HeaderCredentials`] has no `Debug`.

use apimachinery::names::Names;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::{AUTHORIZATION, CONNECTION, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue};

/// The headers of an authenticating proxy, from the flags.
///
/// Empty: apid trusts no proxy and sends no proxy header to authd.
#[derive(Clone, Debug, Default)]
pub struct ProxyHeaders {
    /// Full names, lower case.
    pub names: Vec<String>,
    /// Prefixes of names, lower case.
    pub prefixes: Vec<String>,
}

impl ProxyHeaders {
    fn matches(&self, name: &HeaderName) -> bool {
        self.names.iter().any(|n| n == name.as_str())
            || self.prefixes.iter().any(|p| name.as_str().starts_with(p.as_str()))
    }

    /// Whether a server that reads `_` and `-` as one character takes the name for one of these headers.
    fn resembles(&self, name: &HeaderName) -> bool {
        let name = name.as_str();
        let begins_with = |text: &str| {
            let dashed = |byte: u8| if byte == b'_' { b'-' } else { byte };
            name.len() >= text.len() && name.bytes().zip(text.bytes()).all(|(a, b)| dashed(a) == dashed(b))
        };
        self.names.iter().any(|n| n.len() == name.len() && begins_with(n))
            || self.prefixes.iter().any(|p| begins_with(p))
    }

    fn is_empty(&self) -> bool {
        self.names.is_empty() && self.prefixes.is_empty()
    }
}

/// The credentials from the headers of one request; see the module documentation.
#[derive(Clone, Default)]
pub struct HeaderCredentials {
    authorization: Option<HeaderValue>,
    websocket_token: Option<Vec<u8>>,
    proxy: Vec<(HeaderName, HeaderValue)>,
    unreadable: &'static str,
}

impl HeaderCredentials {
    /// Removes the credentials from a request's headers.
    pub fn take(headers: &mut HeaderMap, proxies: &ProxyHeaders, names: &Names) -> Self {
        let mut header_credentials = HeaderCredentials {
            authorization: headers.remove(AUTHORIZATION),
            ..HeaderCredentials::default()
        };
        if !proxies.is_empty() {
            let proxy_names: Vec<HeaderName> =
                headers.keys().filter(|name| proxies.resembles(name)).cloned().collect();
            for name in proxy_names {
                let values: Vec<HeaderValue> = headers.get_all(&name).iter().cloned().collect();
                headers.remove(&name);
                if !proxies.matches(&name) {
                    continue;
                }
                header_credentials.proxy.extend(values.into_iter().map(|value| (name.clone(), value)));
            }
        }
        if headers.contains_key(SEC_WEBSOCKET_PROTOCOL) {
            match take_websocket_token(headers, names) {
                Ok(token) => header_credentials.websocket_token = token,
                Err(reason) => header_credentials.unreadable = reason,
            }
        }
        header_credentials
    }

    /// The bearer token.
    ///
    /// An empty token counts as none, and the scheme is case-insensitive (requirements A-BEAR-1, A-BEAR-3).
    /// Bytes that are not UTF-8 count as an invalid token, not as a missing one.
    pub(crate) fn token(&self) -> Option<&[u8]> {
        let from_header = || {
            let header = self.authorization.as_ref()?.as_bytes();
            let mut words = header.trim_ascii().split(|&b| b == b' ');
            let is_bearer = words.next()?.eq_ignore_ascii_case(b"bearer");
            words.next().filter(|word| is_bearer && !word.is_empty())
        };
        from_header().or(self.websocket_token.as_deref())
    }

    /// The headers that an authenticating proxy may have set.
    pub fn proxy_headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.proxy.iter().map(|(name, value)| (name.as_str(), value.as_bytes()))
    }

    /// The reason why a credential is unreadable; empty when every credential is readable.
    pub(crate) fn unreadable(&self) -> &'static str {
        self.unreadable
    }
}

/// Removes the bearer token from the WebSocket sub-protocols and keeps the other sub-protocols.
///
/// Without a WebSocket upgrade, the token is removed and ignored.
fn take_websocket_token(headers: &mut HeaderMap, names: &Names) -> Result<Option<Vec<u8>>, &'static str> {
    let has_word = |name: HeaderName, word: &str| {
        let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|part| part.trim().eq_ignore_ascii_case(word))
    };
    let is_upgrade = has_word(UPGRADE, "websocket") && has_word(CONNECTION, "upgrade");
    let prefix = format!("base64url.bearer.{}.", names.group("authorization"));
    let mut other_protocols: Vec<&[u8]> = Vec::new();
    let mut tokens: Vec<&[u8]> = Vec::new();
    for value in headers.get_all(SEC_WEBSOCKET_PROTOCOL) {
        for protocol in value.as_bytes().split(|&b| b == b',').map(<[u8]>::trim_ascii) {
            match protocol.strip_prefix(prefix.as_bytes()) {
                Some(token) => tokens.push(token),
                None if protocol.is_empty() => {}
                None => other_protocols.push(protocol),
            }
        }
    }
    let Some(first) = tokens.first() else { return Ok(None) };
    let token = match tokens.len() {
        1 => URL_SAFE_NO_PAD.decode(first).map_err(|_| "the token among the sub-protocols is not base64url"),
        _ => Err("several tokens among the sub-protocols; the client must send one"),
    };
    let remaining = HeaderValue::from_bytes(&other_protocols.join(&b", "[..]));
    let is_alone = other_protocols.is_empty();
    headers.remove(SEC_WEBSOCKET_PROTOCOL);
    if let (false, Ok(remaining)) = (is_alone, remaining) {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, remaining);
    }
    if !is_upgrade {
        return Ok(None);
    }
    let token = token?;
    if std::str::from_utf8(&token).is_err() {
        return Err("the token among the sub-protocols is not UTF-8");
    }
    match (token.is_empty(), is_alone) {
        (true, _) => Ok(None),
        (false, true) => Err(
            "the token is the only WebSocket sub-protocol; the client must also offer one that is no token",
        ),
        (false, false) => Ok(Some(token)),
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;

    use super::*;

    fn headers(list: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in list {
            headers.append(HeaderName::from_static(name), value.parse().unwrap());
        }
        headers
    }

    fn take(headers: &mut HeaderMap, proxies: &ProxyHeaders) -> HeaderCredentials {
        HeaderCredentials::take(headers, proxies, &Names::new(Preset::Kubernetes, "").unwrap())
    }

    #[test]
    fn bearer_token_follows_the_scheme() {
        for (header, expected) in [
            ("Bearer abc", Some("abc")),
            ("bearer a.b-c_d~e+f/g==", Some("a.b-c_d~e+f/g==")),
            ("  BEARER abc ", Some("abc")),
            ("Bearer abc def", Some("abc")),
            ("Bearer ", None),
            ("Bearer  abc", None),
            ("Bearer", None),
            ("Basic abc", None),
            ("", None),
        ] {
            let mut headers = headers(&[("authorization", header)]);
            let header_credentials = take(&mut headers, &ProxyHeaders::default());
            assert_eq!(header_credentials.token(), expected.map(str::as_bytes), "`{header}`");
            assert!(headers.is_empty(), "`{header}`");
        }
    }

    #[test]
    fn proxy_headers_are_removed_and_others_kept() {
        let sent = || {
            headers(&[
                ("x-remote-user", "root"),
                ("x-remote-extra-a", "1"),
                ("x-remote-extra-a", "2"),
                ("accept", "*/*"),
            ])
        };
        let mut all = sent();
        assert_eq!(take(&mut all, &ProxyHeaders::default()).proxy_headers().count(), 0);
        assert_eq!(all, sent(), "no proxy is configured");
        let proxies =
            ProxyHeaders { names: vec!["x-remote-user".into()], prefixes: vec!["x-remote-extra-".into()] };
        let header_credentials = take(&mut all, &proxies);
        let mut taken: Vec<_> = header_credentials.proxy_headers().collect();
        taken.sort_unstable();
        assert_eq!(
            taken,
            [("x-remote-extra-a", &b"1"[..]), ("x-remote-extra-a", b"2"), ("x-remote-user", b"root")]
        );
        assert_eq!(all, headers(&[("accept", "*/*")]));
    }

    #[test]
    fn names_with_underscores_are_removed_and_no_credentials() {
        let proxies =
            ProxyHeaders { names: vec!["x-custom-user".into()], prefixes: vec!["x-custom_extra-".into()] };
        let mut sent = headers(&[
            ("x_custom_user", "root"),
            ("x-custom_user", "root"),
            ("x-custom-user", "alice"),
            ("x_custom_extra_a", "1"),
            ("x-custom_extra-a", "2"),
            ("x_custom", "kept"),
        ]);
        let header_credentials = take(&mut sent, &proxies);
        let mut taken: Vec<_> = header_credentials.proxy_headers().collect();
        taken.sort_unstable();
        assert_eq!(taken, [("x-custom-user", &b"alice"[..]), ("x-custom_extra-a", b"2")]);
        assert_eq!(sent, headers(&[("x_custom", "kept")]));
    }

    #[test]
    fn websocket_subprotocol_bearer_token_is_accepted_and_removed() {
        const TOKEN: &str = "base64url.bearer.authorization.k8s.io.YWxpY2UtdG9rZW4";
        let upgrade = [("connection", "keep-alive, Upgrade"), ("upgrade", "WebSocket")];
        for (protocols, token, unreadable, remaining) in [
            (vec!["v4.channel.k8s.io"], None, "", Some("v4.channel.k8s.io")),
            (vec!["a", TOKEN], Some("alice-token"), "", Some("a")),
            (vec![&*format!("a,{TOKEN} , b")], Some("alice-token"), "", Some("a, b")),
            (vec![TOKEN], None, "the only WebSocket sub-protocol", None),
            (vec!["a", TOKEN, TOKEN], None, "several tokens", Some("a")),
            (vec!["a", "base64url.bearer.authorization.k8s.io."], None, "", Some("a")),
            (vec!["a", "base64url.bearer.authorization.k8s.io.YQ=="], None, "not base64url", Some("a")),
            (vec!["a", "base64url.bearer.authorization.k8s.io._w"], None, "not UTF-8", Some("a")),
            (
                vec!["base64url.bearer.authorization.example.YQ"],
                None,
                "",
                Some("base64url.bearer.authorization.example.YQ"),
            ),
        ] {
            let mut sent = headers(&upgrade);
            for protocol in &protocols {
                sent.append(SEC_WEBSOCKET_PROTOCOL, protocol.parse().unwrap());
            }
            let header_credentials = take(&mut sent, &ProxyHeaders::default());
            assert_eq!(header_credentials.token(), token.map(str::as_bytes), "{protocols:?}");
            assert!(
                header_credentials.unreadable().contains(unreadable),
                "{protocols:?}: {}",
                header_credentials.unreadable()
            );
            assert_eq!(header_credentials.unreadable().is_empty(), unreadable.is_empty(), "{protocols:?}");
            let protocols_after = sent.get(SEC_WEBSOCKET_PROTOCOL).map(|value| value.to_str().unwrap());
            assert_eq!(protocols_after, remaining, "{protocols:?}");
        }
        let mut plain = headers(&[("sec-websocket-protocol", TOKEN)]);
        let header_credentials = take(&mut plain, &ProxyHeaders::default());
        assert_eq!(
            (header_credentials.token(), header_credentials.unreadable()),
            (None, ""),
            "not a WebSocket upgrade"
        );
        assert!(!plain.contains_key(SEC_WEBSOCKET_PROTOCOL), "no credential stays in a header");
    }
}
