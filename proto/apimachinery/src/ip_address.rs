//! IP addresses in the lenient form of fields: leading zeros are accepted, zones are not.
//!
//! # Reference
//!
//! kube-apiserver parses addresses of existing fields so, and those of the formats `ipv4`, `ipv6` and `cidr` of custom
//! kinds.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Parses an IP address as kube-apiserver does for existing fields: leading zeros are accepted, zones are not.
pub fn parse(text: &str) -> Option<IpAddr> {
    if text.contains(':') { parse_ipv6(text).map(IpAddr::V6) } else { parse_ipv4(text).map(IpAddr::V4) }
}

/// Parses an IPv6 address. Its groups, and an IPv4 address at its end, may have leading zeros.
fn parse_ipv6(text: &str) -> Option<Ipv6Addr> {
    let (head, tail) = match text.rsplit_once(':') {
        Some((head, tail)) if tail.contains('.') => (head, Some(parse_ipv4(tail)?)),
        _ => (text, None),
    };
    let group = |group: &str| {
        let digits = group.trim_start_matches('0');
        if digits.is_empty() && !group.is_empty() { "0".to_owned() } else { digits.to_owned() }
    };
    let mut standard = head.split(':').map(group).collect::<Vec<_>>().join(":");
    if let Some(tail) = tail {
        standard.push(':');
        standard.push_str(&tail.to_string());
    }
    standard.parse().ok()
}

fn parse_ipv4(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let digits =
            parts.next().filter(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))?;
        let significant = digits.trim_start_matches('0');
        *octet = if significant.is_empty() { 0 } else { significant.parse().ok()? };
    }
    parts.next().is_none().then_some(Ipv4Addr::from(octets))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leading_zeros_are_accepted() {
        for (text, expected) in [
            ("010.001.0.255", Some("10.1.0.255")),
            ("1.2.3.0256", None),
            ("1.2.3", None),
            ("::ffff:01.2.3.4", Some("::ffff:1.2.3.4")),
            ("02001:0db8::00007", Some("2001:db8::7")),
            ("::", Some("::")),
            ("1::00", Some("1::")),
            ("::12345", None),
            ("fe80::1%eth0", None),
            (":::1", None),
            ("1:2:3:4:5:6:7:8:9", None),
            ("1.2.3.4::", None),
        ] {
            let expected = expected.map(|text| text.parse::<IpAddr>().unwrap());
            assert_eq!(parse(text), expected, "{text}");
        }
    }
}
