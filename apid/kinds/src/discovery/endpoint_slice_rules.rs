//! Validation of endpoint slices.

use std::collections::BTreeSet;

use apimachinery::field::FieldErrors;
use apimachinery::names::Names;
use apimachinery::object::Object;

use crate::format;
use crate::table::cell::PathReader as _;
use crate::validation::{Field, address_form, network, text};

/// Maximum number of endpoints of a slice.
const ENDPOINTS_MAX: usize = 1000;
/// Maximum number of addresses of an endpoint.
const ADDRESSES_MAX: usize = 100;
/// Maximum number of ports of a slice.
const PORTS_MAX: usize = 20_000;
/// Maximum number of zones in the hints of an endpoint.
const ZONES_MAX: usize = 8;

/// Controllers of Kubernetes that write endpoint slices.
const CONTROLLERS: [&str; 2] = ["endpointslice-controller", "endpointslicemirroring-controller"];

/// Validates an endpoint slice.
pub(super) fn validate(object: &Object) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let address_type = Field::new(object.get("addressType"), "addressType");
    text::require_supported(&address_type, &["FQDN", "IPv4", "IPv6"], &mut errors);
    let endpoints = Field::new(object.get("endpoints"), "endpoints");
    if endpoints.check_limit(ENDPOINTS_MAX, &mut errors) {
        for item in endpoints.items() {
            validate_endpoint(&item, address_type.text(), &mut errors);
        }
    }
    let ports = Field::new(object.get("ports"), "ports");
    if ports.check_limit(PORTS_MAX, &mut errors) {
        validate_ports(&ports, &mut errors);
    }
    errors
}

/// Warnings about the address type `FQDN` and about addresses that are not in canonical form. Slices of
/// [`CONTROLLERS`] get no warnings about addresses, because these controllers write the canonical form.
pub(super) fn warnings(slice: &Object, names: &Names) -> Vec<String> {
    let mut warnings = Vec::new();
    if slice.text("addressType") == "FQDN" {
        // kube-apiserver reports this field below `spec`, which slices do not have.
        warnings.push("spec.addressType: FQDN endpoints are deprecated".to_owned());
    }
    let manager = names.label_sub_key("endpointslice", "managed-by");
    let is_controller = |name: &str| CONTROLLERS.iter().any(|controller| names.group(controller) == name);
    if slice.label(&manager).is_some_and(is_controller) {
        return warnings;
    }
    for endpoint in Field::new(slice.get("endpoints"), "endpoints").items() {
        for address in endpoint.child("addresses").items() {
            address_form::ip(&address, &mut warnings);
        }
    }
    warnings
}

fn validate_endpoint(endpoint: &Field<'_, '_>, address_type: &str, errors: &mut FieldErrors) {
    let addresses = endpoint.child("addresses");
    addresses.require_items("must contain at least 1 address", errors);
    addresses.check_limit(ADDRESSES_MAX, errors);
    for item in addresses.items() {
        validate_address(&addresses, &item, address_type, errors);
    }
    text::check_present_format(&endpoint.child("nodeName"), format::subdomain, errors);
    text::check_present_format(&endpoint.child("hostname"), format::label, errors);
    let hints = endpoint.child("hints");
    let zones = hints.child("forZones");
    if !zones.check_limit(ZONES_MAX, errors) {
        return;
    }
    let mut names = BTreeSet::new();
    for zone in zones.items() {
        let name = zone.child("name");
        if !names.insert(name.text()) {
            errors.push(name.duplicate_value(name.text()));
        }
        text::check_format(&name, format::label_value, errors);
    }
}

fn validate_address(
    addresses: &Field<'_, '_>,
    address: &Field<'_, '_>,
    address_type: &str,
    errors: &mut FieldErrors,
) {
    if address_type == "FQDN" {
        text::require_format(address, format::subdomain, errors);
        return;
    }
    if !matches!(address_type, "IPv4" | "IPv6") {
        return;
    }
    let count = errors.len();
    // kube-apiserver accepts other forms of IPv4 addresses for compatibility.
    match address_type {
        "IPv4" => network::check_ip(address, errors),
        _ => network::check_canonical_ip(address, errors),
    }
    if errors.len() > count {
        return;
    }
    let is_ipv4 = network::parse_ip(address.text()).is_some_and(network::is_ipv4);
    if is_ipv4 != (address_type == "IPv4") {
        // kube-apiserver reports this error without the index.
        errors.push(addresses.invalid_value(address.text(), &format!("must be an {address_type} address")));
    }
    network::check_endpoint_ip(address, errors);
}

fn validate_ports(ports: &Field<'_, '_>, errors: &mut FieldErrors) {
    let mut names = BTreeSet::new();
    for port in ports.items() {
        let name = port.child("name");
        text::check_nonempty_format(&name, format::label, errors);
        if !names.insert(name.text()) {
            errors.push(name.duplicate_value(name.text()));
        }
        text::require_present_and_supported(&port.child("protocol"), &network::PROTOCOLS, errors);
        let number = port.child("port");
        if number.is_present() {
            network::check_port(&number, errors);
        }
        network::check_application_protocol(&port.child("appProtocol"), errors);
    }
}
