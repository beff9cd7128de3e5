//! Addresses and node ports of Services.
//!
//! # Contract
//!
//! [`ServiceAddresses`] observes the store and keeps an index of the values that stored Services use. A value
//! is a cluster IP address, a node port or a health check port. [`ServiceAddresses::allocate`] fills the
//! address and port fields of a Service and reserves the new values. An IPAddress object records each address: the
//! write of a Service creates these objects, and then [`Reservation::commit`] writes the Service. A background task
//! repairs the records after a crash or a failed write, and deletes those of released addresses.
//! In a store of several servers, [`Reservation::claim`] makes the reservation known to all of them; see `claimed`.
//!
//! # Invariants
//!
//! INVARIANT (one owner): a value is free only if no stored Service uses it and no write in progress reserves it.
//! The observer adds the values of a Service before its commit returns, and a reservation ends after that.
//! INVARIANT (no leak): a value leaves the index with the change that removes it from the stored Service. A
//! reservation ends when the outcome of its commit is definite.
//! INVARIANT (own address): only the Service of the API gets the first address of the first range.
//!
//! # Concurrency
//!
//! One lock guards the index. The observer takes this lock on the writer thread, so no operation under the
//! lock may visit all Services. A commit runs in its own task, so a client disconnect does not end the
//! reservation before the write.

mod allocate;
mod band;
mod claimed;
mod index;
mod range;
mod reservation;
mod service_range;
#[cfg(test)]
mod tests;
mod usage;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::Rng;
use apimachinery::names::Names;
use apimachinery::object::{Object, Value};
use bytes::Bytes;
use claimed::{ClaimedValues, SERVICES};
use kinds::{Kind, Registry};
use parking_lot::Mutex;
use storage::{CLAIMS, Change, Observer, Revision, Row, Store, unreadable_reason};
use tokio::sync::Notify;

pub use allocate::AllocationError;
use allocate::ServiceAllocator;
pub use index::Owner;
use index::{Index, Record, SharedIndex, cidrs, usable_ranges};
pub use range::family;
use range::{AddressRange, parse_address};
pub use reservation::Reservation;
pub use service_range::{NodePortRange, NodePortRangeError, ServiceRange, ServiceRangeError};
use usage::Usage;

/// Maximum number of rows of one page when the index is loaded.
const PAGE_ROWS: usize = 500;
/// Pause before unreadable objects are read again, while a KMS plugin does not respond.
const REREAD_INTERVAL: Duration = Duration::from_secs(5);
/// Namespace of the Service of the API.
const API_NAMESPACE: &str = "default";

/// The allocator of addresses and node ports.
pub struct ServiceAddresses {
    names: Arc<Names>,
    rng: Arc<dyn Rng>,
    /// The Service of the API and its address, which is the first address of the first range.
    api_service: Option<(Owner, IpAddr)>,
    node_ports: NodePortRange,
    kinds: Option<ObservedKinds>,
    index: SharedIndex,
    /// Wakes the repair of records.
    changed: Arc<Notify>,
    /// Keys and revisions of observed objects that could not be decrypted, so that the index lacks them. The lock is held
    /// during each change of the index by an observed object.
    unreadable: Mutex<HashMap<String, Revision>>,
    /// Wakes [`ServiceAddresses::follow_recoveries`].
    recovery: Notify,
    /// The revisions of observed changes by key until the index is loaded: other servers write while it is loaded. The lock
    /// is held while changes or loaded rows are applied.
    observed: Mutex<Option<HashMap<Arc<str>, Revision>>>,
}

/// The kinds that the allocator observes.
struct ObservedKinds {
    services: Arc<Kind>,
    records: Arc<Kind>,
    ranges: Arc<Kind>,
}

/// The differences between the Services and the IPAddress objects that record their addresses.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Differences {
    /// Addresses without a record, each with a Service that uses it.
    pub unrecorded: Vec<(IpAddr, Owner)>,
    /// Addresses whose managed record names a Service that does not use the address.
    pub stale: Vec<IpAddr>,
    /// Addresses that several Services use, with these Services.
    pub shared: Vec<(IpAddr, Vec<Owner>)>,
}

impl ServiceAddresses {
    /// Creates an allocator with an empty index. The IP family of the first range is the default family.
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
        let api_service = ranges.first().map(|range| {
            let owner = Owner { namespace: API_NAMESPACE.to_owned(), name: names.api_service.to_owned() };
            (owner, range.first_address())
        });
        let defaults = ranges.iter().copied().map(AddressRange::new).collect();
        ServiceAddresses {
            names,
            rng,
            api_service,
            node_ports,
            kinds,
            index: Arc::new(Mutex::new(Index::new(defaults))),
            changed: Arc::default(),
            unreadable: Mutex::default(),
            recovery: Notify::new(),
            observed: Mutex::new(Some(HashMap::new())),
        }
    }

    /// Makes [`ServiceAddresses::follow_recoveries`] reread the objects that could not be decrypted.
    pub fn reread_unreadable(&self) {
        self.recovery.notify_one();
    }

    /// Adds objects to the index when they can be decrypted after a change of keys. Never returns.
    pub async fn follow_recoveries(&self, store: &dyn Store) {
        loop {
            self.recovery.notified().await;
            while let Err(error) = self.add_readable(store).await {
                tracing::warn!(%error, "unreadable Services were not read again; retrying");
                tokio::time::sleep(REREAD_INTERVAL).await;
            }
        }
    }

    /// Rereads the objects that could not be decrypted, and adds readable ones to the index.
    async fn add_readable(&self, store: &dyn Store) -> storage::Result<()> {
        let keys: Vec<(String, Revision)> =
            self.unreadable.lock().iter().map(|(key, revision)| (key.clone(), *revision)).collect();
        for (key, revision) in keys {
            let Some(row) = store.get(&key, None).await? else { continue };
            if row.revision != revision || unreadable_reason(&row.value).is_some() {
                continue;
            }
            let mut unreadable = self.unreadable.lock();
            // A later change has been observed meanwhile, unless the revision is the same.
            if unreadable.remove(&key) == Some(revision) {
                self.apply_to_index(&key, Some((&row.value, revision)));
            }
        }
        Ok(())
    }

    /// Builds the index from the stored objects, before the first write of this process. Changes by other servers that the
    /// observer has seen since the store was opened are newer than the loaded rows.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub async fn load(&self, store: &dyn Store) -> storage::Result<()> {
        let Some(kinds) = &self.kinds else { return Ok(()) };
        let claims = [CLAIMS, SERVICES].concat();
        let mut prefixes =
            vec![&kinds.services.key_prefix, &kinds.records.key_prefix, &kinds.ranges.key_prefix];
        if store.is_shared() {
            self.index.lock().is_shared = true;
            prefixes.push(&claims);
        }
        for prefix in prefixes {
            let (mut start, mut revision) = (String::new(), None);
            loop {
                let page = store.range(prefix, &start, PAGE_ROWS, revision).await?;
                self.apply_loaded(&page.rows);
                let Some(last) = page.rows.last().filter(|_| page.more) else { break };
                // The smallest key after the last one.
                start = format!("{}\0", last.key);
                revision = Some(page.revision);
            }
        }
        *self.observed.lock() = None;
        Ok(())
    }

    /// Applies loaded rows. A row whose key has changed since is out of date.
    fn apply_loaded(&self, rows: &[Row]) {
        let observed = self.observed.lock();
        let last_change = |key: &str| observed.as_ref().and_then(|changes| changes.get(key).copied());
        for row in rows.iter().filter(|row| last_change(&row.key) < Some(row.revision)) {
            self.apply_change(&row.key, Some((&row.value, row.revision)));
        }
    }

    /// Whether the index depends on a key.
    fn is_observed(&self, key: &str) -> bool {
        if let Some(claim) = key.strip_prefix(CLAIMS) {
            return claim.starts_with(SERVICES);
        }
        self.kinds.as_ref().is_some_and(|kinds| {
            let observed = [&kinds.services, &kinds.records, &kinds.ranges];
            observed.iter().any(|resource| key.starts_with(&resource.key_prefix))
        })
    }

    /// Fills the families, addresses and ports of a Service and reserves the new values.
    ///
    /// # Errors
    ///
    /// A value is invalid, out of range or allocated already, or a range is full.
    pub fn allocate(
        &self,
        new: &mut Object,
        old: Option<&Object>,
        is_dry_run: bool,
    ) -> Result<Reservation, AllocationError> {
        let families: Vec<&str> = self.index.lock().defaults.iter().map(AddressRange::family).collect();
        let errors = kinds::complete_service_families(new, old, &families);
        if !errors.is_empty() {
            return Err(AllocationError::Invalid(errors));
        }
        let mut reservation = Reservation::new(&self.index, &self.changed, &self.rng);
        let unavailable = self.api_service.as_ref().filter(|(owner, _)| {
            (owner.namespace.as_str(), owner.name.as_str()) != (new.namespace(), new.name())
        });
        let unavailable = unavailable.map(|(_, address)| *address);
        let Some(Value::Object(spec)) = new.get_mut("spec") else { return Ok(reservation) };
        let old = old.and_then(|old| old.get("spec"));
        let mut index = self.index.lock();
        let mut allocator = ServiceAllocator {
            index: &index,
            unavailable,
            node_ports: self.node_ports,
            rng: &*self.rng,
            is_dry_run,
            addresses: Vec::new(),
            ports: Vec::new(),
        };
        allocator.allocate_cluster_ips(spec, old)?;
        allocator.allocate_ports(spec, old)?;
        let ServiceAllocator { addresses, ports, .. } = allocator;
        if !is_dry_run {
            reservation.add(&mut index, addresses, ports);
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
            (self.managed_by_label(), self.names.group("ipallocator")),
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

    fn managed_by_label(&self) -> String {
        self.names.label_sub_key("ipaddress", "managed-by")
    }

    /// Returns the differences between Services and records.
    pub fn differences(&self) -> Differences {
        self.index.lock().differences()
    }

    /// Whether an address has a record that the allocator manages.
    pub(crate) fn has_managed_record(&self, address: IpAddr) -> bool {
        self.index.lock().records().get(&address).is_some_and(|record| record.is_managed)
    }

    /// Whether the managed record of an address names a Service that does not use the address.
    ///
    /// False while a write in progress reserves the address.
    pub fn is_stale(&self, address: IpAddr) -> bool {
        self.index.lock().is_stale(address)
    }

    /// Whether any write in progress reserves an address or a port.
    #[cfg(test)]
    fn has_reservations(&self) -> bool {
        let index = self.index.lock();
        !index.reserved_addresses.is_empty() || !index.reserved_ports.is_empty()
    }

    /// Whether the deletion of a ServiceCIDR object must wait.
    ///
    /// The deletion waits while an address of its ranges has a managed record or is reserved, and is in no
    /// range of `others`.
    pub fn is_range_used(&self, range: &Object, others: &[Object]) -> bool {
        let others: Vec<ServiceRange> = others.iter().flat_map(cidrs).collect();
        let own_cidrs = cidrs(range);
        if own_cidrs.iter().all(|cidr| others.iter().any(|other| other.contains(cidr))) {
            return false;
        }
        let others: Vec<AddressRange> = others.into_iter().map(AddressRange::new).collect();
        let own_ranges: Vec<AddressRange> = own_cidrs.into_iter().map(AddressRange::new).collect();
        let index = self.index.lock();
        let managed =
            index.records().iter().filter(|(_, record)| record.is_managed).map(|(address, _)| address);
        managed.chain(&index.reserved_addresses).chain(index.claims.addresses()).any(|address| {
            own_ranges.iter().any(|range| range.contains(*address))
                && !others.iter().any(|range| range.contains(*address))
        })
    }

    /// Waits for a change of an observed object.
    pub async fn wait_for_change(&self) {
        self.changed.notified().await;
    }

    /// Applies the change of an object to the index; `new` is None for a deletion.
    fn apply_change(&self, key: &str, new: Option<(&Bytes, Revision)>) {
        if !self.is_observed(key) {
            return;
        }
        if let Some(claim) = key.strip_prefix(CLAIMS) {
            return self.apply_claim(claim, new);
        }
        let mut unreadable = self.unreadable.lock();
        match new.filter(|(value, _)| unreadable_reason(value).is_some()) {
            Some((_, revision)) => drop(unreadable.insert(key.to_owned(), revision)),
            None => drop(unreadable.remove(key)),
        }
        self.apply_to_index(key, new);
    }

    /// Applies the change of a claim; `key` is the rest of the key after that of all claims.
    fn apply_claim(&self, key: &str, new: Option<(&Bytes, Revision)>) {
        let Some(key) = key.strip_prefix(SERVICES) else { return };
        let mut index = self.index.lock();
        match new {
            Some((value, revision)) => match serde_json::from_slice::<ClaimedValues>(value) {
                Ok(values) => index.claims.insert(key, revision, values),
                Err(error) => tracing::error!(key, %error, "a claim of addresses cannot be decoded"),
            },
            None => index.remove_claim(key),
        }
        drop(index);
        self.changed.notify_one();
    }

    fn apply_to_index(&self, key: &str, new: Option<(&Bytes, Revision)>) {
        let Some(kinds) = &self.kinds else { return };
        let log_error = |error: &dyn std::fmt::Display| {
            tracing::error!(
                key,
                %error,
                "stored object cannot be decoded; the address index ignores the object"
            );
        };
        let object = || {
            let (value, revision) = new?;
            kinds::entry::decode(value, revision).inspect_err(|error| log_error(error)).ok()
        };
        if let Some((namespace, name)) = kinds.services.parse_key(key) {
            let owner = Owner { namespace: namespace.to_owned(), name: name.to_owned() };
            let usage =
                new.and_then(|(value, _)| Usage::read(value).inspect_err(|error| log_error(error)).ok());
            self.index.lock().set_service(owner, usage);
        } else if let Some((_, name)) = kinds.records.parse_key(key) {
            let Some(address) = parse_address(name) else { return };
            let record = object().map(|object| self.read_record(&object));
            self.index.lock().set_record(address, record);
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
        let is_managed = object.label(&self.managed_by_label()) == Some(&*self.names.group("ipallocator"));
        Record { is_managed, owner: Owner { namespace: parent("namespace"), name: parent("name") } }
    }
}

impl Observer for ServiceAddresses {
    fn observe(&self, changes: &[Change]) {
        let mut observed = self.observed.lock();
        for change in changes {
            if let Some(observed) = observed.as_mut().filter(|_| self.is_observed(&change.key)) {
                observed.insert(Arc::clone(&change.key), change.revision);
            }
            self.apply_change(&change.key, change.new.as_ref().map(|new| (new, change.revision)));
        }
    }
}
