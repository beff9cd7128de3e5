//! Allocation by two servers over one store.

use std::collections::BTreeSet;

use storage::{Claim, Held, Observers};

use super::super::claimed::ClaimedValues;
use super::*;

/// Two allocators of one store, with 13 free addresses and 4 node ports.
async fn servers() -> [Fixture; 2] {
    let allocators = [allocator_with_seed(3), allocator_with_seed(4)];
    let observers = allocators.iter().map(|allocator| Arc::clone(allocator) as Arc<dyn Observer>).collect();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::of_several_servers(Arc::new(Observers(observers))));
    for allocator in &allocators {
        allocator.load(&*store).await.unwrap();
    }
    allocators.map(|addresses| Fixture { addresses, store: Arc::clone(&store) })
}

/// A Service with recorded addresses, and the reservation of these addresses.
struct Prepared {
    object: Object,
    reservation: Reservation,
}

impl Fixture {
    /// Allocates and claims, again as long as another server has the values, and records the addresses.
    async fn prepare(&self, name: &str, spec: &Value) -> Result<Prepared, String> {
        loop {
            let mut object = service(name, spec.clone());
            let mut reservation = self.addresses.allocate(&mut object, None, false).map_err(message)?;
            // The other server allocates in between.
            tokio::task::yield_now().await;
            if !reservation.claim(&self.store).await.unwrap() {
                continue;
            }
            tokio::task::yield_now().await;
            let owner = Owner { namespace: "a".to_owned(), name: name.to_owned() };
            for address in reservation.addresses() {
                let key = format!("networking/ipaddresses/{address}");
                if self.store.get(&key, None).await.unwrap().is_some() {
                    self.delete(&key).await;
                }
                let op = Op::Create(kinds::entry::encode(&self.addresses.record(*address, &owner)));
                self.store.commit(&key, op).await.unwrap();
            }
            tokio::task::yield_now().await;
            return Ok(Prepared { object, reservation });
        }
    }

    async fn commit(&self, name: &str, prepared: Prepared) -> Result<(String, u64), String> {
        let Prepared { object, reservation } = prepared;
        let (key, op) = (format!("core/services/a/{name}"), Op::Create(kinds::entry::encode(&object)));
        let store = Arc::clone(&self.store);
        reservation.commit(store, key, op, Vec::new()).await.0.map_err(|error| error.to_string())?;
        let spec = object.get("spec").unwrap();
        let port = spec["ports"][0]["nodePort"].as_u64().unwrap_or_default();
        Ok((spec["clusterIP"].as_str().unwrap_or_default().to_owned(), port))
    }

    async fn create_among_servers(&self, name: &str, spec: &Value) -> Result<(String, u64), String> {
        self.commit(name, self.prepare(name, spec).await?).await
    }

    /// Waits until the claims of ended writes have ended, too.
    async fn wait_for_claims(&self) {
        while !self.store.range(storage::CLAIMS, "", 0, None).await.unwrap().rows.is_empty() {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn racing_servers_give_each_address_and_port_once() {
    for round in 0..20 {
        let servers = servers().await;
        let servers = servers.map(Arc::new);
        let spec = if round % 2 == 0 { json!({"type": "ClusterIP"}) } else { node_port(0) };
        let writers = (0..30).map(|writer| {
            let (server, spec) = (Arc::clone(&servers[writer % 2]), spec.clone());
            tokio::spawn(async move { server.create_among_servers(&format!("s{writer}"), &spec).await })
        });
        let (mut addresses, mut ports, mut full) = (BTreeSet::new(), BTreeSet::new(), 0);
        for writer in writers.collect::<Vec<_>>() {
            match writer.await.unwrap() {
                Ok((address, port)) => {
                    assert!(addresses.insert(address.clone()), "{address} is given twice");
                    assert!(port == 0 || ports.insert(port), "{port} is given twice");
                }
                Err(error) => {
                    assert!(error.ends_with("range is full"), "{error}");
                    full += 1;
                }
            }
        }
        let expected = if round % 2 == 0 { 13 } else { 4 };
        assert_eq!((addresses.len(), full), (expected, 30 - expected), "all values are used");
        servers[0].wait_for_claims().await;
        for server in &servers {
            assert!(server.create_among_servers("more", &spec).await.unwrap_err().ends_with("range is full"));
            assert!(server.addresses.differences().shared.is_empty());
        }
        let row = servers[0].store.range("core/services/", "", 1, None).await.unwrap().rows.remove(0);
        servers[0].delete(&row.key).await;
        servers[1].create_among_servers("more", &spec).await.unwrap();
    }
}

#[tokio::test]
async fn write_after_end_of_claim_is_never_stored() {
    let [first, second] = servers().await;
    let mut spec = node_port(30_001);
    spec["clusterIP"] = json!("10.0.0.5");
    spec["clusterIPs"] = json!(["10.0.0.5"]);
    let paused = first.prepare("one", &spec).await.unwrap();
    let taken = second.prepare("two", &spec).await.err().unwrap();
    assert!(taken.contains("already allocated"), "{taken}");
    // The lease of the claim ends while the first server is paused.
    let claims = first.store.range(storage::CLAIMS, "", 0, None).await.unwrap().rows;
    first.delete(&claims[0].key).await;
    let (address, port) = second.create_among_servers("two", &spec).await.unwrap();
    assert_eq!((address.as_str(), port), ("10.0.0.5", 30_001));
    let late = first.commit("one", paused).await.unwrap_err();
    assert!(late.contains("nothing was written"), "{late}");
    assert!(first.store.get("core/services/a/one", None).await.unwrap().is_none());
    // The values of the first server are not released, because the second Service has them.
    assert!(first.prepare("three", &spec).await.is_err());
}

#[tokio::test]
async fn earlier_claim_wins_over_a_later_one() {
    let [first, second] = servers().await;
    let mut objects = [service("one", node_port(30_001)), service("two", node_port(30_001))];
    let [one, two] = &mut objects;
    let mut early = first.addresses.allocate(one, None, false).unwrap();
    let mut late = second.addresses.allocate(two, None, false).unwrap();
    assert!(early.claim(&first.store).await.unwrap());
    assert!(!late.claim(&second.store).await.unwrap(), "the port has an earlier claim");
    assert_eq!(first.store.range(storage::CLAIMS, "", 0, None).await.unwrap().rows.len(), 1);
}

#[tokio::test]
async fn record_of_a_write_at_another_server_is_kept() {
    let [first, second] = servers().await;
    let chosen = json!({"type": "ClusterIP", "clusterIP": "10.0.0.5", "clusterIPs": ["10.0.0.5"]});
    let prepared = first.prepare("one", &chosen).await.unwrap();
    assert_eq!(second.addresses.differences(), Differences::default(), "the claim keeps the record");
    first.commit("one", prepared).await.unwrap();
    first.wait_for_claims().await;
    assert_eq!(second.addresses.differences(), Differences::default());
    // A server that ends in the middle of a write: the end of its claim makes the record stale at once.
    let other = json!({"type": "ClusterIP", "clusterIP": "10.0.0.6", "clusterIPs": ["10.0.0.6"]});
    drop(first.prepare("two", &other).await.unwrap());
    first.wait_for_claims().await;
    assert_eq!(second.addresses.differences().stale, ["10.0.0.6".parse::<IpAddr>().unwrap()]);
    // A kube-apiserver makes no claims.
    let owner = Owner { namespace: "a".into(), name: "three".into() };
    let record = first.addresses.record("10.0.0.7".parse().unwrap(), &owner);
    let op = Op::Create(kinds::entry::encode(&record));
    first.store.commit("networking/ipaddresses/10.0.0.7", op).await.unwrap();
    let third = json!({"type": "ClusterIP", "clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7"]});
    assert!(second.prepare("three", &third).await.is_err(), "the address is not free");
    assert_eq!(second.addresses.differences().stale.len(), 1);
    second.addresses.index.lock().end_grace();
    assert_eq!(second.addresses.differences().stale.len(), 2);
    second.create_among_servers("three", &third).await.unwrap();
}

#[tokio::test]
async fn range_that_another_server_deletes_gives_no_more_addresses() {
    let [first, second] = servers().await;
    let range = json!({"spec": {"cidrs": ["192.0.2.0/30"]}});
    let encode = |range: &Value| kinds::entry::encode(&Object::from_value(range.clone()).unwrap());
    let key = "networking/servicecidrs/small";
    first.store.commit(key, Op::Create(encode(&range))).await.unwrap();
    let spec = json!({"type": "ClusterIP", "clusterIP": "192.0.2.1", "clusterIPs": ["192.0.2.1"]});
    let mut object = service("one", spec);
    let mut reservation = first.addresses.allocate(&mut object, None, false).unwrap();
    let range = Object::from_value(range).unwrap();
    assert!(!second.addresses.is_range_used(&range, &[]), "the second server removes the finalizer");
    first.delete(key).await;
    assert!(!reservation.claim(&first.store).await.unwrap(), "the range is gone");
    // A claim that precedes the end of the range keeps it.
    first.store.commit(key, Op::Create(kinds::entry::encode(&range))).await.unwrap();
    assert!(reservation.claim(&first.store).await.unwrap());
    assert!(second.addresses.is_range_used(&range, &[]));
}

#[tokio::test]
async fn claims_are_loaded_at_the_start() {
    let [first, _] = servers().await;
    let values = ClaimedValues { addresses: vec!["10.0.0.5".parse().unwrap()], ports: vec![30_001] };
    let claim = Claim::create(&first.store, "/apid/claims/services/x", values.encode()).await.unwrap();
    assert_eq!(*claim.held(), Held { key: "/apid/claims/services/x".into(), revision: Revision(1) });
    let started = allocator();
    started.load(&*first.store).await.unwrap();
    let taken = started.allocate(&mut service("new", node_port(30_001)), None, false).err().map(message);
    assert!(taken.is_some_and(|text| text.contains("already allocated")));
    started.apply_change("/apid/claims/services/x", None);
    assert!(started.allocate(&mut service("new", node_port(30_001)), None, false).is_ok());
}

#[tokio::test]
async fn changes_by_another_server_during_the_load_are_kept() {
    let memory = MemoryStore::of_several_servers(Arc::new(Observers(Vec::new())));
    let with_address = |name: &str, address: &str, port: u64| {
        let mut spec = node_port(port);
        (spec["clusterIP"], spec["clusterIPs"]) = (json!(address), json!([address]));
        kinds::entry::encode(&service(name, spec))
    };
    let claim = "/apid/claims/services/x";
    let values = ClaimedValues { addresses: vec!["10.0.0.5".parse().unwrap()], ports: vec![30_003] };
    let owner = Owner { namespace: "a".to_owned(), name: "two".to_owned() };
    let record = kinds::entry::encode(&allocator().record("10.0.0.3".parse().unwrap(), &owner));
    for (key, value) in [
        ("core/services/a/one", with_address("one", "10.0.0.2", 30_001)),
        ("core/services/a/two", with_address("two", "10.0.0.3", 30_002)),
        ("networking/ipaddresses/10.0.0.3", record),
        (claim, values.encode()),
    ] {
        memory.commit(key, Op::Create(value)).await.unwrap();
    }
    let changed = with_address("one", "10.0.0.2", 30_000);
    let changes = HashMap::from([
        (
            "core/services/",
            vec![
                ("core/services/a/one", Op::Update(changed, Revision(1))),
                ("core/services/a/two", Op::Delete(Revision(2))),
            ],
        ),
        ("networking/ipaddresses/", vec![("networking/ipaddresses/10.0.0.3", Op::Delete(Revision(3)))]),
        ("/apid/claims/services/", vec![(claim, Op::Delete(Revision(4)))]),
    ]);
    let starting = allocator();
    let store = FailingStore {
        store: memory,
        failures: 0.into(),
        writes: false,
        page_limits: parking_lot::Mutex::default(),
        after_page: Some(ChangesAfterPages { changes, observer: starting.clone() }).into(),
    };
    starting.load(&store).await.unwrap();
    let is_free = |address: &str, port: u64| {
        let mut spec = node_port(port);
        (spec["clusterIP"], spec["clusterIPs"]) = (json!(address), json!([address]));
        starting.allocate(&mut service("new", spec), None, false).is_ok()
    };
    assert!(!is_free("10.0.0.6", 30_000), "the changed Service has the port");
    assert!(is_free("10.0.0.6", 30_001), "the port of the old state of the Service");
    assert!(is_free("10.0.0.3", 30_002), "the values of the deleted Service");
    assert!(is_free("10.0.0.5", 30_003), "the values of the ended claim");
    assert_eq!(starting.differences().stale, [] as [IpAddr; 0], "the record is deleted");
}
