//! Sessions of kubectl with an extension API server and a metrics server.

use serde_json::{Value, json};
use tests::harness::{ControlPlane, Options, eventually};

use super::{Flavors, SERVICES, api_service, flavor};
use crate::e2e::kubectl::{Kubectl, RELEASES, installed};

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_works_with_an_extension_api_server() {
    for release in RELEASES {
        let Some(program) = installed(release) else { continue };
        let flavors = Flavors::start(Options::kubernetes()).await;
        let admin = flavors.plane().admin();
        let port = flavors.address.port();
        let metrics = api_service("metrics.k8s.io", "v1beta1", port, &flavors.certificate.ca);
        admin.post(SERVICES, &metrics).await.expect(201);
        flavors.aggregator.wait_for_reason("v1beta1.metrics.k8s.io", "Passed").await;
        let node = json!({"metadata": {"name": "node-1"},
            "status": {"allocatable": {"cpu": "1", "memory": "1Gi"}, "capacity": {"cpu": "1", "memory": "1Gi"}}});
        admin.post("/api/v1/nodes", &node).await.expect(201);
        // The documents of a server follow its condition, all at once.
        let aggregated = [("accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")];
        eventually("the documents of the server", || async {
            let list = admin.request("GET", "/apis", &aggregated, b"").await.json();
            let named = |item: &&Value| item["metadata"]["name"] == "flavors.example.com";
            let found = list["items"].as_array()?.iter().find(named)?;
            (found["versions"][0]["freshness"] == "Current").then_some(())
        })
        .await;
        let kubectl = Kubectl::new(program, release, flavors.plane(), "admin");
        // The servers run on this runtime, so the session must not block its threads.
        let (flavors, ended) = tokio::task::spawn_blocking(move || {
            let result =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| session(flavors.plane(), &kubectl)));
            (flavors, result)
        })
        .await
        .unwrap();
        drop(flavors);
        assert!(ended.is_ok(), "kubectl {release}");
    }
}

fn session(_plane: &ControlPlane, kubectl: &Kubectl) {
    let resources = kubectl.ok("api-resources --api-group=flavors.example.com", "");
    assert!(resources.contains("flavors") && resources.contains("fl "), "{resources}");
    let explained = kubectl.ok("explain flavors.spec", "");
    assert!(explained.contains("How the flavor tastes."), "{explained}");

    let manifest = flavor("vanilla", "sweet").to_string();
    let applied = kubectl.ok("apply -f -", &manifest);
    assert!(applied.contains("flavor.flavors.example.com/vanilla created"), "{applied}");
    let applied = kubectl.ok("apply -f -", &flavor("vanilla", "bitter").to_string());
    assert!(applied.contains("configured"), "{applied}");
    let table = kubectl.ok("get fl", "");
    assert!(table.contains("TASTE") && table.contains("bitter"), "{table}");
    let taste = kubectl.ok("get flavor vanilla -o jsonpath={.spec.taste}", "");
    assert_eq!(taste, "bitter");
    let raw = kubectl.ok("get --raw /apis/flavors.example.com/v1/namespaces/default/flavors/vanilla", "");
    assert!(raw.contains("\"vanilla\""), "{raw}");
    let shown = kubectl.ok("get apiservice v1.flavors.example.com", "");
    assert!(shown.contains("default/back") && shown.contains("True"), "{shown}");

    let mut watch = kubectl.start("get flavors --watch --no-headers -o name");
    assert_eq!(watch.line(), "flavor.flavors.example.com/vanilla");
    kubectl.ok("apply -f -", &flavor("lemon", "sour").to_string());
    assert_eq!(watch.line(), "flavor.flavors.example.com/lemon");
    drop(watch);
    kubectl.ok("delete flavor vanilla lemon", "");

    let nodes = kubectl.ok("top nodes", "");
    assert!(nodes.contains("node-1") && nodes.contains("250m") && nodes.contains("512Mi"), "{nodes}");
    let pods = kubectl.ok("top pods", "");
    assert!(pods.contains("pod-1") && pods.contains("12m"), "{pods}");
}
