//! Addresses and node ports of Services, over HTTP.

use apimachinery::names::Preset;
use futures_util::future::join_all;
use serde_json::{Value, json};

use super::Server;
use verbs::addresses::ServiceRange;

const SERVICES: &str = "/api/v1/namespaces/a/services";

fn body(name: &str, mut spec: Value) -> Value {
    spec["ports"] = json!([{"port": 80}]);
    json!({"metadata": {"name": name}, "spec": spec})
}

/// The path of the IPAddress objects.
fn addresses_path(server: &Server) -> String {
    format!("/apis/{}/v1/ipaddresses", server.api_state.names.group("networking"))
}

async fn dual_stack(preset: Preset) -> Server {
    Server::start_with_ranges(preset, &ServiceRange::parse_list("10.0.0.0/24,fd00::/112").unwrap()).await
}

#[tokio::test]
async fn change_of_type_releases_and_allocates() {
    let server = dual_stack(Preset::Svc).await;
    let created = server.post(SERVICES, body("s", json!({"type": "NodePort"}))).await.json();
    let (address, port) =
        (created["spec"]["clusterIP"].clone(), created["spec"]["ports"][0]["nodePort"].clone());
    assert!(port.as_u64().is_some_and(|port| (30_000..30_100).contains(&port)), "{created}");
    let record = server.get(&format!("{}/{}", addresses_path(&server), address.as_str().unwrap())).await;
    assert_eq!(
        record.json()["spec"]["parentRef"],
        json!({"resource": "services", "namespace": "a", "name": "s"})
    );
    let url = format!("{SERVICES}/s");
    let clustered = server.put(&url, body("s", json!({"type": "ClusterIP"}))).await.json();
    assert_eq!(clustered["spec"]["clusterIP"], address);
    assert!(clustered["spec"]["ports"][0].get("nodePort").is_none(), "{clustered}");
    let external =
        server.put(&url, body("s", json!({"type": "ExternalName", "externalName": "x.test"}))).await.json();
    assert!(external["spec"].get("clusterIP").is_none(), "{external}");
    let mut other = body("other", json!({"type": "NodePort", "clusterIP": address}));
    other["spec"]["ports"][0]["nodePort"] = port;
    assert_eq!(server.post(SERVICES, other).await.code, 201, "both values are free again");
}

#[tokio::test]
async fn writes_of_ipaddress_objects_are_admitted() {
    let server = dual_stack(Preset::Svc).await;
    let service = |name: &str, address: &str| body(name, json!({"clusterIP": address}));
    assert_eq!(server.post(SERVICES, service("one", "10.0.0.9")).await.code, 201);
    let record = format!("{}/10.0.0.9", addresses_path(&server));
    let manager = &server.get(&record).await.json()["metadata"]["managedFields"][0]["manager"];
    assert_eq!(manager, "apid");
    let rule = json!({"apiGroups": ["networking.example.test"], "apiVersions": ["v1"],
        "operations": ["CREATE", "DELETE"], "resources": ["ipaddresses"]});
    let names = "(request.operation == 'DELETE' ? oldObject : object).metadata.name";
    let expression = format!("request.userInfo.username == 'system:apiserver' && {names} == '10.0.0.7'");
    let policy = json!({"metadata": {"name": "p"}, "spec": {"matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": expression, "message": "one"}]}});
    let binding =
        json!({"metadata": {"name": "p"}, "spec": {"policyName": "p", "validationActions": ["Deny"]}});
    for (path, object) in
        [("validatingadmissionpolicies", policy), ("validatingadmissionpolicybindings", binding)]
    {
        let created =
            server.post(&format!("/apis/admissionregistration.example.test/v1/{path}"), object).await;
        assert_eq!(created.code, 201);
    }
    assert_eq!(server.post(SERVICES, service("seven", "10.0.0.7")).await.code, 201);
    for address in ["10.0.0.8", "10.0.0.9"] {
        // The object of 10.0.0.9 is deleted first: its Service is gone.
        server.delete(&format!("{SERVICES}/one"), json!({})).await;
        let rejected = server.post(SERVICES, service("other", address)).await;
        assert_eq!(rejected.code, 500);
        let message = rejected.json()["message"].as_str().unwrap_or_default().to_owned();
        assert!(message.contains("failed to allocate a serviceIP: ") && message.contains("one"), "{message}");
        assert_eq!(server.get(&format!("{SERVICES}/other")).await.code, 404);
    }
    assert_eq!(server.get(&record).await.json()["spec"]["parentRef"]["name"], "one");
    server.delete(&format!("{SERVICES}/seven"), json!({})).await;
    assert_eq!(server.post(SERVICES, service("other", "10.0.0.7")).await.code, 201);
}

#[tokio::test]
async fn second_family_is_added_and_released() {
    for preset in [Preset::Svc, Preset::Kubernetes] {
        let server = dual_stack(preset).await;
        let url = format!("{SERVICES}/s");
        let single = server.post(SERVICES, body("s", json!({}))).await.json();
        let first = single["spec"]["clusterIPs"][0].clone();
        let mut dual =
            server.put(&url, body("s", json!({"ipFamilyPolicy": "RequireDualStack"}))).await.json();
        assert_eq!(dual["spec"]["ipFamilies"], json!(["IPv4", "IPv6"]));
        let second = dual["spec"]["clusterIPs"][1].clone();
        assert!(second.as_str().is_some_and(|address| address.starts_with("fd00::")), "{dual}");
        assert_eq!(dual["spec"]["clusterIPs"][0], first);
        dual["spec"]["ipFamilyPolicy"] = json!("SingleStack");
        let again = server.put(&url, dual).await.json();
        assert_eq!(again["spec"]["clusterIPs"], json!([first]), "{again}");
        let reused = server.post(SERVICES, body("six", json!({"clusterIP": second}))).await.json();
        assert_eq!(reused["spec"]["ipFamilies"], json!(["IPv6"]));
    }
}

#[tokio::test]
async fn health_check_port_is_allocated_for_local_load_balancers() {
    let server = Server::start().await;
    let local = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local"});
    let created = server.post(SERVICES, body("s", local)).await.json();
    let (check, port) = (&created["spec"]["healthCheckNodePort"], &created["spec"]["ports"][0]["nodePort"]);
    assert!(check.is_u64() && port.is_u64() && check != port, "{created}");
}

#[tokio::test]
async fn create_of_an_existing_service_writes_nothing() {
    let server = Server::start().await;
    assert_eq!(server.post(SERVICES, body("s", json!({}))).await.code, 201);
    let revision = server.api_state.store.revision();
    for _ in 0..3 {
        let reply = server.post(SERVICES, body("s", json!({"type": "NodePort"}))).await;
        assert_eq!((reply.code, reply.json()["reason"].as_str()), (409, Some("AlreadyExists")));
    }
    assert_eq!(server.api_state.store.revision(), revision);
}

#[tokio::test]
async fn concurrent_clients_get_different_addresses_until_the_range_is_full() {
    let server = Server::start().await;
    let clients = (0..32).map(async |client| {
        let mut addresses = Vec::new();
        for i in 0..10 {
            let reply = server.post(SERVICES, body(&format!("s{client}-{i}"), json!({}))).await;
            let text = reply.json();
            match reply.code {
                201 => addresses.push(text["spec"]["clusterIP"].as_str().unwrap().to_owned()),
                _ => assert_eq!(
                    text["message"],
                    "Internal error occurred: failed to allocate a serviceIP: range is full"
                ),
            }
        }
        addresses
    });
    let mut all: Vec<String> = join_all(clients).await.into_iter().flatten().collect();
    let count = all.len();
    all.sort();
    all.dedup();
    assert_eq!((all.len(), count), (253, 253));
}
