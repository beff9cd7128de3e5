//! Preparation of an update of a service: it keeps allocated values that the request omits. It removes fields
//! that the new type of the service does not have.

use std::collections::{BTreeSet, HashMap};

use serde_json::{Value, json};

use crate::defaults::{Fields, maps_in_list};
use crate::table::cell::PathReader as _;

/// Whether the type of a service implies a cluster IP address.
fn has_address(spec: &Value) -> bool {
    matches!(spec.text("type"), "ClusterIP" | "NodePort" | "LoadBalancer")
}

/// Whether the server allocates node ports for the ports of a service.
fn has_node_ports(spec: &Value) -> bool {
    spec.text("type") == "NodePort"
        || (spec.text("type") == "LoadBalancer"
            && spec.get("allocateLoadBalancerNodePorts") != Some(&json!(false)))
}

/// Whether the ports of a service may have node ports.
fn may_have_node_ports(spec: &Value) -> bool {
    matches!(spec.text("type"), "NodePort" | "LoadBalancer")
}

/// Whether a service has a node port for health checks.
fn has_health_check(spec: &Value) -> bool {
    is_load_balancer(spec) && spec.text("externalTrafficPolicy") == "Local"
}

fn is_load_balancer(spec: &Value) -> bool {
    spec.text("type") == "LoadBalancer"
}

/// Whether a service can have `externalTrafficPolicy`: clients outside the cluster can reach the service.
fn has_external_policy(spec: &Value) -> bool {
    may_have_node_ports(spec) || (has_address(spec) && !spec.items("externalIPs").is_empty())
}

/// Keeps allocated values that the update omits, and removes fields that the new type does not have.
pub(super) fn prepare(new: &mut Fields, old: &Value) {
    keep_allocated(new, old);
    normalize_addresses(new, old);
    remove_fields_of_type(new, old);
    release_second_family(new, old);
}

/// Removes the second address and the second IP family if the policy changes to `SingleStack` and the request
/// does not change the list itself.
fn release_second_family(new: &mut Fields, old: &Value) {
    let is_single = new.get("ipFamilyPolicy").is_some_and(|policy| policy == "SingleStack");
    if !is_single || old.text("ipFamilyPolicy") == "SingleStack" {
        return;
    }
    for field in ["clusterIPs", "ipFamilies"] {
        if new.get(field) == old.get(field)
            && let Some(Value::Array(list)) = new.get_mut(field)
        {
            list.truncate(1);
        }
    }
}

fn keep_allocated(new: &mut Fields, old: &Value) {
    let spec = Value::Object(new.clone());
    if has_address(&spec) && has_address(old) {
        if spec.text("clusterIP").is_empty() {
            copy(new, old, "clusterIP");
        }
        let is_same = new.get("clusterIP") == old.get("clusterIP");
        if is_same && spec.items("clusterIPs").is_empty() {
            copy(new, old, "clusterIPs");
        }
        for field in ["ipFamilies", "ipFamilyPolicy"] {
            if spec.get(field).is_none_or(Value::is_null) {
                copy(new, old, field);
            }
        }
    }
    if has_node_ports(&spec) && has_node_ports(old) {
        keep_node_ports(new, &spec, old);
    }
    if has_health_check(&spec) && has_health_check(old) && spec.integer("healthCheckNodePort") == 0 {
        copy(new, old, "healthCheckNodePort");
    }
}

/// Sets a missing node port to that of the old port with the same protocol and number. A node port that another
/// port of the service uses is not taken.
fn keep_node_ports(new: &mut Fields, spec: &Value, old: &Value) {
    let mut used: BTreeSet<i64> = spec.items("ports").iter().map(|port| port.integer("nodePort")).collect();
    let mut node_ports = HashMap::new();
    for port in old.items("ports") {
        node_ports
            .entry((port.get("protocol"), port.get("port")))
            .or_insert_with(|| port.integer("nodePort"));
    }
    for port in maps_in_list(new, "ports") {
        if port.get("nodePort").and_then(Value::as_i64).unwrap_or(0) != 0 {
            continue;
        }
        let Some(number) = node_ports.get(&(port.get("protocol"), port.get("port"))).copied() else {
            continue;
        };
        if number != 0 && used.insert(number) {
            port.insert("nodePort".to_owned(), number.into());
        }
    }
}

/// Sets `clusterIPs` from a changed `clusterIP`, for clients that do not know `clusterIPs` and leave it
/// unchanged.
fn normalize_addresses(new: &mut Fields, old: &Value) {
    let spec = Value::Object(new.clone());
    let (address, old_address) = (spec.text("clusterIP"), old.text("clusterIP"));
    if address == old_address || spec.items("clusterIPs") != old.items("clusterIPs") {
        return;
    }
    if address.is_empty() {
        new.remove("clusterIPs");
    } else {
        new.insert("clusterIPs".to_owned(), json!([address]));
    }
}

fn remove_fields_of_type(new: &mut Fields, old: &Value) {
    let spec = Value::Object(new.clone());
    let has_lost = |rule: fn(&Value) -> bool| rule(old) && !rule(&spec);
    if has_lost(has_address) {
        if spec.items("clusterIPs") == old.items("clusterIPs") {
            new.remove("clusterIP");
            new.remove("clusterIPs");
        }
        remove_unchanged(new, old, "ipFamilies");
        remove_unchanged(new, old, "ipFamilyPolicy");
    }
    let node_ports = |spec: &Value| -> BTreeSet<i64> {
        let ports = spec.items("ports").iter().map(|port| port.integer("nodePort"));
        ports.filter(|port| *port != 0).collect()
    };
    if has_lost(may_have_node_ports) && node_ports(&spec).is_subset(&node_ports(old)) {
        for port in maps_in_list(new, "ports") {
            port.remove("nodePort");
        }
    }
    if has_lost(has_health_check) {
        remove_unchanged(new, old, "healthCheckNodePort");
    }
    if has_lost(is_load_balancer) {
        remove_unchanged(new, old, "allocateLoadBalancerNodePorts");
        remove_unchanged(new, old, "loadBalancerClass");
    }
    if has_lost(has_external_policy) {
        remove_unchanged(new, old, "externalTrafficPolicy");
    }
}

fn copy(new: &mut Fields, old: &Value, field: &str) {
    if let Some(value) = old.get(field) {
        new.insert(field.to_owned(), value.clone());
    }
}

fn remove_unchanged(new: &mut Fields, old: &Value, field: &str) {
    if new.get(field) == old.get(field) {
        new.remove(field);
    }
}
