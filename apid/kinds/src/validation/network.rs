//! Rules for ports, port names and addresses.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use apimachinery::field::FieldErrors;
pub use apimachinery::ip_address::parse as parse_ip;

use super::{Field, text};
use crate::format;

/// Message for an invalid port number.
const PORT: &str = "must be between 1 and 65535, inclusive";

/// Transport protocols of ports.
pub(crate) const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];

/// Validates the application protocol of a port, if present.
pub(crate) fn check_application_protocol(field: &Field<'_, '_>, errors: &mut FieldErrors) {
    text::check_present_format(field, format::qualified_name, errors);
}

/// Reports a number outside 1 to 65535; an absent number counts as 0.
pub(crate) fn check_port(field: &Field<'_, '_>, errors: &mut FieldErrors) {
    let number = field.integer().unwrap_or(0);
    if !(1..=65_535).contains(&number) {
        errors.push(field.invalid_value(number, PORT));
    }
}

/// Validates the number or the name of a port.
pub(crate) fn check_port_or_name(field: &Field<'_, '_>, errors: &mut FieldErrors) {
    match field.value().and_then(serde_json::Value::as_str) {
        None => check_port(field, errors),
        Some(name) => {
            text::check_name(field, name, format::port_name, errors);
        }
    }
}

/// Reports a text that is no IP address.
pub(crate) fn check_ip(field: &Field<'_, '_>, errors: &mut FieldErrors) {
    if parse_ip(field.text()).is_none() {
        errors.push(
            field
                .invalid_value(field.text(), "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"),
        );
    }
}

/// Validates a host name, unless it is empty. An IP address is no host name.
pub(crate) fn check_host_name(field: &Field<'_, '_>, errors: &mut FieldErrors) {
    if field.text().is_empty() {
        return;
    }
    text::check_format(field, format::subdomain, errors);
    if parse_ip(field.text()).is_some() {
        errors.push(field.invalid("must be a DNS name, not an IP address"));
    }
}

/// Parses an IP network such as `10.0.0.0/8` as kube-apiserver does for existing fields: with leading zeros, and with
/// bits set after the prefix. Returns the address with the length of the prefix.
pub fn parse_cidr(text: &str) -> Option<(IpAddr, u32)> {
    let (address, length) = text.split_once('/')?;
    let address = parse_ip(address)?;
    let max = if address.is_ipv4() { 32 } else { 128 };
    let is_number = !length.is_empty() && length.bytes().all(|b| b.is_ascii_digit());
    let length = length.parse().ok().filter(|length| is_number && *length <= max)?;
    Some((address, length))
}

/// Reports a text that is no IP network.
pub(crate) fn check_cidr(field: &Field<'_, '_>, errors: &mut FieldErrors) {
    if parse_cidr(field.text()).is_none() {
        let detail = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
        errors.push(field.invalid_value(field.text(), detail));
    }
}

/// Reports a text that is no IP address in its canonical form.
pub(crate) fn check_canonical_ip(field: &Field<'_, '_>, errors: &mut FieldErrors) {
    let text = field.text();
    let Some(address) = parse_ip(text) else {
        check_ip(field, errors);
        return;
    };
    let detail = if text.parse::<IpAddr>().is_err() {
        "must not have leading 0s".to_owned()
    } else if is_mapped(address) {
        "must not be an IPv4-mapped IPv6 address".to_owned()
    } else if address.to_string() != text {
        format!("must be in canonical form (\"{address}\")")
    } else {
        return;
    };
    errors.push(field.invalid_value(text, &detail));
}

/// Reports a text that is no IP network in its canonical form.
pub(crate) fn check_canonical_cidr(field: &Field<'_, '_>, errors: &mut FieldErrors) {
    let text = field.text();
    let Some((address, length)) = parse_cidr(text) else {
        check_cidr(field, errors);
        return;
    };
    let (host, digits) = text.split_once('/').unwrap_or((text, ""));
    let network = mask(address, length);
    let canonical = format!("{network}/{length}");
    let detail = if host.parse::<IpAddr>().is_err() || digits != length.to_string() {
        "must not have leading 0s in IP or prefix length".to_owned()
    } else if is_mapped(address) {
        "must not have an IPv4-mapped IPv6 address".to_owned()
    } else if network != address {
        "must not have bits set beyond the prefix length".to_owned()
    } else if canonical != text {
        format!("must be in canonical form (\"{canonical}\")")
    } else {
        return;
    };
    errors.push(field.invalid_value(text, &detail));
}

/// Whether an address is of the family IPv4. kube-apiserver regards IPv4-mapped addresses as IPv4 addresses.
pub(crate) fn is_ipv4(address: IpAddr) -> bool {
    address.is_ipv4() || is_mapped(address)
}

/// Validates the IP address of an endpoint: other nodes must be able to reach the address.
pub(crate) fn check_endpoint_ip(field: &Field<'_, '_>, errors: &mut FieldErrors) {
    let Some(address) = parse_ip(field.text()).map(|address| address.to_canonical()) else {
        errors.push(field.invalid_value(field.text(), "must be a valid IP address"));
        return;
    };
    let (is_link_local, is_local_multicast) = match address {
        IpAddr::V4(v4) => (v4.is_link_local(), v4.octets().starts_with(&[224, 0, 0])),
        IpAddr::V6(v6) => {
            let first = v6.segments().first().copied().unwrap_or(0);
            (v6.is_unicast_link_local(), first & 0xff0f == 0xff02)
        }
    };
    if address.is_unspecified() {
        errors.push(field.invalid(&format!("may not be unspecified ({})", field.text())));
    }
    if address.is_loopback() {
        errors.push(field.invalid("may not be in the loopback range (127.0.0.0/8, ::1/128)"));
    }
    if is_link_local {
        errors.push(field.invalid("may not be in the link-local range (169.254.0.0/16, fe80::/10)"));
    }
    if is_local_multicast {
        let detail = "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)";
        errors.push(field.invalid(detail));
    }
}

/// Whether an address is IPv4-mapped.
pub(crate) fn is_mapped(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some())
}

/// The address with zeros in the bits after a prefix of `length` bits.
pub(crate) fn mask(address: IpAddr, length: u32) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32_u32.saturating_sub(length)).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from(u32::from(address) & mask))
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128_u32.saturating_sub(length)).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from(u128::from(address) & mask))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn canonical_addresses_are_accepted() {
        let count = |rule: fn(&Field<'_, '_>, &mut FieldErrors), text: &str| {
            let value = json!(text);
            let mut errors = FieldErrors::new();
            rule(&Field::new(Some(&value), "f"), &mut errors);
            errors.len()
        };
        for (text, errors) in
            [("1.2.3.4", 0), ("2001:db8::7", 0), ("01.2.3.4", 1), ("::ffff:1.2.3.4", 1), ("2001:DB8::7", 1)]
        {
            assert_eq!(count(check_canonical_ip, text), errors, "{text}");
        }
        for (text, errors) in [
            ("10.0.0.0/8", 0),
            ("0.0.0.0/0", 0),
            ("::/0", 0),
            ("2001:db8::/64", 0),
            ("10.0.0.1/8", 1),
            ("10.0.0.0/08", 1),
            ("10.0.0.0/33", 1),
            ("10.0.0.0", 1),
        ] {
            assert_eq!(count(check_canonical_cidr, text), errors, "{text}");
        }
    }
}
