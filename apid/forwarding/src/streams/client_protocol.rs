//! The protocol that the headers of a client select.

use http::HeaderMap;
use http::header::{CONNECTION, HeaderName, SEC_WEBSOCKET_PROTOCOL, UPGRADE};

use super::TUNNEL_PREFIX;

/// The treatment of the streams of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientProtocol {
    /// Forwards the upgrade to the node.
    PassThrough,
    /// Translates channels of a WebSocket to SPDY streams.
    Translated,
    /// Takes SPDY bytes out of WebSocket messages; with the SPDY protocols that the client offers.
    Tunnelled(Vec<String>),
}

impl ClientProtocol {
    /// Returns the protocol that the headers of a request select.
    ///
    /// `version_5` is the name of the channel protocol with close signals, `domain` the suffix of protocol names, such as
    /// `.k8s.io`.
    pub fn of(headers: &HeaderMap, subresource: &str, version_5: &str, domain: &str) -> Self {
        if !contains(headers, &UPGRADE, "websocket") || !contains(headers, &CONNECTION, "upgrade") {
            return ClientProtocol::PassThrough;
        }
        let mut offered = elements(headers, &SEC_WEBSOCKET_PROTOCOL);
        if subresource != "portforward" {
            return match offered.any(|protocol| protocol == version_5) {
                true => ClientProtocol::Translated,
                false => ClientProtocol::PassThrough,
            };
        }
        let tunnelled = offered.filter_map(|protocol| {
            protocol.strip_prefix(TUNNEL_PREFIX).filter(|name| name.ends_with(domain))
        });
        let protocols: Vec<String> = tunnelled.map(str::to_owned).collect();
        if protocols.is_empty() { ClientProtocol::PassThrough } else { ClientProtocol::Tunnelled(protocols) }
    }
}

/// Returns the elements of a list header.
fn elements<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim).filter(|element| !element.is_empty())
}

fn contains(headers: &HeaderMap, name: &HeaderName, word: &str) -> bool {
    elements(headers, name).any(|element| element.eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn sub_protocol_selects_translation_tunnel_or_pass_through() {
        let tunnelled =
            |names: &[&str]| ClientProtocol::Tunnelled(names.iter().map(|name| (*name).to_owned()).collect());
        for (upgrade, protocols, subresource, expected) in [
            ("SPDY/3.1", "v5.channel.svc.io", "exec", ClientProtocol::PassThrough),
            ("websocket", "v5.channel.svc.io", "exec", ClientProtocol::Translated),
            ("WebSocket", "v4.channel.svc.io, v5.channel.svc.io", "attach", ClientProtocol::Translated),
            ("websocket", "v4.channel.svc.io", "exec", ClientProtocol::PassThrough),
            ("websocket", "v5.channel.k8s.io", "exec", ClientProtocol::PassThrough),
            ("websocket", "", "exec", ClientProtocol::PassThrough),
            ("websocket", "SPDY/3.1+portforward.svc.io", "exec", ClientProtocol::PassThrough),
            ("websocket", "v5.channel.svc.io", "portforward", ClientProtocol::PassThrough),
            ("websocket", "v4.channel.svc.io", "portforward", ClientProtocol::PassThrough),
            ("websocket", "SPDY/3.1+portforward.svc.io", "portforward", tunnelled(&["portforward.svc.io"])),
            (
                "websocket",
                "SPDY/3.1+v2.portforward.svc.io, x, SPDY/3.1+portforward.other, SPDY/3.1+a.svc.io",
                "portforward",
                tunnelled(&["v2.portforward.svc.io", "a.svc.io"]),
            ),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(UPGRADE, HeaderValue::from_static(upgrade));
            headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocols));
            let of = |headers: &_| ClientProtocol::of(headers, subresource, "v5.channel.svc.io", ".svc.io");
            assert_eq!(of(&headers), ClientProtocol::PassThrough, "without Connection: Upgrade");
            headers.insert(CONNECTION, HeaderValue::from_static("keep-alive, Upgrade"));
            assert_eq!(of(&headers), expected, "{upgrade} {protocols} {subresource}");
        }
    }
}
