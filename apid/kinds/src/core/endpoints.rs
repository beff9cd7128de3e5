//! Endpoints: the addresses behind a service (deprecated form of EndpointSlice).

use apimachinery::clock::Clock;
use apimachinery::field::FieldErrors;
use apimachinery::object::Object;
use serde_json::{Value, json};

use crate::defaults::{fill_text, maps_in_list};
use crate::format;
use crate::table::cell::{NONE, PathReader, first_three};
use crate::table::{AGE, NAME};
use crate::validation::{Field, address_form, network, text};
use crate::{BuiltInKind, Column, Context, Strategy, WriteRules};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    short_names: &["ep"],
    rules: WriteRules { create_on_update: true, ..WriteRules::BUILT_IN },
    columns: &[NAME, Column::text("Endpoints", "Ready addresses with their ports."), AGE],
    cells,
    strategy: &Endpoints,
    ..BuiltInKind::namespaced("core/v1.Endpoints", "endpoints")
};

struct Endpoints;

impl Strategy for Endpoints {
    fn default(&self, object: &mut Object, _ctx: &Context<'_>) {
        for subset in maps_in_list(&mut object.0, "subsets") {
            for port in maps_in_list(subset, "ports") {
                fill_text(port, "protocol", "TCP");
            }
        }
    }

    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        let mut errors = FieldErrors::new();
        for subset in Field::new(object.get("subsets"), "subsets").items() {
            validate_subset(&subset, &mut errors);
        }
        errors
    }

    fn warnings(&self, new: &Object, _old: Option<&Object>, ctx: &Context<'_>) -> Vec<String> {
        let mut warnings = Vec::new();
        // The endpoint controller writes addresses in canonical form, which need no warnings.
        if new.label(&ctx.names.label_sub_key("endpoints", "managed-by")) == Some("endpoint-controller") {
            return warnings;
        }
        for subset in Field::new(new.get("subsets"), "subsets").items() {
            for list in ADDRESS_LISTS {
                for address in subset.child(list).items() {
                    address_form::ip(&address.child("ip"), &mut warnings);
                }
            }
        }
        warnings
    }
}

/// Fields of a subset that hold lists of addresses.
const ADDRESS_LISTS: [&str; 2] = ["addresses", "notReadyAddresses"];

fn validate_subset(subset: &Field<'_, '_>, errors: &mut FieldErrors) {
    let lists = ADDRESS_LISTS.map(|list| subset.child(list));
    if lists.iter().all(|list| list.list().is_empty()) {
        errors.push(subset.required("must specify `addresses` or `notReadyAddresses`"));
    }
    for list in &lists {
        for address in list.items() {
            validate_address(&address, errors);
        }
    }
    let ports = subset.child("ports");
    let is_name_required = ports.list().len() > 1;
    for port in ports.items() {
        let name = port.child("name");
        if !name.text().is_empty() {
            text::check_format(&name, format::label, errors);
        } else if is_name_required {
            errors.push(name.required(""));
        }
        network::check_port(&port.child("port"), errors);
        text::require_supported(&port.child("protocol"), &network::PROTOCOLS, errors);
        network::check_application_protocol(&port.child("appProtocol"), errors);
    }
}

fn validate_address(address: &Field<'_, '_>, errors: &mut FieldErrors) {
    let ip = address.child("ip");
    network::check_ip(&ip, errors);
    let (host, node) = (address.child("hostname"), address.child("nodeName"));
    text::check_nonempty_format(&host, format::label, errors);
    text::check_present_format(&node, format::subdomain, errors);
    network::check_endpoint_ip(&ip, errors);
}

fn cells(object: &Object, _clock: &dyn Clock) -> Vec<Value> {
    let subsets = object.items("subsets");
    let endpoints = match subsets {
        [] => NONE.to_owned(),
        _ => first_three(&subsets.iter().flat_map(addresses).collect::<Vec<_>>(), ","),
    };
    vec![json!(endpoints)]
}

/// Each address with each port, or the address alone if the subset has no ports.
fn addresses(subset: &Value) -> Vec<String> {
    let addresses = subset.items("addresses").iter().map(|address| address.text("ip"));
    match subset.items("ports") {
        [] => addresses.map(str::to_owned).collect(),
        ports => ports
            .iter()
            .flat_map(|port| addresses.clone().map(|address| at_port(address, port.integer("port"))))
            .collect(),
    }
}

fn at_port(address: &str, port: i64) -> String {
    if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") }
}
