//! Addresses, node ports, quotas and endpoints with two servers on one etcd.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::harness::{Client, Cluster, Options, TestResponse, eventually};

const SERVICES: &str = "/api/v1/namespaces/default/services";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const QUOTA: &str = "/api/v1/namespaces/default/resourcequotas/limits";
const ENDPOINTS: &str = "/api/v1/namespaces/default/endpoints/kubernetes";
const SLICE: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";

fn options() -> Options {
    Options::kubernetes()
        .flag("--service-cluster-ip-range=10.7.0.0/26")
        .flag("--service-node-port-range=30000-30009")
}

/// Creates objects at two servers in turn, all at the same time.
async fn create_all(clients: &[Client; 2], path: &str, objects: Vec<Value>) -> Vec<TestResponse> {
    let requests = objects.into_iter().enumerate().map(|(number, object)| {
        let (client, path) = (clients[number % 2].clone(), path.to_owned());
        tokio::spawn(async move { client.post(&path, &object).await })
    });
    let mut responses = Vec::new();
    for request in requests.collect::<Vec<_>>() {
        responses.push(request.await.expect("a response"));
    }
    responses
}

fn service(name: &str, kind: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"type": kind, "ports": [{"port": 80}]}})
}

/// Sorts responses: the values of created objects by a pointer, and the number of rejections with a text.
fn outcomes(responses: &[TestResponse], pointer: &str, rejection: &str) -> (BTreeSet<String>, usize) {
    let (mut values, mut rejected) = (BTreeSet::new(), 0);
    for response in responses {
        if response.status == 201 {
            let value = response.json().pointer(pointer).expect("a value").to_string();
            assert!(values.insert(value.clone()), "{value} is given twice");
        } else {
            assert!(response.text().contains(rejection), "{}: {}", response.status, response.text());
            rejected += 1;
        }
    }
    (values, rejected)
}

#[tokio::test(flavor = "multi_thread")]
async fn two_servers_give_each_address_and_node_port_once() {
    let Some(cluster) = Cluster::start_with(options(), 2, 1).await else { return };
    let clients = [cluster.server(0).admin(), cluster.server(1).admin()];
    let services = (0..200).map(|number| service(&format!("s{number}"), "ClusterIP")).collect();
    let responses = create_all(&clients, SERVICES, services).await;
    let (addresses, rejected) = outcomes(&responses, "/spec/clusterIP", "range is full");
    assert_eq!((addresses.len(), rejected), (61, 139), "62 addresses without that of the Service of the API");
    for client in &clients {
        let full = client.post(SERVICES, &service("more", "ClusterIP")).await;
        assert!(full.status == 500 && full.text().contains("range is full"), "{}", full.text());
    }
    let created: Vec<String> = responses
        .iter()
        .filter(|response| response.status == 201)
        .map(|response| response.json()["metadata"]["name"].as_str().expect("a name").to_owned())
        .collect();
    for (number, name) in created.iter().take(20).enumerate() {
        clients[number % 2].delete(&format!("{SERVICES}/{name}")).await.expect(200);
    }
    let services = (0..20).map(|number| service(&format!("n{number}"), "NodePort")).collect();
    let responses = create_all(&clients, SERVICES, services).await;
    let (ports, rejected) = outcomes(&responses, "/spec/ports/0/nodePort", "range is full");
    assert_eq!((ports.len(), rejected), (10, 10));
    // The 10 addresses of the rejected Services are free.
    let services = (0..20).map(|number| service(&format!("m{number}"), "ClusterIP")).collect();
    let responses = create_all(&clients, SERVICES, services).await;
    let (addresses, rejected) = outcomes(&responses, "/spec/clusterIP", "range is full");
    assert_eq!((addresses.len(), rejected), (10, 10));
    let all = clients[1].get("/api/v1/services").await.expect(200);
    let all = all["items"].as_array().expect("items");
    let addresses: BTreeSet<&str> =
        all.iter().filter_map(|item| item["spec"]["clusterIP"].as_str()).collect();
    assert_eq!((all.len(), addresses.len()), (62, 62));
    eventually("each address has an IPAddress object", || async {
        let records = clients[0].get("/apis/networking.k8s.io/v1/ipaddresses").await.expect(200);
        (records["items"].as_array().map(Vec::len) == Some(62)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_servers_admit_as_many_objects_as_a_quota_allows() {
    let Some(cluster) = Cluster::start_with(options(), 2, 1).await else { return };
    let clients = [cluster.server(0).admin(), cluster.server(1).admin()];
    let quota = json!({"metadata": {"name": "limits"}, "spec": {"hard": {"secrets": "20"}}});
    clients[0].post("/api/v1/namespaces/default/resourcequotas", &quota).await.expect(201);
    let wait_for_usage = async |used: &str| {
        eventually("the usage is counted", || async {
            let quota = clients[1].get(QUOTA).await.expect(200);
            (quota["status"]["used"]["secrets"] == used).then_some(())
        })
        .await;
    };
    wait_for_usage("0").await;
    for round in ["a", "b"] {
        let secrets =
            (0..40).map(|number| json!({"metadata": {"name": format!("{round}{number}")}})).collect();
        let responses = create_all(&clients, SECRETS, secrets).await;
        let (created, rejected) = outcomes(&responses, "/metadata/name", "exceeded quota: limits");
        assert_eq!((created.len(), rejected), (20, 20));
        wait_for_usage("20").await;
        let stored = clients[0].get(SECRETS).await.expect(200);
        assert_eq!(stored["items"].as_array().map(Vec::len), Some(20));
        for (number, name) in created.iter().enumerate() {
            clients[number % 2].delete(&format!("{SECRETS}/{}", name.trim_matches('"'))).await.expect(200);
        }
        wait_for_usage("0").await;
    }
}

/// The sorted addresses in the Endpoints, and those in the EndpointSlice.
async fn addresses(client: &Client) -> (Vec<String>, Vec<String>) {
    let texts = |list: Vec<Value>| -> Vec<String> {
        list.iter().filter_map(|ip| ip.as_str().map(str::to_owned)).collect()
    };
    let endpoints = client.get(ENDPOINTS).await.json();
    let subsets = endpoints["subsets"].as_array().cloned().unwrap_or_default();
    let of_subset = |subset: &Value| subset["addresses"].as_array().cloned().unwrap_or_default();
    let in_endpoints = subsets.iter().flat_map(of_subset).map(|address| address["ip"].clone()).collect();
    let slice = client.get(SLICE).await.json();
    let in_slice = slice["endpoints"].as_array().cloned().unwrap_or_default();
    let in_slice = in_slice.iter().map(|endpoint| endpoint["addresses"][0].clone()).collect();
    let mut in_endpoints = texts(in_endpoints);
    in_endpoints.sort();
    (in_endpoints, texts(in_slice))
}

#[tokio::test(flavor = "multi_thread")]
async fn endpoints_of_the_api_list_the_running_servers() {
    let both = ["192.0.2.1", "192.0.2.2"];
    let options = both.map(|address| options().flag(&format!("--advertise-address={address}")));
    let Some(mut cluster) = Cluster::start_each(options.into(), 1).await else { return };
    let admin = cluster.server(0).admin();
    let wait_for = async |client: &Client, expected: &[&str], limit: Duration| {
        let begin = Instant::now();
        loop {
            let (in_endpoints, in_slice) = addresses(client).await;
            // The ports of the test differ, and a slice has the endpoints of one port.
            if in_endpoints == expected && in_slice.first().map(String::as_str) == expected.first().copied() {
                return;
            }
            assert!(begin.elapsed() < limit, "{expected:?} within {limit:?}: {in_endpoints:?} {in_slice:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    wait_for(&admin, &both, Duration::from_secs(10)).await;
    cluster.server_mut(1).kill();
    wait_for(&admin, &both[..1], Duration::from_secs(25)).await;
    cluster.launch(1).await;
    wait_for(&admin, &both, Duration::from_secs(10)).await;
    // The end of a server in order removes it at once.
    cluster.server_mut(0).stop().await;
    wait_for(&cluster.server(1).admin(), &both[1..], Duration::from_secs(5)).await;
    cluster.server_mut(1).relaunch_with_further("--endpoint-reconciler-type=none").await;
    cluster.launch(0).await;
    wait_for(&cluster.server(0).admin(), &both[..1], Duration::from_secs(10)).await;
}
