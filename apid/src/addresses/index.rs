//! The index of used addresses and ports, built from the stored objects.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use apimachinery::object::{Object, Value};

use super::range::AddressRange;
use crate::config::ServiceRange;

/// A Service as the owner of addresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

/// An IPAddress object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// Whether the allocator manages the object.
    pub(super) is_managed: bool,
    /// The Service to which the object refers.
    pub(super) owner: Owner,
}

/// The addresses and ports of one Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Usage {
    addresses: Vec<IpAddr>,
    ports: Vec<u16>,
}

/// The used, reserved and recorded values.
#[derive(Default)]
pub(super) struct Index {
    services: HashMap<Owner, Usage>,
    addresses: HashMap<IpAddr, BTreeSet<Owner>>,
    ports: HashMap<u16, usize>,
    /// The IPAddress objects.
    pub(super) records: HashMap<IpAddr, Record>,
    /// The ranges of usable ServiceCIDR objects, by name.
    pub(super) ranges: BTreeMap<String, Vec<AddressRange>>,
    /// Addresses of writes in progress.
    pub(super) reserved_addresses: HashSet<IpAddr>,
    /// Ports of writes in progress.
    pub(super) reserved_ports: HashSet<u16>,
}

impl Index {
    /// Whether an address can be allocated. The record of an address that no Service uses is stale.
    pub(super) fn is_free_address(&self, address: IpAddr) -> bool {
        !self.addresses.contains_key(&address)
            && !self.reserved_addresses.contains(&address)
            && self.records.get(&address).is_none_or(|record| record.is_managed)
    }

    /// Whether a node port can be allocated.
    pub(super) fn is_free_port(&self, port: u16) -> bool {
        !self.ports.contains_key(&port) && !self.reserved_ports.contains(&port)
    }

    /// Replaces the usage of a Service; None removes it.
    pub(super) fn set_service(&mut self, owner: Owner, object: Option<&Object>) {
        let old = self.services.remove(&owner).unwrap_or_default();
        for address in old.addresses {
            if let Some(owners) = self.addresses.get_mut(&address) {
                owners.remove(&owner);
                if owners.is_empty() {
                    self.addresses.remove(&address);
                }
            }
        }
        for port in old.ports {
            if let Some(count) = self.ports.get_mut(&port) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    self.ports.remove(&port);
                }
            }
        }
        let Some(object) = object else { return };
        let usage = usage(object);
        for address in &usage.addresses {
            self.addresses.entry(*address).or_default().insert(owner.clone());
        }
        for port in &usage.ports {
            *self.ports.entry(*port).or_default() += 1;
        }
        self.services.insert(owner, usage);
    }

    /// Addresses of Services without a record, with their owners.
    pub(super) fn unrecorded(&self) -> Vec<(IpAddr, Owner)> {
        let missing = self.addresses.iter().filter(|(address, _)| {
            !self.records.contains_key(address) && !self.reserved_addresses.contains(address)
        });
        missing.filter_map(|(address, owners)| Some((*address, owners.first()?.clone()))).collect()
    }

    /// Addresses whose record is stale: no Service uses the address, or the record names another owner.
    pub(super) fn stale(&self) -> Vec<IpAddr> {
        let is_stale = |address: &IpAddr, record: &Record| {
            record.is_managed
                && !self.reserved_addresses.contains(address)
                && self.addresses.get(address).is_none_or(|owners| !owners.contains(&record.owner))
        };
        let records = self.records.iter();
        records.filter(|(address, record)| is_stale(address, record)).map(|(address, _)| *address).collect()
    }

    /// Addresses that several Services use.
    pub(super) fn shared(&self) -> Vec<(IpAddr, Vec<Owner>)> {
        let shared = self.addresses.iter().filter(|(_, owners)| owners.len() > 1);
        shared.map(|(address, owners)| (*address, owners.iter().cloned().collect())).collect()
    }
}

/// Parses an IP address; an IPv4-mapped address counts as IPv4.
pub(super) fn parse(text: &str) -> Option<IpAddr> {
    kinds::parse_ip(text).map(|address| address.to_canonical())
}

fn usage(object: &Object) -> Usage {
    let spec = object.get("spec").unwrap_or(&Value::Null);
    let text = |field: &str| spec.get(field).and_then(Value::as_str).unwrap_or("");
    if text("type") == "ExternalName" {
        return Usage::default();
    }
    let list =
        spec.get("clusterIPs").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    let addresses: BTreeSet<IpAddr> = list.chain([text("clusterIP")]).filter_map(parse).collect();
    let ports: BTreeSet<u16> = node_ports(spec).chain(health_check_port(spec)).collect();
    Usage { addresses: addresses.into_iter().collect(), ports: ports.into_iter().collect() }
}

/// The node ports of a spec.
pub(super) fn node_ports(spec: &Value) -> impl Iterator<Item = u16> {
    let ports = spec.get("ports").and_then(Value::as_array).into_iter().flatten();
    ports.filter_map(|port| number(port.get("nodePort")))
}

/// The health check port of a spec.
pub(super) fn health_check_port(spec: &Value) -> Option<u16> {
    number(spec.get("healthCheckNodePort"))
}

/// A port other than zero.
pub(super) fn number(value: Option<&Value>) -> Option<u16> {
    value.and_then(Value::as_u64).and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0)
}

/// The ranges of a ServiceCIDR object. None if addresses must not be allocated from it.
pub(super) fn usable_ranges(object: &Object) -> Option<Vec<AddressRange>> {
    let conditions = object.at(&["status", "conditions"]).and_then(Value::as_array).into_iter().flatten();
    let is_unready = conditions.into_iter().any(|condition| {
        let is = |field: &str, text: &str| condition.get(field).is_some_and(|value| value == text);
        is("type", "Ready") && !is("status", "True")
    });
    if is_unready || object.is_terminating() {
        return None;
    }
    Some(cidrs(object).into_iter().map(AddressRange::new).collect())
}

/// The networks of a ServiceCIDR object.
pub(super) fn cidrs(object: &Object) -> Vec<ServiceRange> {
    let cidrs = object.at(&["spec", "cidrs"]).and_then(Value::as_array).into_iter().flatten();
    cidrs.filter_map(|cidr| cidr.as_str()?.parse().ok()).collect()
}

/// The index behind a lock.
pub(super) type SharedIndex = Arc<parking_lot::Mutex<Index>>;
