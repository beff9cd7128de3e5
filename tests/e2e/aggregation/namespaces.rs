//! Deletion of namespaces, and of objects whose owners are at another server.

use std::time::Duration;

use backends::apiserver::{ApiServerOptions, DeleteCollection, SeenRequest};
use serde_json::{Value, json};
use tests::harness::{Options, eventually};

use super::{FLAVORS, Flavors, SERVICES, flavor};

const NAMESPACES: &str = "/api/v1/namespaces";
const MERGE: &str = "application/merge-patch+json";
const NAME: &str = "v1.flavors.example.com";

/// apid with a server, and the namespace `gone`.
struct Namespace {
    flavors: Flavors,
}

impl Namespace {
    async fn start() -> Self {
        Namespace::start_with(ApiServerOptions::default()).await
    }

    async fn start_with(server: ApiServerOptions) -> Self {
        let flavors = Flavors::start_with(Options::kubernetes(), server).await;
        let namespace = json!({"metadata": {"name": "gone"}});
        flavors.plane().admin().post(NAMESPACES, &namespace).await.expect(201);
        Namespace { flavors }
    }

    async fn create(&self, object: &Value) {
        let path = "/apis/flavors.example.com/v1/namespaces/gone/flavors";
        self.flavors.plane().admin().post(path, object).await.expect(201);
    }

    async fn delete(&self) {
        self.flavors.plane().admin().delete(&format!("{NAMESPACES}/gone")).await.expect(200);
    }

    /// Waits until a condition of the namespace is true, and returns its message.
    async fn condition(&self, kind: &str) -> String {
        eventually(&format!("the condition {kind}"), || async {
            let object = self.flavors.get(&format!("{NAMESPACES}/gone")).await.json();
            let conditions = object["status"]["conditions"].as_array()?.clone();
            let found =
                conditions.into_iter().find(|found| found["type"] == kind && found["status"] == "True")?;
            Some(found["message"].as_str()?.to_owned())
        })
        .await
    }

    async fn wait_until_gone(&self) {
        eventually("the namespace is gone", || async {
            (self.flavors.get(&format!("{NAMESPACES}/gone")).await.status == 404).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn deletion_of_namespace_deletes_objects_of_other_servers() {
    let namespace = Namespace::start().await;
    for name in ["a", "b", "c"] {
        namespace.create(&flavor(name, "sweet")).await;
    }
    let admin = namespace.flavors.plane().admin();
    admin.post(FLAVORS, &flavor("other", "sour")).await.expect(201);
    let server = namespace.flavors.server.as_ref().unwrap();
    server.take_seen();
    namespace.delete().await;
    namespace.wait_until_gone().await;
    assert_eq!(namespace.flavors.storage.names("gone"), [""; 0]);
    assert_eq!(namespace.flavors.storage.names("default"), ["other"]);
    let is_delete = |request: &SeenRequest| request.method == "DELETE";
    let deletes: Vec<_> = server.take_seen().into_iter().filter(is_delete).collect();
    assert_eq!(deletes.len(), 3, "{deletes:?}");
    for delete in deletes {
        assert_eq!(delete.header("x-remote-user"), ["system:kube-controller-manager"]);
        assert_eq!(delete.client.as_deref(), Some("front-proxy-client"));
        assert!(delete.body.contains("\"propagationPolicy\":\"Background\""), "{}", delete.body);
    }
}

/// Returns the kind of each request for objects of the namespace, in the order of arrival.
fn steps(seen: Vec<SeenRequest>) -> Vec<&'static str> {
    let in_namespace = seen.into_iter().filter(|request| request.path.contains("/namespaces/gone/flavors"));
    let step = |request: SeenRequest| match (request.method.as_str(), request.path.ends_with("/flavors")) {
        ("GET", true) if request.query.contains("continue=") => "next page",
        ("GET", true) => "list",
        ("DELETE", true) => "delete all",
        ("DELETE", false) => "delete one",
        _ => "other",
    };
    in_namespace.map(step).collect()
}

#[tokio::test]
async fn collection_is_deleted_with_one_request_or_object_by_object() {
    let served =
        ApiServerOptions { delete_collection: DeleteCollection::Served, ..ApiServerOptions::default() };
    let announced = ApiServerOptions { delete_collection: DeleteCollection::Announced, ..served.clone() };
    let paged = ApiServerOptions { page: Some(2), ..ApiServerOptions::default() };
    let one_by_one = ["delete one"; 5];
    for (server, expected) in [
        // A list of five objects fails, so the namespace is deleted only if the deletion precedes each list.
        (ApiServerOptions { max_listed: Some(4), ..served }, vec!["delete all", "list"]),
        (announced, [&["delete all", "list"], one_by_one.as_slice(), &["list"]].concat()),
        (paged, [&["list", "next page", "next page"], one_by_one.as_slice(), &["list"]].concat()),
    ] {
        let namespace = Namespace::start_with(server).await;
        for name in ["a", "b", "c", "d", "e"] {
            namespace.create(&flavor(name, "sweet")).await;
        }
        let server = namespace.flavors.server.as_ref().unwrap();
        server.take_seen();
        namespace.delete().await;
        namespace.wait_until_gone().await;
        assert_eq!(namespace.flavors.storage.names("gone"), [""; 0]);
        let seen = steps(server.take_seen());
        assert_eq!(seen.get(..expected.len()), Some(expected.as_slice()), "{seen:?}");
    }
}

#[tokio::test]
async fn references_to_one_remote_owner_share_requests() {
    let flavors = Flavors::start(Options::kubernetes()).await;
    let admin = flavors.plane().admin();
    let owner = admin.post(FLAVORS, &flavor("owner", "sweet")).await.expect(201);
    let owner = json!({"apiVersion": "flavors.example.com/v1", "kind": "Flavor", "name": "owner",
        "uid": owner["metadata"]["uid"]});
    let absent = json!({"apiVersion": "flavors.example.com/v1", "kind": "Flavor", "name": "absent",
        "uid": "11111111-1111-4111-8111-111111111111"});
    let server = flavors.server.as_ref().unwrap();
    server.take_seen();
    let maps = "/api/v1/namespaces/default/configmaps";
    for number in 0..20 {
        let map = json!({"metadata": {"name": format!("map-{number}"), "ownerReferences": [owner, absent]}});
        admin.post(maps, &map).await.expect(201);
    }
    for number in 0..20 {
        let path = format!("{maps}/map-{number}");
        eventually("the reference to the absent owner is removed", || async {
            let map = admin.get(&path).await.expect(200);
            let owners = map["metadata"]["ownerReferences"].as_array()?.clone();
            (owners.len() == 1 && owners.first()?["name"] == "owner").then_some(())
        })
        .await;
    }
    let is_lookup = |request: &SeenRequest| request.path.starts_with(&format!("{FLAVORS}/"));
    let lookups = server.take_seen().iter().filter(|request| is_lookup(request)).count();
    assert!((2..=8).contains(&lookups), "{lookups} requests for 40 references to two owners");
}

#[tokio::test]
async fn remaining_objects_of_other_servers_are_in_the_conditions() {
    let namespace = Namespace::start().await;
    let mut held = flavor("held", "sweet");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    namespace.create(&held).await;
    namespace.create(&flavor("free", "sweet")).await;
    namespace.delete().await;
    assert_eq!(
        namespace.condition("NamespaceContentRemaining").await,
        "Some resources are remaining: flavors.flavors.example.com has 1 resource instances"
    );
    assert_eq!(
        namespace.condition("NamespaceFinalizersRemaining").await,
        "Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances"
    );
    assert_eq!(namespace.flavors.storage.names("gone"), ["held"]);
    let path = "/apis/flavors.example.com/v1/namespaces/gone/flavors/held";
    let released = json!({"metadata": {"finalizers": null}});
    namespace.flavors.plane().admin().patch(path, MERGE, &released).await.expect(200);
    namespace.wait_until_gone().await;
}

#[tokio::test]
async fn unavailable_server_blocks_deletion_of_namespace_and_is_named() {
    let mut namespace = Namespace::start().await;
    namespace.create(&flavor("a", "sweet")).await;
    let admin = namespace.flavors.plane().admin();
    let maps = format!("{NAMESPACES}/gone/configmaps");
    admin.post(&maps, &json!({"metadata": {"name": "local"}})).await.expect(201);
    namespace.flavors.server = None;
    admin.get(FLAVORS).await.expect(503);
    namespace.flavors.aggregator.wait_for_reason(NAME, "FailedDiscoveryCheck").await;
    namespace.delete().await;
    assert_eq!(
        namespace.condition("NamespaceDeletionDiscoveryFailure").await,
        "Discovery failed for some groups, 1 failing: unable to retrieve the complete list of server APIs: \
         flavors.example.com/v1: stale GroupVersion discovery: flavors.example.com/v1"
    );
    admin.get(&format!("{maps}/local")).await.expect(404);
    // After a restart, apid has no documents of the server, and must not treat the server as empty.
    namespace.flavors.aggregator.plane.stop().await;
    namespace.flavors.aggregator.plane.launch().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    namespace.flavors.get(&format!("{NAMESPACES}/gone")).await.expect(200);
    assert_eq!(namespace.flavors.storage.names("gone"), ["a"]);
    let certificate = namespace.flavors.certificate.clone();
    namespace.flavors.restart(&certificate, Duration::ZERO).await;
    namespace.wait_until_gone().await;
    assert_eq!(namespace.flavors.storage.names("gone"), [""; 0]);
}

#[tokio::test]
async fn removed_api_service_no_longer_blocks_deletion_of_namespace() {
    let mut namespace = Namespace::start().await;
    namespace.flavors.server = None;
    let admin = namespace.flavors.plane().admin();
    admin.get(FLAVORS).await.expect(503);
    namespace.flavors.aggregator.wait_for_reason(NAME, "FailedDiscoveryCheck").await;
    namespace.delete().await;
    namespace.condition("NamespaceDeletionDiscoveryFailure").await;
    admin.delete(&format!("{SERVICES}/{NAME}")).await.expect(200);
    namespace.wait_until_gone().await;
}

#[tokio::test]
async fn remote_owner_is_gone_only_after_not_found_status() {
    let mut flavors = Flavors::start(Options::kubernetes()).await;
    let admin = flavors.plane().admin();
    let owner = admin.post(FLAVORS, &flavor("owner", "sweet")).await.expect(201);
    let maps = "/api/v1/namespaces/default/configmaps";
    let dependent = |name: &str, uid: &str| {
        let owner =
            json!({"apiVersion": "flavors.example.com/v1", "kind": "Flavor", "name": "owner", "uid": uid});
        json!({"metadata": {"name": name, "ownerReferences": [owner]}})
    };
    let gone = async |name: &str| {
        let path = format!("{maps}/{name}");
        eventually("the dependent is deleted", || async {
            (admin.get(&path).await.status == 404).then_some(())
        })
        .await;
    };
    let uid = owner["metadata"]["uid"].as_str().unwrap();
    let absent = "11111111-1111-4111-8111-111111111111";
    admin.post(maps, &dependent("owned", uid)).await.expect(201);
    admin.post(maps, &dependent("unowned", absent)).await.expect(201);
    gone("unowned").await;

    flavors.server = None;
    admin.get(FLAVORS).await.expect(503);
    flavors.aggregator.wait_for_reason(NAME, "FailedDiscoveryCheck").await;
    admin.post(maps, &dependent("unknown", absent)).await.expect(201);
    tokio::time::sleep(Duration::from_secs(2)).await;
    for name in ["owned", "unknown"] {
        admin.get(&format!("{maps}/{name}")).await.expect(200);
    }
    let certificate = flavors.certificate.clone();
    flavors.restart(&certificate, Duration::ZERO).await;
    flavors.aggregator.wait_for_reason(NAME, "Passed").await;
    gone("unknown").await;
    admin.get(&format!("{maps}/owned")).await.expect(200);
}
