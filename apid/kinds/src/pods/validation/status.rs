//! Validation of writes to the status of a pod.

use std::collections::{BTreeMap, BTreeSet};

use apimachinery::field::{FieldError, FieldErrors};
use apimachinery::names::Names;
use apimachinery::object::Object;

use super::annotations;
use crate::format;
use crate::table::cell::PathReader as _;
use crate::validation::internal;
use crate::validation::{Field, network, number, text};

/// Highest valid user or group id.
const ID_MAX: i64 = i32::MAX as i64;

/// Validates a new status and the changes from the old status.
pub(crate) fn status(new: &Object, old: &Object, names: &Names) -> FieldErrors {
    let (new_status, old_status) =
        (Field::new(new.get("status"), "status"), Field::new(old.get("status"), "status"));
    let mut errors = FieldErrors::new();
    annotations::validate_update(new, old, names, &mut errors);
    for condition in new_status.child("conditions").items() {
        // Errors of kube-apiserver name this field `Type`, as in its Go source.
        let kind = condition.child("type");
        text::check_format(
            &condition.child("Type").with_value(kind.value()),
            format::qualified_name,
            &mut errors,
        );
    }
    let node = new_status.child("nominatedNodeName");
    if node.text() != old_status.child("nominatedNodeName").text() {
        text::check_nonempty_format(&node, format::subdomain, &mut errors);
    }
    let class = new_status.child("qosClass");
    if class.text() != old_status.child("qosClass").text() {
        errors.push(class.invalid_value(class.text(), "field is immutable"));
    }
    terminated_containers(new, &new_status, &old_status, &mut errors);
    addresses(&new_status, "podIP", "podIPs", &mut errors);
    addresses(&new_status, "hostIP", "hostIPs", &mut errors);
    let is_windows = new.text("spec.os.name") == "windows";
    for list in ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"] {
        for container in new_status.child(list).items() {
            user(&container.child("user"), is_windows, &mut errors);
        }
    }
    errors
}

/// Validates a list of addresses, which has at most one address of each IP family. The first item of
/// `hostIPs` must equal `hostIP`.
fn addresses(status: &Field<'_, '_>, single: &str, list: &str, errors: &mut FieldErrors) {
    let addresses = status.child(list);
    for (i, address) in addresses.items().enumerate() {
        let ip = address.child("ip");
        if i == 0 && list == "hostIPs" && ip.text() != status.child(single).text() {
            errors.push(ip.invalid_value(ip.text(), &format!("must be equal to `{single}`")));
        }
    }
    let mut families = Vec::new();
    for address in addresses.items() {
        let ip = address.child("ip");
        match network::parse_ip(ip.text()) {
            Some(ip) => families.push(ip.is_ipv6()),
            None => network::check_ip(&address.with_value(ip.value()), errors),
        }
    }
    if addresses.list().len() < 2 {
        return;
    }
    let has_invalid = families.len() < addresses.list().len();
    if has_invalid {
        let bad =
            addresses.items().position(|address| network::parse_ip(address.child("ip").text()).is_none());
        let at = bad.unwrap_or_default();
        let shown = addresses.items().nth(at).map(|address| address.child("ip").text()).unwrap_or_default();
        errors.push(FieldError::internal(
            &addresses.path(),
            &format!("failed to check for dual stack with error:invalid IP[{at}]: {shown}"),
        ));
    }
    if has_invalid || addresses.list().len() > 2 || families.first() == families.get(1) {
        let detail = "may specify no more than one IP for each IP family";
        errors.push(internal::invalid_of_field(&addresses, "core/v1.PodStatus", list, detail));
    }
}

/// Reports terminated containers that start again although the pod must not restart them.
fn terminated_containers(pod: &Object, new: &Field<'_, '_>, old: &Field<'_, '_>, errors: &mut FieldErrors) {
    let spec = Field::new(pod.get("spec"), "spec");
    let pod_policy = spec.child("restartPolicy").text();
    let init_containers = spec.child("initContainers");
    let sidecars: BTreeSet<&str> = init_containers
        .items()
        .filter(|container| container.child("restartPolicy").text() == "Always")
        .map(|container| container.child("name").text())
        .collect();
    for list in ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"] {
        // Ephemeral containers never start again.
        let policy = if list == "ephemeralContainerStatuses" { "Never" } else { pod_policy };
        if policy == "Always" {
            continue;
        }
        let statuses = new.child(list);
        let mut running: BTreeMap<&str, Vec<_>> = BTreeMap::new();
        for status in statuses.items() {
            if !status.child("state").child("terminated").is_present() {
                running.entry(status.child("name").text()).or_default().push(status);
            }
        }
        let mut seen = BTreeSet::new();
        for before in old.child(list).items() {
            let name = before.child("name").text();
            let state = before.child("state");
            let terminated = state.child("terminated");
            let has_failed = terminated.child("exitCode").integer().unwrap_or(0) != 0;
            if !terminated.is_present() || (has_failed && policy == "OnFailure") {
                continue;
            }
            if list == "initContainerStatuses" && sidecars.contains(name) {
                continue;
            }
            // If the list of errors is full, the further errors of a repeated name are not even counted.
            if !seen.insert(name) && errors.is_full() {
                continue;
            }
            for after in running.get(name).into_iter().flatten() {
                let state = after.child("state");
                errors.push(state.forbidden("may not be transitioned to non-terminated state"));
            }
        }
    }
}

/// Validates the user of a container.
fn user(user: &Field<'_, '_>, is_windows: bool, errors: &mut FieldErrors) {
    let linux = user.child("linux");
    if is_windows {
        linux.forbid("cannot be set for a windows pod", errors);
        return;
    }
    for field in ["uid", "gid"] {
        number::check_range(&linux.child(field), 0, ID_MAX, errors);
    }
    for group in linux.child("supplementalGroups").items() {
        number::check_range(&group, 0, ID_MAX, errors);
    }
}
