//! Tests of allocation, commit and repair with the memory engine.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use apimachinery::clock::SeededRng;
use apimachinery::names::Preset;
use serde_json::json;
use storage::engine::memory::MemoryStore;
use storage::{CommitOutcome, Error, Held, Op, Page};

use super::*;

mod several_servers;

struct Fixture {
    addresses: Arc<ServiceAddresses>,
    store: Arc<dyn Store>,
}

fn allocator() -> Arc<ServiceAddresses> {
    allocator_with_seed(3)
}

fn allocator_with_seed(seed: u64) -> Arc<ServiceAddresses> {
    let names = Arc::new(Names::new(Preset::Kubernetes, "").unwrap());
    let ranges = ServiceRange::parse_list("10.0.0.0/28").unwrap();
    let ports = NodePortRange { first: 30_000, last: 30_003 };
    let rng = Arc::new(SeededRng::new(seed));
    Arc::new(ServiceAddresses::new(&Registry::new(&names), names, rng, &ranges, ports))
}

/// A store whose next commits of Services return `Unavailable`.
struct FailingStore {
    store: MemoryStore,
    /// The number of next commits of Services that fail.
    failures: AtomicUsize,
    /// Whether a failing commit writes its change.
    writes: bool,
    /// The limits of the requested pages; 0 is a page without a limit.
    page_limits: parking_lot::Mutex<Vec<usize>>,
    /// Changes of another server after the read of a page of a prefix, and the observer that sees them.
    after_page: parking_lot::Mutex<Option<ChangesAfterPages>>,
}

struct ChangesAfterPages {
    changes: HashMap<&'static str, Vec<(&'static str, Op)>>,
    observer: Arc<dyn Observer>,
}

#[async_trait::async_trait]
impl storage::conformance::StoreDouble for FailingStore {
    fn inner(&self) -> &dyn Store {
        &self.store
    }
    async fn range(
        &self,
        prefix: &str,
        start: &str,
        limit: usize,
        at: Option<Revision>,
    ) -> storage::Result<Page> {
        self.page_limits.lock().push(limit);
        let page = self.store.range(prefix, start, limit, at).await?;
        let changes =
            self.after_page.lock().as_mut().and_then(|after_page| after_page.changes.remove(prefix));
        let before = self.store.revision();
        for (key, op) in changes.unwrap_or_default() {
            self.store.commit(key, op).await?;
        }
        let changes = self.store.history("", before, self.store.revision(), usize::MAX).await?.changes;
        if let Some(after_page) = self.after_page.lock().as_ref() {
            after_page.observer.observe(&changes);
        }
        Ok(page)
    }
    async fn commit_holding(&self, key: &str, op: Op, held: &[Held]) -> storage::Result<CommitOutcome> {
        assert!(held.is_empty(), "a store of one server needs no claims");
        let count = |left: usize| left.checked_sub(1);
        let is_service = key.starts_with("core/services/");
        if is_service && self.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, count).is_ok() {
            if self.writes {
                self.store.commit(key, op).await?;
            }
            return Err(Error::Unavailable("the disk failed".to_owned()));
        }
        self.store.commit(key, op).await
    }
}

impl Fixture {
    fn new() -> Self {
        let addresses = allocator();
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(addresses.clone()));
        Fixture { addresses, store }
    }

    /// Creates a fixture whose first commits of Services fail.
    fn failing(failures: usize, writes: bool) -> (Self, Arc<FailingStore>) {
        let addresses = allocator();
        let store = Arc::new(FailingStore {
            store: MemoryStore::new(addresses.clone()),
            failures: failures.into(),
            writes,
            page_limits: parking_lot::Mutex::default(),
            after_page: parking_lot::Mutex::default(),
        });
        (Fixture { addresses, store: store.clone() }, store)
    }

    /// Allocates and commits a service. Returns its address and node port.
    async fn create(&self, name: &str, spec: Value) -> Result<(String, u64), String> {
        let mut object = service(name, spec);
        let reservation = self.addresses.allocate(&mut object, None, false).map_err(message)?;
        let owner = Owner { namespace: "a".to_owned(), name: name.to_owned() };
        for address in reservation.addresses() {
            let key = format!("networking/ipaddresses/{address}");
            if self.store.get(&key, None).await.unwrap().is_some() {
                self.delete(&key).await;
            }
            let op = Op::Create(kinds::entry::encode(&self.addresses.record(*address, &owner)));
            self.store.commit(&key, op).await.unwrap();
        }
        let (key, op) = (format!("core/services/a/{name}"), Op::Create(kinds::entry::encode(&object)));
        reservation
            .commit(self.store.clone(), key, op, Vec::new())
            .await
            .0
            .map_err(|error| error.to_string())?;
        let spec = object.get("spec").unwrap();
        let port = spec["ports"][0]["nodePort"].as_u64().unwrap_or_default();
        Ok((spec["clusterIP"].as_str().unwrap_or_default().to_owned(), port))
    }

    async fn delete(&self, key: &str) {
        let row = self.store.get(key, None).await.unwrap().unwrap();
        self.store.commit(key, Op::Delete(row.revision)).await.unwrap();
    }
}

/// Waits for a condition, at most 10 s.
async fn wait_until(is_met: impl Fn() -> bool) {
    for _ in 0..1000 {
        if is_met() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the condition is not met after 10 s");
}

fn service(name: &str, spec: Value) -> Object {
    Object::from_value(json!({"metadata": {"name": name, "namespace": "a"}, "spec": spec})).unwrap()
}

fn message(error: AllocationError) -> String {
    match error {
        AllocationError::Invalid(errors) => errors.iter().map(ToString::to_string).collect(),
        AllocationError::Internal(message) => message,
    }
}

fn node_port(port: u64) -> Value {
    json!({"type": "NodePort", "ports": [{"port": 80, "protocol": "TCP", "nodePort": port}]})
}

#[tokio::test]
async fn full_ranges_are_reported_and_deletion_frees_values() {
    let fixture = Fixture::new();
    let mut seen = std::collections::BTreeSet::new();
    for i in 0..13 {
        let (address, _) = fixture.create(&format!("s{i}"), json!({"type": "ClusterIP"})).await.unwrap();
        assert!(seen.insert(address));
    }
    let full = fixture.create("more", json!({"type": "ClusterIP"})).await.unwrap_err();
    assert_eq!(full, "failed to allocate a serviceIP: range is full");
    fixture.delete("core/services/a/s3").await;
    let (address, _) = fixture.create("more", json!({"type": "ClusterIP"})).await.unwrap();
    assert!(seen.contains(&address), "the stale record of {address} is replaced");
    assert_eq!(fixture.addresses.differences(), Differences::default());
}

#[tokio::test]
async fn chosen_values_have_one_owner() {
    let fixture = Fixture::new();
    let chosen = json!({"type": "ClusterIP", "clusterIP": "10.0.0.5", "clusterIPs": ["10.0.0.5"]});
    assert_eq!(fixture.create("one", chosen.clone()).await.unwrap().0, "10.0.0.5");
    let taken = fixture.create("two", chosen).await.unwrap_err();
    assert!(taken.ends_with("failed to allocate IP 10.0.0.5: provided IP is already allocated"), "{taken}");
    assert_eq!(fixture.create("three", node_port(30_001)).await.unwrap().1, 30_001);
    let taken = fixture.create("four", node_port(30_001)).await.unwrap_err();
    assert!(taken.ends_with("Invalid value: 30001: provided port is already allocated"), "{taken}");
    let outside = fixture.create("five", node_port(1)).await.unwrap_err();
    assert!(outside.ends_with("The range of valid ports is 30000-30003"), "{outside}");
}

#[tokio::test]
async fn failed_commit_frees_values_and_leaves_records_to_the_repair() {
    let fixture = Fixture::new();
    fixture.create("one", json!({"type": "ClusterIP"})).await.unwrap();
    for _ in 0..20 {
        fixture.create("one", node_port(0)).await.unwrap_err();
    }
    assert!(!fixture.addresses.has_reservations());
    let page = fixture.store.range("networking/ipaddresses/", "", 0, None).await.unwrap();
    assert_eq!(fixture.addresses.differences().stale.len(), page.rows.len() - 1);
}

#[tokio::test]
async fn commit_that_never_ran_frees_values_after_the_store_recovers() {
    // The second failure is the failure of the first attempt to determine the outcome.
    let (fixture, _) = Fixture::failing(2, false);
    let mut spec = node_port(30_001);
    spec["clusterIP"] = json!("10.0.0.5");
    spec["clusterIPs"] = json!(["10.0.0.5"]);
    let failed = fixture.create("one", spec.clone()).await.unwrap_err();
    assert!(failed.contains("the disk failed"), "{failed}");
    assert!(
        fixture.create("two", node_port(30_001)).await.is_err(),
        "the port stays reserved while the outcome is unknown"
    );
    wait_until(|| !fixture.addresses.differences().stale.is_empty()).await;
    assert_eq!(fixture.addresses.differences().stale, ["10.0.0.5".parse::<IpAddr>().unwrap()]);
    fixture.create("two", spec).await.unwrap();
    assert_eq!(fixture.addresses.differences(), Differences::default());
}

#[tokio::test]
async fn commit_with_unknown_outcome_that_was_stored_keeps_its_values() {
    let (fixture, _) = Fixture::failing(1, true);
    fixture.create("one", node_port(30_001)).await.unwrap_err();
    assert!(fixture.create("two", node_port(30_001)).await.is_err(), "the stored Service uses the port");
    wait_until(|| !fixture.addresses.has_reservations()).await;
    assert!(fixture.create("two", node_port(30_001)).await.is_err(), "the stored Service uses the port");
    assert_eq!(fixture.addresses.differences(), Differences::default());
    fixture.delete("core/services/a/one").await;
    fixture.create("two", node_port(30_001)).await.unwrap();
}

#[tokio::test]
async fn first_address_is_allocated_to_the_service_of_the_api_only() {
    let fixture = Fixture::new();
    for i in 0..13 {
        let (address, _) = fixture.create(&format!("s{i}"), json!({"type": "ClusterIP"})).await.unwrap();
        assert_ne!(address, "10.0.0.1");
    }
    fixture.create("more", json!({"type": "ClusterIP"})).await.unwrap_err();
    let first = json!({"type": "ClusterIP", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"]});
    let taken = fixture.create("one", first.clone()).await.unwrap_err();
    assert!(taken.ends_with("failed to allocate IP 10.0.0.1: provided IP is already allocated"), "{taken}");
    let mut own = service("kubernetes", first);
    own.set_meta("namespace", "default");
    assert!(fixture.addresses.allocate(&mut own, None, false).is_ok());
}

#[tokio::test]
async fn range_of_four_addresses_is_used_and_allocated() {
    let fixture = Fixture::new();
    let range = |cidr: &str| Object::from_value(json!({"spec": {"cidrs": [cidr]}})).unwrap();
    let op = Op::Create(kinds::entry::encode(&range("192.0.2.0/30")));
    fixture.store.commit("networking/servicecidrs/small", op).await.unwrap();
    let chosen = json!({"type": "ClusterIP", "clusterIP": "192.0.2.1", "clusterIPs": ["192.0.2.1"]});
    fixture.create("one", chosen).await.unwrap();
    assert!(fixture.addresses.is_range_used(&range("192.0.2.0/30"), &[]));
    assert!(!fixture.addresses.is_range_used(&range("192.0.2.0/30"), &[range("192.0.2.0/29")]));
    assert!(!fixture.addresses.is_range_used(&range("192.0.2.9/32"), &[]));
}

#[tokio::test]
async fn stored_objects_are_loaded_in_pages() {
    let (fixture, store) = Fixture::failing(0, false);
    for i in 0..1200 {
        let spec = json!({"type": "ClusterIP", "clusterIP": format!("10.9.{}.{}", i / 250, i % 250)});
        let op = Op::Create(kinds::entry::encode(&service(&format!("s{i:04}"), spec)));
        store.commit(&format!("core/services/a/s{i:04}"), op).await.unwrap();
    }
    let restarted = allocator();
    restarted.load(&*store).await.unwrap();
    let count = restarted.differences().unrecorded.len();
    assert_eq!((count, fixture.addresses.differences().unrecorded.len()), (1200, 1200));
    assert!(store.page_limits.lock().iter().all(|limit| (1..=500).contains(limit)));
}

#[tokio::test]
async fn rejected_write_reserves_nothing_after_it_ends() {
    let fixture = Fixture::new();
    let chosen = json!({"type": "ClusterIP", "clusterIP": "10.0.0.5", "clusterIPs": ["10.0.0.5"]});
    let mut object = service("one", chosen.clone());
    let reservation = fixture.addresses.allocate(&mut object, None, false).unwrap();
    assert!(fixture.create("two", chosen.clone()).await.is_err(), "a write in progress reserves its address");
    drop(reservation);
    fixture.create("two", chosen).await.unwrap();
}

#[tokio::test]
async fn index_of_a_restart_equals_that_of_the_changes() {
    let fixture = Fixture::new();
    fixture.create("one", node_port(30_002)).await.unwrap();
    fixture.create("two", json!({"type": "ClusterIP"})).await.unwrap();
    // A crash between the two writes leaves a record without its service, and a client deletes a record.
    let orphan = fixture
        .addresses
        .record("10.0.0.9".parse().unwrap(), &Owner { namespace: "a".into(), name: "x".into() });
    let op = Op::Create(kinds::entry::encode(&orphan));
    fixture.store.commit("networking/ipaddresses/10.0.0.9", op).await.unwrap();
    let restarted = allocator();
    restarted.load(&*fixture.store).await.unwrap();
    assert_eq!(restarted.differences(), fixture.addresses.differences());
    assert_eq!(restarted.differences().stale, ["10.0.0.9".parse::<IpAddr>().unwrap()]);
    let taken = restarted.allocate(&mut service("new", node_port(30_002)), None, false).err().map(message);
    assert!(taken.is_some_and(|text| text.contains("already allocated")));
}

#[test]
fn dry_run_allocates_nothing() {
    let addresses = allocator();
    for _ in 0..3 {
        let mut object = service("dry", node_port(30_001));
        let reservation = addresses.allocate(&mut object, None, true).unwrap();
        assert!(reservation.addresses().is_empty());
        assert_eq!(object.str_at(&["spec", "clusterIP"]), Some("10.0.0.0"));
    }
    let mut object = service("dry", json!({"clusterIP": "10.1.0.1", "clusterIPs": ["10.1.0.1"]}));
    let text = message(addresses.allocate(&mut object, None, true).err().unwrap());
    assert!(
        text.ends_with("(10.1.0.1) is not in the valid range. The range of valid IPs is 10.0.0.0/28"),
        "{text}"
    );
}

#[tokio::test]
async fn service_that_becomes_readable_owns_address_again() {
    let fixture = Fixture::new();
    let spec = json!({"clusterIP": "10.0.0.5", "clusterIPs": ["10.0.0.5"], "ports": [{"port": 80}]});
    fixture.create("one", spec.clone()).await.unwrap();
    let row = fixture.store.get("core/services/a/one", None).await.unwrap().unwrap();
    // A process without the key of the object, whose store decrypts the object later.
    let restarted = allocator();
    let unreadable = storage::unreadable_value("wrong key");
    restarted.apply_change(&row.key, Some((&unreadable, row.revision)));
    let allocate = || restarted.allocate(&mut service("two", spec.clone()), None, false).map(drop);
    assert!(allocate().is_ok(), "the index lacks the Service");
    restarted.add_readable(&*fixture.store).await.unwrap();
    assert!(allocate().is_err());
    // A Service that changed meanwhile is not replaced by an older state.
    restarted.apply_change(&row.key, Some((&unreadable, row.revision)));
    restarted.apply_change(&row.key, None);
    restarted.add_readable(&*fixture.store).await.unwrap();
    assert!(allocate().is_ok());
}
