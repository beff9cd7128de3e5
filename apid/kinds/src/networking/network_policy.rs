//! NetworkPolicy: allowed traffic from and to pods.

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;
use serde_json::{Value, json};

use crate::defaults::{fill, maps_in_list, part};
use crate::labels;

use crate::table::cell::selector;
use crate::table::{AGE, NAME};
use crate::validation::{Field, address_form, network, text};
use crate::{BuiltInKind, Column, Context, Generation, MetadataChecks, Strategy, WriteRules};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    short_names: &["netpol"],
    rules: WriteRules {
        metadata_checks: MetadataChecks::CHANGES,
        generation: Generation::Counted(&[]),
        ..WriteRules::BUILT_IN
    },
    columns: &[NAME, Column::text("Pod-Selector", "Pods to which the policy applies."), AGE],
    cells: |object, _| vec![json!(selector(object, "spec.podSelector"))],
    strategy: &NetworkPolicy,
    ..BuiltInKind::namespaced("networking/v1.NetworkPolicy", "networkpolicies")
};

struct NetworkPolicy;

impl Strategy for NetworkPolicy {
    fn default(&self, object: &mut Object, _ctx: &Context<'_>) {
        let Some(spec) = part(object, "spec") else { return };
        for list in ["ingress", "egress"] {
            for rule in maps_in_list(spec, list) {
                for port in maps_in_list(rule, "ports") {
                    fill(port, "protocol", "TCP");
                }
            }
        }
        let is_empty = |list: Option<&Value>| list.and_then(Value::as_array).is_none_or(Vec::is_empty);
        if is_empty(spec.get("policyTypes")) {
            let has_egress = !is_empty(spec.get("egress"));
            let types = if has_egress { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) };
            spec.insert("policyTypes".to_owned(), types);
        }
    }

    fn warnings(&self, new: &Object, _old: Option<&Object>, _ctx: &Context<'_>) -> Vec<String> {
        let (spec, mut warnings) = (Field::new(new.get("spec"), "spec"), Vec::new());
        for (rules, peers) in PEERS {
            for rule in spec.child(rules).items() {
                for peer in rule.child(peers).items() {
                    block_warnings(&peer.child("ipBlock"), &mut warnings);
                }
            }
        }
        warnings
    }

    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        let mut errors = FieldErrors::new();
        let spec = Field::new(object.get("spec"), "spec");
        labels::validate_selector(&spec.child("podSelector"), &mut errors);
        for (rules, peers) in PEERS {
            for rule in spec.child(rules).items() {
                for item in rule.child("ports").items() {
                    validate_port(&item, &mut errors);
                }
                for item in rule.child(peers).items() {
                    validate_peer(&item, &mut errors);
                }
            }
        }
        let types = spec.child("policyTypes");
        if types.list().len() > TYPES.len() {
            errors.push(types.invalid("may not specify more than two policyTypes"));
            return errors;
        }
        for item in types.items() {
            text::check_listed(&item, &TYPES, &mut errors);
        }
        errors
    }
}

/// Fields of the spec that list rules, each with the field of a rule that lists the peers.
const PEERS: [(&str, &str); 2] = [("ingress", "from"), ("egress", "to")];

fn block_warnings(block: &Field<'_, '_>, warnings: &mut Vec<String>) {
    address_form::cidr(&block.child("cidr"), warnings);
    for except in block.child("except").items() {
        address_form::cidr(&except, warnings);
    }
}

/// Types of policies, in the order in which the error message lists them.
const TYPES: [&str; 2] = ["Ingress", "Egress"];

fn validate_port(port: &Field<'_, '_>, errors: &mut FieldErrors) {
    text::check_supported(&port.child("protocol"), &["TCP", "UDP", "SCTP"], errors);
    let (number, end) = (port.child("port"), port.child("endPort"));
    if number.is_present() {
        network::check_port_or_name(&number, errors);
    }
    if !end.is_present() {
        return;
    }
    match (number.value(), number.integer()) {
        (None, _) => errors.push(end.invalid("may not be specified when `port` is not specified")),
        (_, None) => errors.push(end.invalid("may not be specified when `port` is non-numeric")),
        (_, Some(first)) => {
            if end.integer().is_some_and(|last| last < first) {
                // The error shows the first port of the range, as in kube-apiserver.
                errors.push(end.invalid_value(first, "must be greater than or equal to `port`"));
            }
            network::check_port(&end, errors);
        }
    }
}

fn validate_peer(peer: &Field<'_, '_>, errors: &mut FieldErrors) {
    let (pods, namespaces) = (peer.child("podSelector"), peer.child("namespaceSelector"));
    let block = peer.child("ipBlock");
    labels::validate_selector(&pods, errors);
    labels::validate_selector(&namespaces, errors);
    if block.is_present() {
        validate_ip_block(&block, errors);
    }
    let has_selector = pods.is_present() || namespaces.is_present();
    match (has_selector, block.is_present()) {
        (false, false) => errors.push(peer.required("must specify a peer")),
        (true, true) => errors.push(peer.forbidden("may not specify both ipBlock and another peer")),
        _ => {}
    }
}

fn validate_ip_block(block: &Field<'_, '_>, errors: &mut FieldErrors) {
    let range = block.child("cidr");
    if range.text().is_empty() {
        errors.push(range.required(""));
        return;
    }
    network::check_cidr(&range, errors);
    let Some((address, length)) = network::parse_cidr(range.text()) else { return };
    for except in block.child("except").items() {
        network::check_cidr(&except, errors);
        let Some((inner, inner_length)) = network::parse_cidr(except.text()) else { continue };
        // kube-apiserver compares IPv4-mapped addresses as IPv4 addresses.
        let (inner, address) = (inner.to_canonical(), address.to_canonical());
        let is_subset = inner.is_ipv4() == address.is_ipv4()
            && inner_length > length
            && network::mask(inner, length) == network::mask(address, length);
        if !is_subset {
            errors.push(except.invalid("must be a strict subset of `cidr`"));
        }
    }
}
