//! Addresses and node ports of Services.
//!
//! # Contract
//!
//! [`ServiceAddresses`] observes the store and keeps an index of the values that stored Services use.
//! [`ServiceAddresses::allocate`] fills the fields of a Service and reserves the new values.
//! [`Reservation::commit`] writes the IPAddress objects and then the Service. An IPAddress object records each
//! address; a background task repairs the records after a crash.
//!
//! # Invariants
//!
//! INVARIANT (one owner): a value is free only if no stored Service uses it and no write in progress reserves it.
//! The observer adds the values of a Service before its commit returns, and a reservation ends after that.
//! INVARIANT (no leak): a value leaves the index with the change that removes it from the stored Service.
//!
//! # Concurrency
//!
//! One lock guards the index. A commit runs in a task of its own, so that a client disconnect does not end the
//! reservation before the write.

mod allocate;
mod band;
mod index;
mod range;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;

use apimachinery::clock::Rng;
use apimachinery::names::Names;
use apimachinery::object::{Object, Value};
use bytes::Bytes;
use kinds::{Registry, Resource};
use storage::{Change, CommitOutcome, Error, Observer, Op, Revision, Store};
use tokio::sync::Notify;

use crate::config::{NodePortRange, ServiceRange};
pub use allocate::AllocationError;
use allocate::Claim;
pub use index::Owner;
use index::{Record, SharedIndex, cidrs, parse, usable_ranges};
use range::{AddressRange, family};

/// Attempts to write the record of an address against concurrent repairs.
const ATTEMPTS: usize = 4;

/// The allocator of addresses and node ports.
pub struct ServiceAddresses {
    names: Arc<Names>,
    rng: Arc<dyn Rng>,
    defaults: Vec<AddressRange>,
    node_ports: NodePortRange,
    kinds: Option<ObservedKinds>,
    index: SharedIndex,
    changed: Notify,
}

/// The kinds that the allocator observes.
struct ObservedKinds {
    services: Arc<Resource>,
    records: Arc<Resource>,
    ranges: Arc<Resource>,
}

/// Values that a write allocates. They are free again when the reservation ends, unless the write stored them.
pub struct Reservation {
    index: SharedIndex,
    addresses: Vec<IpAddr>,
    ports: Vec<u16>,
}

/// The differences between the Services and the records of their addresses.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Differences {
    /// Addresses without a record, with their owners.
    pub unrecorded: Vec<(IpAddr, Owner)>,
    /// Addresses whose record names no owner of the address.
    pub stale: Vec<IpAddr>,
    /// Addresses that several Services use.
    pub shared: Vec<(IpAddr, Vec<Owner>)>,
}

impl ServiceAddresses {
    /// Creates an allocator. The first range is that of the default family.
    pub fn new(
        registry: &Registry,
        names: Arc<Names>,
        rng: Arc<dyn Rng>,
        ranges: &[ServiceRange],
        node_ports: NodePortRange,
    ) -> Self {
        let group = names.group("networking");
        let find = |group: &str, kind: &str| registry.find_kind(group, kind).cloned();
        let kinds = find("", "Service").zip(find(&group, "IPAddress")).zip(find(&group, "ServiceCIDR"));
        let kinds = kinds.map(|((services, records), ranges)| ObservedKinds { services, records, ranges });
        ServiceAddresses {
            names,
            rng,
            defaults: ranges.iter().copied().map(AddressRange::new).collect(),
            node_ports,
            kinds,
            index: SharedIndex::default(),
            changed: Notify::new(),
        }
    }

    /// Builds the index from the stored objects, before the first write.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub async fn load(&self, store: &dyn Store) -> storage::Result<()> {
        let Some(kinds) = &self.kinds else { return Ok(()) };
        for resource in [&kinds.services, &kinds.records, &kinds.ranges] {
            let page = store.range(&resource.key_prefix, "", 0, None).await?;
            for row in page.rows {
                self.see(&row.key, Some((&row.value, row.revision)));
            }
        }
        Ok(())
    }

    /// Fills the families, addresses and ports of a Service and reserves the new values.
    ///
    /// # Errors
    ///
    /// Reports a value that is invalid, out of range or allocated, and a full range.
    pub fn allocate(
        &self,
        new: &mut Object,
        old: Option<&Object>,
        is_dry_run: bool,
    ) -> Result<Reservation, AllocationError> {
        let families: Vec<&str> = self.defaults.iter().map(AddressRange::family).collect();
        let errors = kinds::complete_service_families(new, old, &families);
        if !errors.is_empty() {
            return Err(AllocationError::Invalid(errors));
        }
        let mut reservation =
            Reservation { index: Arc::clone(&self.index), addresses: Vec::new(), ports: Vec::new() };
        let Some(Value::Object(spec)) = new.get_mut("spec") else { return Ok(reservation) };
        let old = old.and_then(|old| old.get("spec"));
        let mut index = self.index.lock();
        let mut claim = Claim {
            index: &index,
            defaults: &self.defaults,
            node_ports: self.node_ports,
            rng: &*self.rng,
            is_dry_run,
            addresses: Vec::new(),
            ports: Vec::new(),
        };
        claim.cluster_ips(spec, old)?;
        claim.all_ports(spec, old)?;
        let Claim { addresses, ports, .. } = claim;
        if !is_dry_run {
            index.reserved_addresses.extend(&addresses);
            index.reserved_ports.extend(&ports);
            reservation.addresses = addresses;
            reservation.ports = ports;
        }
        Ok(reservation)
    }

    /// Builds the IPAddress object of an address.
    pub fn record(&self, address: IpAddr, owner: &Owner) -> Object {
        let mut object = Object::default();
        object.set_type(&format!("{}/v1", self.names.group("networking")), "IPAddress");
        object.set_meta("name", address.to_string());
        let labels = [
            (self.names.label_sub_key("ipaddress", "ip-family"), family(address).to_owned()),
            (self.managed_by(), self.names.group("ipallocator")),
        ];
        let labels: serde_json::Map<String, Value> =
            labels.into_iter().map(|(key, value)| (key, value.into())).collect();
        object.set_meta("labels", labels);
        let parent = serde_json::json!({
            "resource": "services", "namespace": owner.namespace, "name": owner.name,
        });
        object.set("spec", serde_json::json!({"parentRef": parent}));
        object
    }

    fn managed_by(&self) -> String {
        self.names.label_sub_key("ipaddress", "managed-by")
    }

    /// Returns the differences between Services and records.
    pub fn differences(&self) -> Differences {
        let index = self.index.lock();
        Differences { unrecorded: index.unrecorded(), stale: index.stale(), shared: index.shared() }
    }

    /// Whether the deletion of a ServiceCIDR object must wait: an address of it is in no range of `others`.
    pub fn is_range_used(&self, range: &Object, others: &[Object]) -> bool {
        let others: Vec<ServiceRange> = others.iter().flat_map(cidrs).collect();
        let mine = cidrs(range);
        if mine.iter().all(|cidr| others.iter().any(|other| other.contains(cidr))) {
            return false;
        }
        let others: Vec<AddressRange> = others.into_iter().map(AddressRange::new).collect();
        let mine: Vec<AddressRange> = mine.into_iter().map(AddressRange::new).collect();
        let index = self.index.lock();
        let managed =
            index.records.iter().filter(|(_, record)| record.is_managed).map(|(address, _)| address);
        managed.chain(&index.reserved_addresses).any(|address| {
            mine.iter().any(|range| range.contains(*address))
                && !others.iter().any(|range| range.contains(*address))
        })
    }

    /// Waits for a change of an observed object.
    pub async fn wait_for_change(&self) {
        self.changed.notified().await;
    }

    /// Takes the new state of an object into the index; None after a deletion.
    fn see(&self, key: &str, new: Option<(&Bytes, Revision)>) {
        let Some(kinds) = &self.kinds else { return };
        let object = || {
            let (value, revision) = new?;
            let decoded = kinds::entry::decode(value, revision);
            decoded
                .inspect_err(|error| tracing::error!(key, %error, "stored object cannot be decoded; skipped"))
                .ok()
        };
        if let Some((namespace, name)) = kinds.services.parse_key(key) {
            let owner = Owner { namespace: namespace.to_owned(), name: name.to_owned() };
            self.index.lock().set_service(owner, object().as_ref());
        } else if let Some((_, name)) = kinds.records.parse_key(key) {
            let Some(address) = parse(name) else { return };
            let record = object().map(|object| self.read_record(&object));
            let mut index = self.index.lock();
            match record {
                Some(record) => index.records.insert(address, record),
                None => index.records.remove(&address),
            };
        } else if let Some((_, name)) = kinds.ranges.parse_key(key) {
            let ranges = object().and_then(|object| usable_ranges(&object));
            let mut index = self.index.lock();
            match ranges {
                Some(ranges) => index.ranges.insert(name.to_owned(), ranges),
                None => index.ranges.remove(name),
            };
        } else {
            return;
        }
        self.changed.notify_one();
    }

    fn read_record(&self, object: &Object) -> Record {
        let parent = |field: &str| object.str_at(&["spec", "parentRef", field]).unwrap_or("").to_owned();
        let is_managed = object.label(&self.managed_by()) == Some(&*self.names.group("ipallocator"));
        Record { is_managed, owner: Owner { namespace: parent("namespace"), name: parent("name") } }
    }
}

impl Observer for ServiceAddresses {
    fn observe(&self, changes: &[Change]) {
        for change in changes {
            self.see(&change.key, change.new.as_ref().map(|new| (new, change.revision)));
        }
    }
}

impl Reservation {
    /// The reserved addresses.
    pub fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// Writes the records of the addresses and then the Service. `records` are keys and values of IPAddress objects.
    ///
    /// Dropping the future does not cancel the write. A failed write removes the records again.
    ///
    /// # Errors
    ///
    /// Those of the commit of the Service. `Unavailable` if another client recorded an address meanwhile.
    pub async fn commit(
        self,
        store: Arc<dyn Store>,
        key: String,
        op: Op,
        records: Vec<(String, Bytes)>,
    ) -> storage::Result<CommitOutcome> {
        let write = tokio::spawn(async move { self.write(&*store, &key, op, records).await });
        write.await.unwrap_or_else(|error| Err(Error::Unavailable(error.to_string())))
    }

    async fn write(
        mut self,
        store: &dyn Store,
        key: &str,
        op: Op,
        records: Vec<(String, Bytes)>,
    ) -> storage::Result<CommitOutcome> {
        let mut written = Vec::with_capacity(records.len());
        let mut result = Ok(());
        for (record, value) in records {
            match self.write_record(store, &record, value).await {
                Ok(revision) => written.push((record, revision)),
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        let result = match result {
            Ok(()) => store.commit(key, op).await,
            Err(error) => Err(error),
        };
        match &result {
            Ok(_) => {}
            // The outcome is unknown, so the values stay reserved until the next start.
            Err(Error::Unavailable(_) | Error::Corrupt(_)) if written.len() == self.addresses.len() => {
                self.addresses.clear();
                self.ports.clear();
            }
            Err(_) => {
                for (record, revision) in written {
                    // The repair removes a record that this deletion leaves.
                    let _ = store.commit(&record, Op::Delete(revision)).await;
                }
            }
        }
        result
    }

    /// Creates a record, or replaces a stale one.
    async fn write_record(&self, store: &dyn Store, key: &str, value: Bytes) -> storage::Result<Revision> {
        let mut op = Op::Create(value.clone());
        for _ in 0..ATTEMPTS {
            op = match store.commit(key, op).await {
                Ok(committed) => return Ok(committed.revision),
                Err(Error::Exists(row) | Error::Conflict(row)) => {
                    let address = key.rsplit('/').next().and_then(parse);
                    let is_managed = |address: IpAddr| {
                        self.index.lock().records.get(&address).is_none_or(|record| record.is_managed)
                    };
                    if !address.is_some_and(is_managed) {
                        break;
                    }
                    Op::Update(value.clone(), row.revision)
                }
                Err(Error::NotFound(_)) => Op::Create(value.clone()),
                Err(error) => return Err(error),
            };
        }
        Err(Error::Unavailable(format!("`{key}` was written by another client meanwhile")))
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut index = self.index.lock();
        for address in &self.addresses {
            index.reserved_addresses.remove(address);
        }
        for port in &self.ports {
            index.reserved_ports.remove(port);
        }
    }
}
