//! Addresses and node ports of Services with the real programs: concurrent clients, SIGKILL and repair.
//!
//! In the churn, clients create, change and delete Services concurrently. `CHURN_SECONDS` sets its duration.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::harness::{Client, ControlPlane, Options, eventually};

/// Concurrent clients of the churn.
const CLIENTS: usize = 32;
/// Services of one client.
const SERVICES_EACH: usize = 4;
/// Time between two kills.
const KILL_INTERVAL: Duration = Duration::from_millis(1500);

fn services(name: &str) -> String {
    format!("/api/v1/namespaces/default/services{name}")
}

/// One client: creates, changes and deletes its services until the deadline. Failed requests are expected.
async fn churn(client: &Client, number: usize, deadline: Instant) -> usize {
    let mut created = 0;
    for step in 0.. {
        if Instant::now() >= deadline {
            break;
        }
        let name = format!("c{number}-{}", step % SERVICES_EACH);
        let kind = if step % 3 == 0 { "NodePort" } else { "ClusterIP" };
        let spec = json!({"type": kind, "ports": [{"port": 80}], "ipFamilyPolicy": "PreferDualStack"});
        let body = json!({"metadata": {"name": &name}, "spec": spec}).to_string();
        let headers = [("content-type", "application/json")];
        let post = client.try_request("POST", &services(""), &headers, body.as_bytes()).await;
        match post {
            Ok(answer) if answer.status == 201 => created += 1,
            Ok(_) => {}
            Err(_) => {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        }
        if step % 2 == 0 {
            let patch = r#"{"spec":{"type":"ExternalName","externalName":"x.test"}}"#;
            let headers = [("content-type", "application/merge-patch+json")];
            let path = services(&format!("/{name}"));
            let _ = client.try_request("PATCH", &path, &headers, patch.as_bytes()).await;
        }
        if step % 5 != 0 {
            let _ = client.try_request("DELETE", &services(&format!("/{name}")), &[], &[]).await;
        }
    }
    created
}

/// Lists the address and port owners of all services; panics if a value has two owners.
async fn owners(client: &Client) -> BTreeMap<String, String> {
    let mut owners = BTreeMap::new();
    let mut ports = BTreeSet::new();
    for service in client.get("/api/v1/services").await.expect(200)["items"].as_array().expect("a list") {
        let name = service["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        for address in service["spec"]["clusterIPs"].as_array().into_iter().flatten() {
            let address = address.as_str().unwrap_or_default().to_owned();
            let other = owners.insert(address.clone(), name.clone());
            assert_eq!(other, None, "{address} belongs to {name} and to another service");
        }
        for port in service["spec"]["ports"].as_array().into_iter().flatten() {
            if let Some(port) = port["nodePort"].as_u64() {
                assert!(ports.insert(port), "node port {port} of {name} is used twice");
            }
        }
    }
    owners
}

async fn records(plane: &ControlPlane) -> BTreeMap<String, String> {
    let path = format!("{}/ipaddresses", plane.api("networking", "v1"));
    let list = plane.admin().get(&path).await.expect(200);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let items = list["items"].as_array().cloned().unwrap_or_default();
    items
        .iter()
        .map(|item| (text(&item["metadata"]["name"]), text(&item["spec"]["parentRef"]["name"])))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn churn_under_sigkill_gives_no_address_twice_and_leaks_none() {
    let seconds = std::env::var("CHURN_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(6);
    for preset in [Options::default(), Options::kubernetes()] {
        let options = preset
            .flag("--service-cluster-ip-range=10.9.0.0/24,fd00:9::/112")
            .flag("--service-node-port-range=30000-30099");
        let mut plane = ControlPlane::start(options).await;
        let end = Instant::now() + Duration::from_secs(seconds) / 2;
        let mut created = 0;
        while Instant::now() < end {
            let deadline = end.min(Instant::now() + KILL_INTERVAL);
            let clients: Vec<_> = (0..CLIENTS)
                .map(|number| {
                    let admin = plane.admin();
                    tokio::spawn(
                        async move { churn(&admin, number, deadline + Duration::from_millis(100)).await },
                    )
                })
                .collect();
            tokio::time::sleep_until(deadline.into()).await;
            plane.kill();
            for client in clients {
                created += client.await.expect("no client panics");
            }
            plane.launch().await;
        }
        assert!(created > CLIENTS, "the clients created {created} services");
        let admin = plane.admin();
        let owners = eventually("records that equal the addresses of services", || async {
            let owners = owners(&admin).await;
            (records(&plane).await == owners).then_some(owners)
        })
        .await;
        assert_eq!(owners.get("10.9.0.1").map(String::as_str), Some(plane.names().api_service));

        // After the deletion of all services, each address and port of the ranges can be allocated.
        for name in owners.values().collect::<BTreeSet<_>>() {
            if name != plane.names().api_service {
                admin.delete(&services(&format!("/{name}"))).await;
            }
        }
        for i in 0..100 {
            let port = json!([{"port": 80}]);
            let body =
                json!({"metadata": {"name": format!("n{i}")}, "spec": {"type": "NodePort", "ports": port}});
            admin.post(&services(""), &body).await.expect(201);
        }
        eventually("only the records of the remaining services", || async {
            (records(&plane).await.len() == 101).then_some(())
        })
        .await;
        plane.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn further_range_serves_addresses_and_waits_for_their_release() {
    let plane = ControlPlane::start(Options::default().flag("--service-cluster-ip-range=10.9.0.0/28")).await;
    let admin = plane.admin();
    let ranges = format!("{}/servicecidrs", plane.api("networking", "v1"));
    let range = json!({"metadata": {"name": "more"}, "spec": {"cidrs": ["10.8.0.0/24"]}});
    admin.post(&ranges, &range).await.expect(201);
    let path = format!("{ranges}/more");
    let is_ready = |object: &Value, status: &str| object["status"]["conditions"][0]["status"] == status;
    eventually("a ready range", || async {
        let object = admin.get(&path).await.expect(200);
        (is_ready(&object, "True") && object["metadata"]["finalizers"].is_array()).then_some(())
    })
    .await;
    let body = |name: &str, address: &str| {
        let ports = json!([{"port": 80}]);
        json!({"metadata": {"name": name}, "spec": {"clusterIP": address, "ports": ports}})
    };
    admin.post(&services(""), &body("s", "10.8.0.7")).await.expect(201);
    admin.delete(&path).await.expect(200);
    eventually("a range that waits", || async {
        let object = admin.get(&path).await.expect(200);
        is_ready(&object, "False").then_some(())
    })
    .await;
    admin.post(&services(""), &body("late", "10.8.0.8")).await.expect(422);
    admin.delete(&services("/s")).await.expect(200);
    eventually("the end of the range", || async { (admin.get(&path).await.status == 404).then_some(()) })
        .await;

    // A record that a client deletes is restored.
    let record = format!("{}/ipaddresses/10.9.0.1", plane.api("networking", "v1"));
    admin.delete(&record).await.expect(200);
    eventually("a restored record", || async { (admin.get(&record).await.status == 200).then_some(()) })
        .await;
}
