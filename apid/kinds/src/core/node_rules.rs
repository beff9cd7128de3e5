//! Normalization and validation of nodes.

use std::collections::BTreeSet;

use apimachinery::field::{FieldError, FieldErrors};
use apimachinery::names::Names;
use apimachinery::object::Object;
use serde_json::{Value, json};

use crate::defaults::{Fields, part};
use crate::format;
use crate::table::cell::PathReader as _;
use crate::validation::internal;
use crate::validation::{Field, network, resource, text};

/// Completes the fields with the ranges of pod addresses, so that `podCIDR` equals the first item of
/// `podCIDRs`. If the fields differ, `podCIDRs` becomes a list with only the value of `podCIDR`.
pub(super) fn normalize_ranges(spec: &mut Fields) {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or("").to_owned();
    let single = text(spec.get("podCIDR"));
    let first = text(spec.get("podCIDRs").and_then(|list| list.get(0)));
    let has_list = spec.get("podCIDRs").and_then(Value::as_array).is_some_and(|list| !list.is_empty());
    if !single.is_empty() && (!has_list || single != first) {
        spec.insert("podCIDRs".to_owned(), json!([single]));
    } else if single.is_empty() && !first.is_empty() {
        spec.insert("podCIDR".to_owned(), json!(first));
    }
}

/// Removes the fields of dynamic kubelet configuration, which no longer exists.
pub(super) fn remove_config(object: &mut Object) {
    for (owner, name) in [("spec", "configSource"), ("status", "config")] {
        if let Some(owner) = part(object, owner) {
            owner.remove(name);
        }
    }
}

/// Validates a new node.
pub(super) fn validate(object: &Object, names: &Names) -> FieldErrors {
    let spec = Field::new(object.get("spec"), "spec");
    let mut errors = FieldErrors::new();
    validate_taints(&spec, &mut errors);
    validate_amounts(object, names, &mut errors);
    validate_ranges(&spec.child("podCIDRs"), &mut errors);
    errors
}

/// Validates an update through the main resource or the status.
pub(super) fn validate_update(new: &Object, old: &Object, names: &Names) -> FieldErrors {
    let (spec, old_spec) = (Field::new(new.get("spec"), "spec"), Field::new(old.get("spec"), "spec"));
    let mut errors = FieldErrors::new();
    validate_amounts(new, names, &mut errors);
    let status = Field::new(new.get("status"), "status");
    check_unique_addresses(&status.child("addresses"), &mut errors);
    for (name, path, detail) in [
        ("podCIDRs", "podCIDRs", "node updates may not change podCIDR except from \"\" to valid"),
        ("providerID", "providerID", "node updates may not change providerID except from \"\" to valid"),
    ] {
        let (field, old) = (spec.child(name), old_spec.child(name));
        let is_set = !old.list().is_empty() || !old.text().is_empty();
        if is_set && field.value() != old.value() {
            errors.push(spec.child(path).forbidden(detail));
        }
    }
    validate_ranges(&spec.child("podCIDRs"), &mut errors);
    // As in kube-apiserver, the rules for all nodes and the rules for updates both report errors of taints.
    validate_taints(&spec, &mut errors);
    validate_taints(&spec, &mut errors);
    if new.text("spec.externalID") != old.text("spec.externalID") {
        errors.push(spec.child("externalID").forbidden("may not be updated"));
    }
    errors
}

fn check_unique_addresses(addresses: &Field<'_, '_>, errors: &mut FieldErrors) {
    let mut seen = BTreeSet::new();
    for address in addresses.items() {
        if !seen.insert((address.child("type").text(), address.child("address").text())) {
            let address_text = internal::text_of_type(address.value(), "core/v1.NodeAddress");
            errors.push(internal::duplicate_value(&address, &address_text));
        }
    }
}

/// Validates the taints. As in kube-apiserver, the paths of their errors begin with `metadata.taints`.
fn validate_taints(spec: &Field<'_, '_>, errors: &mut FieldErrors) {
    let list = spec.child("taints");
    let taints = Field::new(list.value(), "metadata.taints");
    let mut seen = BTreeSet::new();
    for taint in taints.items() {
        let (key, value) = (taint.child("key"), taint.child("value"));
        text::check_format(&key, format::qualified_name, errors);
        let invalid = format::label_value(value.text());
        if !invalid.is_empty() {
            errors.push(value.invalid_value(value.text(), &invalid.join(";")));
        }
        let effect = taint.child("effect");
        text::require_supported(&effect, &["NoSchedule", "PreferNoSchedule", "NoExecute"], errors);
        if !seen.insert((effect.text(), key.text())) {
            let taint_text = internal::text_of_type(taint.value(), "core/v1.Taint");
            let detail = "taints must be unique by key and effect pair";
            errors.push(internal::duplicate(&taint, &taint_text, detail));
        }
    }
}

fn validate_amounts(object: &Object, names: &Names, errors: &mut FieldErrors) {
    let status = Field::new(object.get("status"), "status");
    for list in ["capacity", "allocatable"] {
        let amounts = status.child(list);
        for name in amounts.value().and_then(Value::as_object).into_iter().flat_map(|map| map.keys()) {
            resource::check_amount(&amounts.child(name), name, names, errors);
        }
    }
}

/// Validates ranges of addresses: at most one range of each IP family.
fn validate_ranges(ranges: &Field<'_, '_>, errors: &mut FieldErrors) {
    let mut families = Vec::new();
    let mut invalid = None;
    for (i, range) in ranges.items().enumerate() {
        match is_ipv6_range(range.text()) {
            Some(is_v6) => families.push(is_v6),
            None => {
                let detail = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
                errors.push(range.invalid_value(range.text(), detail));
                invalid = invalid.or(Some((i, range.text())));
            }
        }
    }
    let count = ranges.list().len();
    if count < 2 {
        return;
    }
    if let Some((i, text)) = invalid {
        errors.push(FieldError::internal(
            &ranges.path(),
            &format!(
                "invalid PodCIDRs. failed to check with dual stack with error:invalid CIDR[{i}]: <nil> (invalid CIDR \
                 address: {text})"
            ),
        ));
    }
    let is_dual_stack = invalid.is_none() && families.contains(&true) && families.contains(&false);
    if count > 2 || !is_dual_stack {
        errors.push(ranges.invalid("may specify no more than one CIDR for each IP family"));
    }
}

/// Whether a range contains IPv6 addresses; None if the text is not a range of addresses.
fn is_ipv6_range(text: &str) -> Option<bool> {
    let (address, length) = text.split_once('/')?;
    let address = network::parse_ip(address)?;
    let is_number = !length.is_empty() && length.bytes().all(|b| b.is_ascii_digit());
    let length: u8 = length.parse().ok().filter(|_| is_number)?;
    let max = if address.is_ipv6() { 128 } else { 32 };
    (length <= max).then_some(address.is_ipv6())
}
