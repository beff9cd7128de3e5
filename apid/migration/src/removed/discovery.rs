//! EndpointSlice of `discovery/v1beta1`, which has the topology of an endpoint in one map.

use apimachinery::names::Names;
use apimachinery::object::{Object, Value};
use serde_json::json;

use super::fields::{Fields, child, child_or_new, is_set, items, rename};
use super::{FieldChanges, Notes};

pub(super) const VERSIONS: &[FieldChanges] =
    &[FieldChanges::new(("discovery", "v1beta1", "EndpointSlice"), upgrade, downgrade)];

fn zone_key(names: &Names) -> String {
    names.label_sub_key("topology", "zone")
}

fn host_key(names: &Names) -> String {
    names.label_key("hostname")
}

fn upgrade(object: &mut Object, names: &Names, notes: &mut Notes) {
    let (zone_key, host_key) = (zone_key(names), host_key(names));
    let mut is_host_kept = false;
    for endpoint in items(&mut object.0, "endpoints") {
        endpoint.remove("zone");
        rename(endpoint, "topology", "deprecatedTopology");
        let node = endpoint.get("nodeName").cloned().filter(|node| !node.is_null());
        let Some(topology) = child(endpoint, "deprecatedTopology") else { continue };
        let zone = topology.remove(&zone_key);
        if node.is_some() && topology.get(&host_key) == node.as_ref() {
            topology.remove(&host_key);
        }
        is_host_kept |= topology.contains_key(&host_key);
        if topology.is_empty() {
            endpoint.remove("deprecatedTopology");
        }
        if let Some(zone) = zone {
            endpoint.insert("zone".to_owned(), zone);
        }
    }
    if is_host_kept {
        notes.add(
            "endpoints[*].deprecatedTopology",
            &format!(
                "v1 has `nodeName` for the key `{host_key}`; the key stays, and the server does not accept it"
            ),
        );
    }
}

fn downgrade(object: &mut Object, names: &Names) {
    for endpoint in items(&mut object.0, "endpoints") {
        rename(endpoint, "deprecatedTopology", "topology");
        let zone = endpoint.remove("zone").filter(|zone| !zone.is_null());
        let node = endpoint.get("nodeName").cloned().filter(|node| !node.is_null());
        if zone.is_none() && node.is_none() && !is_set(endpoint, "topology") {
            endpoint.remove("topology");
            continue;
        }
        set_topology(endpoint, names, zone, node);
    }
}

/// Sets the topology keys of the zone and of the host name. A host name that the topology already contains
/// stays.
fn set_topology(endpoint: &mut Fields, names: &Names, zone: Option<Value>, node: Option<Value>) {
    let Some(topology) = child_or_new(endpoint, "topology") else { return };
    if let Some(zone) = zone {
        topology.insert(zone_key(names), zone);
    }
    let host = topology.entry(host_key(names)).or_insert(Value::Null);
    if let Some(node) = node
        && (host.is_null() || *host == json!(""))
    {
        *host = node;
    }
    topology.retain(|_, value| !value.is_null());
}
