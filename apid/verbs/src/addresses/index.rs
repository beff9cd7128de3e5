//! The index of used addresses and ports, built from the stored objects.
//!
//! # Invariants
//!
//! INVARIANT (differing addresses): `differing` contains exactly the addresses whose Services and record differ,
//! without regard to reservations. Each change of an address updates the set, so a repair visits only these addresses.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::object::{Object, Value};
use storage::Revision;
use tokio::time::Instant;

use super::Differences;
use super::claimed::{ClaimedValues, Claims};
use super::range::AddressRange;
use super::usage::Usage;
use crate::addresses::ServiceRange;

/// Time for which a record without a Service stays in a store of several servers. Another server may be about to write
/// the Service; a kube-apiserver creates no claim. As in kube-apiserver.
const RECORD_GRACE: Duration = Duration::from_secs(60);

/// The name of a Service that uses addresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    /// The namespace of the Service.
    pub namespace: String,
    /// The name of the Service.
    pub name: String,
}

/// The record of an address: the content of its IPAddress object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// Whether the allocator manages the object.
    pub(super) is_managed: bool,
    /// The Service to which the object refers.
    pub(super) owner: Owner,
}

/// The addresses and ports that Services use, writes reserve, and IPAddress objects record.
#[derive(Default)]
pub(super) struct Index {
    services: HashMap<Owner, Usage>,
    /// The Services that use each address.
    addresses: HashMap<IpAddr, BTreeSet<Owner>>,
    /// The number of Services that use each port.
    ports: HashMap<u16, usize>,
    records: HashMap<IpAddr, Record>,
    /// Used addresses without a record, addresses with a stale record, and addresses of several Services.
    differing: BTreeSet<IpAddr>,
    /// The ranges of the command line, which are always usable.
    pub(super) defaults: Vec<AddressRange>,
    /// The ranges of usable ServiceCIDR objects, by name.
    pub(super) ranges: BTreeMap<String, Vec<AddressRange>>,
    /// Addresses that writes in progress reserve.
    pub(super) reserved_addresses: HashSet<IpAddr>,
    /// Ports that writes in progress reserve.
    pub(super) reserved_ports: HashSet<u16>,
    /// The values that writes in progress of all servers claim.
    pub(super) claims: Claims,
    /// Whether several servers use the store.
    pub(super) is_shared: bool,
    /// With several servers: the time of the first observation of each record whose Service is not observed yet.
    awaited: HashMap<IpAddr, Instant>,
}

/// The index with its lock, shared with reservations.
pub(super) type SharedIndex = Arc<parking_lot::Mutex<Index>>;

impl Index {
    /// Creates an empty index with the ranges of the command line.
    pub(super) fn new(defaults: Vec<AddressRange>) -> Self {
        Index { defaults, ..Index::default() }
    }

    /// Whether an address can be allocated: no Service, reservation or unmanaged record has it.
    pub(super) fn is_free_address(&self, address: IpAddr) -> bool {
        !self.addresses.contains_key(&address)
            && !self.reserved_addresses.contains(&address)
            && !self.claims.has_address(address)
            && self.records.get(&address).is_none_or(|record| record.is_managed && !self.is_awaited(address))
    }

    /// Makes all records older than [`RECORD_GRACE`].
    #[cfg(test)]
    pub(super) fn end_grace(&mut self) {
        self.awaited.clear();
    }

    /// Whether another server may be about to write the Service of a record.
    fn is_awaited(&self, address: IpAddr) -> bool {
        self.awaited.get(&address).is_some_and(|seen| seen.elapsed() < RECORD_GRACE)
    }

    /// Whether a write in progress here or at another server has the address.
    fn is_reserved(&self, address: IpAddr) -> bool {
        self.reserved_addresses.contains(&address) || self.claims.has_address(address)
    }

    /// The ranges from which addresses are allocated.
    pub(super) fn usable_ranges(&self) -> impl Iterator<Item = &AddressRange> {
        self.defaults.iter().chain(self.ranges.values().flatten())
    }

    /// Whether another write or a Service has one of the values of a claim that was created at a revision, or the range of
    /// an address is not usable any more.
    pub(super) fn is_lost(&self, values: &ClaimedValues, claimed_at: Revision) -> bool {
        let is_in_range = |address: &IpAddr| self.usable_ranges().any(|range| range.contains(*address));
        self.claims.is_preceded(values, claimed_at)
            || !values.addresses.iter().all(is_in_range)
            || values.addresses.iter().any(|address| self.addresses.contains_key(address))
            || values.ports.iter().any(|port| self.ports.contains_key(port))
    }

    /// Removes a claim. The Services of its addresses are then known or never written.
    pub(super) fn remove_claim(&mut self, key: &str) {
        let values = self.claims.remove(key).unwrap_or_default();
        for address in values.addresses {
            self.awaited.remove(&address);
        }
    }

    /// Whether a node port can be allocated.
    pub(super) fn is_free_port(&self, port: u16) -> bool {
        !self.ports.contains_key(&port) && !self.reserved_ports.contains(&port) && !self.claims.has_port(port)
    }

    /// Returns the records by address.
    pub(super) fn records(&self) -> &HashMap<IpAddr, Record> {
        &self.records
    }

    /// Replaces the addresses and ports that a Service uses; None removes them.
    pub(super) fn set_service(&mut self, owner: Owner, usage: Option<Usage>) {
        let old = self.services.remove(&owner).unwrap_or_default();
        for address in &old.addresses {
            if let Some(owners) = self.addresses.get_mut(address) {
                owners.remove(&owner);
                if owners.is_empty() {
                    self.addresses.remove(address);
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
        let new = usage.as_ref().map(|usage| usage.addresses.clone()).unwrap_or_default();
        if let Some(usage) = usage {
            for address in &usage.addresses {
                self.addresses.entry(*address).or_default().insert(owner.clone());
                self.awaited.remove(address);
            }
            for port in &usage.ports {
                *self.ports.entry(*port).or_default() += 1;
            }
            self.services.insert(owner, usage);
        }
        for address in old.addresses.into_iter().chain(new) {
            self.update_differing(address);
        }
    }

    /// Replaces the record of an address; None removes it.
    pub(super) fn set_record(&mut self, address: IpAddr, record: Option<Record>) {
        self.awaited.remove(&address);
        match record {
            Some(record) => {
                if self.is_shared && !self.addresses.contains_key(&address) {
                    self.awaited.insert(address, Instant::now());
                }
                self.records.insert(address, record);
            }
            None => drop(self.records.remove(&address)),
        }
        self.update_differing(address);
    }

    /// Compares the Services and the record of an address, and updates `differing`.
    fn update_differing(&mut self, address: IpAddr) {
        let is_differing = self.unrecorded_owner(address).is_some()
            || self.has_stale_record(address)
            || self.sharing_owners(address).is_some();
        if is_differing {
            self.differing.insert(address);
        } else {
            self.differing.remove(&address);
        }
    }

    /// Returns a Service that uses the address, if the address has no record.
    fn unrecorded_owner(&self, address: IpAddr) -> Option<&Owner> {
        let owners = self.addresses.get(&address).filter(|_| !self.records.contains_key(&address))?;
        owners.first()
    }

    /// Whether the address has a managed record whose Service does not use the address.
    fn has_stale_record(&self, address: IpAddr) -> bool {
        let is_owner =
            |owner: &Owner| self.addresses.get(&address).is_some_and(|owners| owners.contains(owner));
        self.records.get(&address).is_some_and(|record| record.is_managed && !is_owner(&record.owner))
    }

    /// Returns the Services that use the address, if there are several.
    fn sharing_owners(&self, address: IpAddr) -> Option<&BTreeSet<Owner>> {
        self.addresses.get(&address).filter(|owners| owners.len() > 1)
    }

    /// Whether the address has a stale record, and no write in progress reserves the address.
    pub(super) fn is_stale(&self, address: IpAddr) -> bool {
        self.has_stale_record(address) && !self.is_reserved(address) && !self.is_awaited(address)
    }

    /// Returns the differences between Services and records, except those that a write in progress will resolve.
    pub(super) fn differences(&self) -> Differences {
        let mut differences = Differences::default();
        for address in &self.differing {
            if let Some(owners) = self.sharing_owners(*address) {
                differences.shared.push((*address, owners.iter().cloned().collect()));
            }
            if self.is_stale(*address) {
                differences.stale.push(*address);
            }
            let owner = self.unrecorded_owner(*address).filter(|_| !self.is_reserved(*address));
            if let Some(owner) = owner {
                differences.unrecorded.push((*address, owner.clone()));
            }
        }
        differences
    }
}

/// The node ports of a spec.
pub(super) fn node_ports(spec: &Value) -> impl Iterator<Item = u16> {
    let ports = spec.get("ports").and_then(Value::as_array).into_iter().flatten();
    ports.filter_map(|port| port_number(port.get("nodePort")))
}

/// Reads a port number; None for any other value and for zero, which stands for an absent port.
pub(super) fn port_number(value: Option<&Value>) -> Option<u16> {
    value.and_then(Value::as_u64).and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0)
}

/// The ranges of a ServiceCIDR object. None if addresses must not be allocated from it.
pub(super) fn usable_ranges(object: &Object) -> Option<Vec<AddressRange>> {
    let conditions = object.at(&["status", "conditions"]).and_then(Value::as_array).into_iter().flatten();
    let is_unready = conditions.into_iter().any(|condition| {
        let has_value = |field: &str, text: &str| condition.get(field).is_some_and(|value| value == text);
        has_value("type", "Ready") && !has_value("status", "True")
    });
    if is_unready || object.is_terminating() {
        return None;
    }
    Some(cidrs(object).into_iter().map(AddressRange::new).collect())
}

/// The networks of a ServiceCIDR object.
pub(super) fn cidrs(object: &Object) -> Vec<ServiceRange> {
    let cidrs = object.at(&["spec", "cidrs"]).and_then(Value::as_array).into_iter().flatten();
    let parse = |cidr: &Value| {
        let (address, prefix) = kinds::parse_cidr(cidr.as_str()?)?;
        ServiceRange::new(address, prefix)
    };
    cidrs.filter_map(parse).collect()
}

#[cfg(test)]
mod tests {
    use apimachinery::clock::{Rng as _, SeededRng};

    use super::*;

    /// Returns the differences by comparison of all Services and records.
    fn compare_all(index: &Index) -> Differences {
        let mut differences = Differences::default();
        for number in 0..8 {
            let address = IpAddr::from([10, 0, 0, number]);
            let users = index.services.iter().filter(|(_, usage)| usage.addresses.contains(&address));
            let owners: BTreeSet<Owner> = users.map(|(owner, _)| owner.clone()).collect();
            let is_reserved = index.reserved_addresses.contains(&address);
            match index.records.get(&address) {
                None if !is_reserved => {
                    differences.unrecorded.extend(owners.first().map(|owner| (address, owner.clone())));
                }
                Some(record) if record.is_managed && !is_reserved && !owners.contains(&record.owner) => {
                    differences.stale.push(address);
                }
                _ => {}
            }
            if owners.len() > 1 {
                differences.shared.push((address, owners.into_iter().collect()));
            }
        }
        differences
    }

    #[test]
    fn differences_after_random_changes_agree_with_a_slow_model() {
        let rng = SeededRng::new(5);
        let random = |count: u8| u8::try_from(rng.bits() % u128::from(count)).unwrap();
        let mut index = Index::default();
        let owner = |number: u8| Owner { namespace: "a".to_owned(), name: number.to_string() };
        for _ in 0..5000 {
            let address = IpAddr::from([10, 0, 0, random(8)]);
            match random(6) {
                0 => index.set_service(owner(random(6)), None),
                1 | 2 => {
                    let addresses = vec![address];
                    index.set_service(owner(random(6)), Some(Usage { addresses, ports: Vec::new() }));
                }
                3 => index.set_record(address, None),
                4 => {
                    let record = Record { is_managed: random(4) > 0, owner: owner(random(6)) };
                    index.set_record(address, Some(record));
                }
                _ if index.reserved_addresses.remove(&address) => {}
                _ => drop(index.reserved_addresses.insert(address)),
            }
            let differences = index.differences();
            assert_eq!(differences, compare_all(&index));
            assert!(differences.stale.iter().all(|address| index.is_stale(*address)));
        }
    }
}
