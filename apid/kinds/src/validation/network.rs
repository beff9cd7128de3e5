//! Rules for ports, port names and addresses.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use apimachinery::field::FieldErrors;

use super::Field;
use crate::format;

/// Message for an invalid port number.
const PORT: &str = "must be between 1 and 65535, inclusive";

/// Reports a number that is no port. Zero is no port.
pub(crate) fn check_port(field: &Field<'_, '_>, errors: &mut FieldErrors) {
    if !(1..=65_535).contains(&field.integer().unwrap_or(0)) {
        errors.push(field.invalid(PORT));
    }
}

/// Validates the number or the name of a port.
pub(crate) fn check_port_or_name(field: &Field<'_, '_>, errors: &mut FieldErrors) {
    match field.value().and_then(serde_json::Value::as_str) {
        None => check_port(field, errors),
        Some(name) => {
            for message in format::port_name(name) {
                errors.push(field.invalid(&message));
            }
        }
    }
}

/// Parses an IP address as kube-apiserver does for existing fields: leading zeros in IPv4 are accepted, zones are not.
pub(crate) fn parse_ip(text: &str) -> Option<IpAddr> {
    if text.contains(':') {
        return text.parse::<Ipv6Addr>().ok().map(IpAddr::V6);
    }
    let mut octets = [0; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let digits =
            parts.next().filter(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))?;
        let significant = digits.trim_start_matches('0');
        *octet = if significant.is_empty() { 0 } else { significant.parse().ok()? };
    }
    parts.next().is_none().then_some(IpAddr::V4(Ipv4Addr::from(octets)))
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
