//! The addresses of a client in audit events.

use std::net::{IpAddr, SocketAddr};

use http::HeaderMap;

/// Headers of proxies with addresses of clients.
const FORWARDED_FOR: &str = "x-forwarded-for";
const REAL_IP: &str = "x-real-ip";

/// Returns the addresses of the client: those that proxies added, then that of the connection.
///
/// A client can send these headers itself, so only the last address is reliable, as in kube-apiserver.
pub(super) fn of_request(headers: &HeaderMap, peer: Option<SocketAddr>) -> Vec<String> {
    let mut sources: Vec<String> = Vec::with_capacity(1);
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(list) = text(FORWARDED_FOR) {
        sources.extend(list.split(',').filter_map(address));
    }
    if let Some(address) = text(REAL_IP).and_then(address).filter(|address| !sources.contains(address)) {
        sources.push(address);
    }
    if let Some(address) = peer.map(|peer| peer.ip().to_string()).filter(|ip| sources.last() != Some(ip)) {
        sources.push(address);
    }
    sources
}

fn address(text: &str) -> Option<String> {
    text.trim().parse::<IpAddr>().ok().map(|address| address.to_string())
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
}
