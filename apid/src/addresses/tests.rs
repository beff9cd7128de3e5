//! Allocation, commit and repair over the memory engine.

use apimachinery::clock::SeededRng;
use apimachinery::names::Preset;
use serde_json::json;
use storage::engine::memory::MemoryStore;

use super::*;

struct Fixture {
    addresses: Arc<ServiceAddresses>,
    store: Arc<dyn Store>,
}

fn allocator() -> Arc<ServiceAddresses> {
    let names = Arc::new(Names::new(Preset::Kubernetes, "").unwrap());
    let ranges = ServiceRange::parse_list("10.0.0.0/28").unwrap();
    let ports = NodePortRange { first: 30_000, last: 30_003 };
    let rng = Arc::new(SeededRng::new(3));
    Arc::new(ServiceAddresses::new(&Registry::new(&names), names, rng, &ranges, ports))
}

impl Fixture {
    fn new() -> Self {
        let addresses = allocator();
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(addresses.clone()));
        Fixture { addresses, store }
    }

    /// Allocates and commits a service. Returns its address and node port.
    async fn create(&self, name: &str, spec: Value) -> Result<(String, u64), String> {
        let mut object = service(name, spec);
        let reservation = self.addresses.allocate(&mut object, None, false).map_err(message)?;
        let owner = Owner { namespace: "a".to_owned(), name: name.to_owned() };
        let records = reservation.addresses().iter().map(|address| {
            let record = self.addresses.record(*address, &owner);
            (format!("networking/ipaddresses/{address}"), kinds::entry::encode(&record))
        });
        let records = records.collect();
        let (key, op) = (format!("core/services/a/{name}"), Op::Create(kinds::entry::encode(&object)));
        reservation.commit(self.store.clone(), key, op, records).await.map_err(|error| error.to_string())?;
        let spec = object.get("spec").unwrap();
        let port = spec["ports"][0]["nodePort"].as_u64().unwrap_or_default();
        Ok((spec["clusterIP"].as_str().unwrap_or_default().to_owned(), port))
    }

    async fn delete(&self, key: &str) {
        let row = self.store.get(key, None).await.unwrap().unwrap();
        self.store.commit(key, Op::Delete(row.revision)).await.unwrap();
    }
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
    for i in 0..14 {
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
async fn failed_commit_frees_values_and_removes_record() {
    let fixture = Fixture::new();
    fixture.create("one", json!({"type": "ClusterIP"})).await.unwrap();
    for _ in 0..20 {
        fixture.create("one", node_port(0)).await.unwrap_err();
    }
    assert_eq!(fixture.addresses.differences(), Differences::default());
    let page = fixture.store.range("networking/ipaddresses/", "", 0, None).await.unwrap();
    assert_eq!(page.rows.len(), 1);
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
    // A crash between the two writes leaves a record without its service, and a client deletes another one.
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
