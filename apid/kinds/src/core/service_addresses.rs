//! Cluster IP addresses and IP families of services.

use std::collections::BTreeSet;

use apimachinery::field::FieldErrors;

use crate::validation::{Field, network, text};

/// Value of `clusterIP` for a service without a cluster IP address.
const HEADLESS: &str = "None";
/// Maximum number of cluster IP addresses, and of IP families, of a service.
const FAMILIES_MAX: usize = 2;
/// IP families.
const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];
/// Allowed values of `ipFamilyPolicy`.
const POLICIES: [&str; 3] = ["PreferDualStack", "RequireDualStack", "SingleStack"];

/// Whether a service has no cluster IP address.
pub(super) fn is_headless(spec: &Field<'_, '_>) -> bool {
    matches!(spec.child("clusterIPs").list(), [address] if address == HEADLESS)
}

/// Validates the addresses and families of a service.
pub(super) fn validate(spec: &Field<'_, '_>, errors: &mut FieldErrors) {
    if spec.child("type").text() == "ExternalName" {
        return;
    }
    let (list, families) = (spec.child("clusterIPs"), spec.child("ipFamilies"));
    check_first_address(spec, &list, errors);
    text::check_supported(&spec.child("ipFamilyPolicy"), &POLICIES, errors);
    let mut seen = BTreeSet::new();
    for family in families.items() {
        text::check_listed(&family, &FAMILIES, errors);
        if !seen.insert(family.text()) {
            errors.push(family.duplicate());
        }
    }
    let is_valid = validate_cluster_addresses(&list, errors);
    if list.list().len() > FAMILIES_MAX {
        errors.push(list.invalid("may only hold up to 2 values"));
    }
    if is_valid {
        check_matching_families(&list, &families, errors);
    }
    let policy = spec.child("ipFamilyPolicy");
    let is_dual =
        families.list().len() == FAMILIES_MAX && FAMILIES.iter().all(|family| seen.contains(family));
    if is_dual && policy.text() == "SingleStack" {
        let detail =
            "must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified";
        errors.push(policy.invalid(detail));
    }
}

fn check_first_address(spec: &Field<'_, '_>, list: &Field<'_, '_>, errors: &mut FieldErrors) {
    let (address, first) = (spec.child("clusterIP"), list.list().first());
    if address.text().is_empty() {
        if first.is_some() {
            errors.push(list.invalid("must be empty when `clusterIP` is not specified"));
        }
    } else if first.and_then(|first| first.as_str()) != Some(address.text()) {
        errors.push(list.invalid("first value must match `clusterIP`"));
    }
}

/// Validates the cluster IP addresses. Returns whether all items of the list are IP addresses.
fn validate_cluster_addresses(list: &Field<'_, '_>, errors: &mut FieldErrors) -> bool {
    let mut seen = BTreeSet::new();
    let mut is_valid = true;
    for (i, address) in list.items().enumerate() {
        if address.text() == HEADLESS {
            if i > 0 || list.list().len() > 1 {
                errors.push(address.invalid("must be a valid IP"));
            }
            is_valid = false;
            continue;
        }
        let count = errors.len();
        network::check_ip(&address, errors);
        is_valid &= errors.len() == count;
        if !seen.insert(address.text()) {
            errors.push(address.duplicate());
        }
    }
    is_valid
}

/// Reports addresses whose IP family differs from the item of `ipFamilies` at the same index.
fn check_matching_families(list: &Field<'_, '_>, families: &Field<'_, '_>, errors: &mut FieldErrors) {
    for (i, (address, family)) in list.items().zip(families.items()).enumerate() {
        let Some(parsed) = network::parse_ip(address.text()) else { continue };
        let expected = family.text();
        let actual = if network::is_ipv4(parsed) { "IPv4" } else { "IPv6" };
        if FAMILIES.contains(&expected) && expected != actual {
            let detail = format!("expected an {expected} value as indicated by `ipFamilies[{i}]`");
            errors.push(address.invalid(&detail));
        }
    }
}

/// Reports each cluster IP address that differs from the old address at the same index. Also reports an update
/// that removes the second IP family without a change of the policy to `SingleStack`.
pub(super) fn validate_update(new: &Field<'_, '_>, old: &Field<'_, '_>, errors: &mut FieldErrors) {
    let is_external = |spec: &Field<'_, '_>| spec.child("type").text() == "ExternalName";
    if is_external(new) || is_external(old) {
        return;
    }
    let (addresses, old_addresses) = (new.child("clusterIPs"), old.child("clusterIPs"));
    for (item, old) in addresses.items().zip(old_addresses.list()) {
        if item.value() != Some(old) {
            errors.push(item.with_value(addresses.value()).invalid("may not change once set"));
        }
    }
    let (policy, old_policy) = (new.child("ipFamilyPolicy"), old.child("ipFamilyPolicy"));
    let count = |spec: &Field<'_, '_>| spec.child("ipFamilies").list().len();
    let is_released = count(old) > 1 && count(new) == 1;
    if is_released && policy.text() == old_policy.text() && policy.text() != "SingleStack" {
        errors.push(policy.invalid("must be 'SingleStack' to release the secondary IP family"));
    }
}
