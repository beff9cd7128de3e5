//! Warnings about IP addresses and networks that are valid, but not in canonical form.
//!
//! # Contract
//!
//! A function takes a field and adds the warnings about its text. It adds no warning about a text that is not
//! an address: a validation rule reports such a text.

use core::net::IpAddr;

use apimachinery::object::Object;

use super::{Field, network};

/// Warns of an IP address with leading zeros, an IPv4-mapped address, and an IPv6 address in another form than that
/// of RFC 5952.
pub(crate) fn ip(field: &Field<'_, '_>, warnings: &mut Vec<String>) {
    let text = field.text();
    let Some(address) = network::parse_ip(text) else { return };
    let path = field.path();
    if text.parse::<IpAddr>().is_err() || network::is_mapped(address) {
        let standard = address.to_canonical();
        warnings.push(format!("{path}: non-standard IP address {text:?} is invalid: use \"{standard}\""));
    } else if address.is_ipv6() && address.to_string() != text {
        warnings.push(format!(
            "{path}: IPv6 address {text:?} should be in RFC 5952 canonical format (\"{address}\")"
        ));
    }
}

/// Warns of a network with bits set after its prefix, and of a network that is not in canonical form.
pub(crate) fn cidr(field: &Field<'_, '_>, warnings: &mut Vec<String>) {
    let text = field.text();
    let Some((address, length)) = network::parse_cidr(text) else { return };
    let path = field.path();
    let first = network::mask(address, length);
    let standard = format_network(first, length);
    let count = warnings.len();
    if first != address {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let single = format!("{}/{bits}", address.to_canonical());
        warnings.push(format!(
            "{path}: CIDR value {text:?} is ambiguous in this context (should be \"{standard}\" or \"{single}\"?)"
        ));
    }
    let (host, digits) = text.split_once('/').unwrap_or((text, ""));
    if host.parse::<IpAddr>().is_err() || digits != length.to_string() || network::is_mapped(address) {
        warnings.push(format!("{path}: non-standard CIDR value {text:?} is invalid: use \"{standard}\""));
    }
    if warnings.len() == count && address.is_ipv6() && host != address.to_string() {
        warnings.push(format!(
            "{path}: IPv6 CIDR value {text:?} should be in RFC 5952 canonical format (\"{address}/{length}\")"
        ));
    }
}

/// Warns of addresses of the load balancer in a status that are not in canonical form.
pub(crate) fn balancer_status(object: &Object) -> Vec<String> {
    let (status, mut warnings) = (Field::new(object.get("status"), "status"), Vec::new());
    let balancer = status.child("loadBalancer");
    for ingress in balancer.child("ingress").items() {
        // As in kube-apiserver, the path of the warning does not contain `ip`.
        ip(&ingress.with_value(ingress.child("ip").value()), &mut warnings);
    }
    warnings
}

/// A network as text; an IPv4-mapped network as an IPv4 network.
fn format_network(address: IpAddr, length: u32) -> String {
    const MAPPED_PREFIX: u32 = 96;
    match address.to_canonical() {
        v4 @ IpAddr::V4(_) if address.is_ipv6() => format!("{v4}/{}", length.saturating_sub(MAPPED_PREFIX)),
        address => format!("{address}/{length}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn warnings(rule: fn(&Field<'_, '_>, &mut Vec<String>), text: &str) -> Vec<String> {
        let (value, mut warnings) = (json!(text), Vec::new());
        rule(&Field::new(Some(&value), "f"), &mut warnings);
        warnings
    }

    #[test]
    fn non_canonical_ip_returns_warning() {
        for text in ["1.2.3.4", "2001:db8::1", "not an address"] {
            assert_eq!(warnings(ip, text), [""; 0], "{text}");
        }
        for (text, expected) in [
            ("01.2.3.4", "f: non-standard IP address \"01.2.3.4\" is invalid: use \"1.2.3.4\""),
            ("::ffff:1.2.3.4", "f: non-standard IP address \"::ffff:1.2.3.4\" is invalid: use \"1.2.3.4\""),
            (
                "2001:DB8::1",
                "f: IPv6 address \"2001:DB8::1\" should be in RFC 5952 canonical format (\"2001:db8::1\")",
            ),
        ] {
            assert_eq!(warnings(ip, text), [expected]);
        }
    }

    #[test]
    fn non_canonical_cidr_returns_warnings() {
        for text in ["10.0.0.0/8", "::/0", "2001:db8::/64", "x"] {
            assert_eq!(warnings(cidr, text), [""; 0], "{text}");
        }
        let ambiguous = |text: &str, network: &str, single: &str| {
            format!(
                "f: CIDR value \"{text}\" is ambiguous in this context (should be \"{network}\" or \"{single}\"?)"
            )
        };
        let other = |text: &str, network: &str| {
            format!("f: non-standard CIDR value \"{text}\" is invalid: use \"{network}\"")
        };
        for (text, expected) in [
            ("10.0.0.1/24", vec![ambiguous("10.0.0.1/24", "10.0.0.0/24", "10.0.0.1/32")]),
            ("010.0.0.0/8", vec![other("010.0.0.0/8", "10.0.0.0/8")]),
            ("::ffff:10.0.0.0/104", vec![other("::ffff:10.0.0.0/104", "10.0.0.0/8")]),
            (
                "010.0.0.1/8",
                vec![ambiguous("010.0.0.1/8", "10.0.0.0/8", "10.0.0.1/32"), other("010.0.0.1/8", "10.0.0.0/8")],
            ),
            (
                "2001:DB8::/64",
                vec![
                    "f: IPv6 CIDR value \"2001:DB8::/64\" should be in RFC 5952 canonical format (\"2001:db8::/64\")"
                        .to_owned(),
                ],
            ),
        ] {
            assert_eq!(warnings(cidr, text), expected);
        }
    }
}
