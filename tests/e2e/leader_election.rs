//! Loops that must run once, with two apids on one etcd: start at the same moment, death and orderly end of the leader.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tests::harness::{Client, Cluster, ControlPlane, Options, eventually};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
const NAMESPACES: &str = "/api/v1/namespaces";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Collections with objects that a new cluster has from its start.
const DEFAULTS: [&str; 10] = [
    NAMESPACES,
    "/api/v1/services",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "/apis/rbac.authorization.k8s.io/v1/roles",
    "/apis/rbac.authorization.k8s.io/v1/rolebindings",
    "/apis/scheduling.k8s.io/v1/priorityclasses",
    "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas",
    "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations",
    "/apis/apiregistration.k8s.io/v1/apiservices",
];

/// Returns namespace, name, and the parts of each object that do not depend on its writer.
async fn defaults(client: &Client) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for path in DEFAULTS {
        let list = client.get(path).await.expect(200);
        for item in list["items"].as_array().expect("items") {
            let metadata = &item["metadata"];
            let key = format!("{path} {}/{}", metadata["namespace"], metadata["name"]);
            let parts = ["rules", "roleRef", "subjects", "value"].map(|part| item[part].clone());
            let labels = [&metadata["labels"], &metadata["annotations"]];
            all.insert(key, json!([parts, labels]));
        }
    }
    all
}

async fn leads(plane: &ControlPlane) -> bool {
    let metrics = plane.admin().get("/metrics").await.text();
    metrics.contains("leader_election_master_status{name=\"apid-controllers\"} 1")
}

/// Returns the number of the leader.
async fn leader(cluster: &Cluster) -> usize {
    eventually("one apid leads", || async {
        let mut leaders = Vec::new();
        for number in 0..cluster.size() {
            if cluster.server(number).is_running() && leads(cluster.server(number)).await {
                leaders.push(number);
            }
        }
        assert!(leaders.len() <= 1, "{leaders:?} lead at the same time");
        leaders.pop()
    })
    .await
}

async fn holder(client: &Client) -> String {
    let lease = client.get(&format!("{LEASES}/apid-controllers")).await.expect(200);
    lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned()
}

/// Deletes a namespace with an object, and waits until it is gone.
async fn delete_namespace(client: &Client, name: &str) {
    client.post(NAMESPACES, &json!({"metadata": {"name": name}})).await.expect(201);
    let map = json!({"metadata": {"name": "content"}});
    client.post(&format!("{NAMESPACES}/{name}/configmaps"), &map).await.expect(201);
    client.delete(&format!("{NAMESPACES}/{name}")).await.expect(200);
    client.wait_until_deleted(&format!("{NAMESPACES}/{name}")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn apids_that_start_at_the_same_moment_make_one_set_of_default_objects() {
    let Some(cluster) = Cluster::start(2, 1).await else { return };
    let single = ControlPlane::start(Options::kubernetes()).await;
    let first = leader(&cluster).await;
    for number in 0..2 {
        let admin = cluster.server(number).admin();
        eventually("the default objects of an apid are those of a single one", || async {
            // The rules of aggregated roles change after their creation.
            let expected = defaults(&single.admin()).await;
            let is_complete =
                expected.keys().any(|key| key.contains("clusterroles") && key.contains("\"view\""));
            (is_complete && defaults(&admin).await == expected).then_some(())
        })
        .await;
        let log = cluster.server(number).log();
        let problems: Vec<&str> = log
            .lines()
            .filter(|line| line.contains("WARN") || line.contains("ERROR"))
            // Readiness fails during the start.
            .filter(|line| !line.contains("serving::"))
            .filter(|line| {
                line.contains("controller") || line.contains("start object") || line.contains("writes")
            })
            .collect();
        assert!(problems.is_empty(), "apid {number}: {problems:#?}");
    }
    let admin = cluster.server(1 - first).admin();
    let leases = admin.get(LEASES).await.expect(200);
    let identities: Vec<&Value> = leases["items"]
        .as_array()
        .expect("items")
        .iter()
        .filter(|lease| lease["metadata"]["labels"]["apiserver.kubernetes.io/identity"] == "kube-apiserver")
        .collect();
    assert_eq!(identities.len(), 2, "{leases}");
    for lease in identities {
        let name = lease["metadata"]["name"].as_str().expect("a name");
        let holder = lease["spec"]["holderIdentity"].as_str().expect("a holder");
        assert!(name.starts_with("apiserver-") && name.len() == 36, "{name}");
        assert!(holder.starts_with(&format!("{name}_")) && holder.len() == name.len() + 37, "{holder}");
        assert_eq!(lease["spec"]["leaseDurationSeconds"], 3600);
        assert!(lease["metadata"]["labels"]["kubernetes.io/hostname"].is_string(), "{lease}");
    }
    assert_eq!(
        single.admin().get(LEASES).await.expect(200)["items"],
        json!([]),
        "an embedded store has no Lease"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn definition_created_at_follower_is_served_by_all_apids() {
    let Some(cluster) = Cluster::start(2, 1).await else { return };
    let follower = 1 - leader(&cluster).await;
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let definition = json!({
        "metadata": {"name": "teas.shop.example.com"},
        "spec": {
            "group": "shop.example.com", "scope": "Namespaced",
            "names": {"plural": "teas", "singular": "tea", "kind": "Tea", "listKind": "TeaList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    });
    let admin = cluster.server(follower).admin();
    admin.post(DEFINITIONS, &definition).await.expect(201);
    let path = format!("{DEFINITIONS}/teas.shop.example.com");
    admin.wait_until_established(&path).await;
    let teas = "/apis/shop.example.com/v1/namespaces/default/teas";
    for number in 0..2 {
        let tea = json!({
            "apiVersion": "shop.example.com/v1", "kind": "Tea", "metadata": {"name": format!("tea-{number}")}
        });
        cluster.server(number).admin().post(teas, &tea).await.expect(201);
    }
    admin.delete(&path).await.expect(200);
    for number in 0..2 {
        let client = cluster.server(number).admin();
        client.wait_until_deleted(&path).await;
        client.wait_until_deleted(teas).await;
    }
}

/// Each authd sees the Secret.
#[tokio::test(flavor = "multi_thread")]
async fn token_secret_is_filled_once() {
    let Some(cluster) = Cluster::start(2, 1).await else { return };
    let leader = leader(&cluster).await;
    let admin = cluster.server(1 - leader).admin();
    let secrets = "/api/v1/namespaces/default/secrets";
    let key = "kubernetes.io/service-account.name";
    for number in 0..10 {
        let secret = json!({
            "metadata": {"name": format!("token-{number}"), "annotations": {key: "default"}},
            "type": "kubernetes.io/service-account-token",
        });
        eventually("the service account exists", || async {
            (admin.post(secrets, &secret).await.status == 201).then_some(())
        })
        .await;
    }
    for number in 0..10 {
        let path = format!("{secrets}/token-{number}");
        let token = async |client: &Client| client.get(&path).await.expect(200)["data"]["token"].clone();
        let filled = eventually("the Secret has a token", || async {
            Some(token(&admin).await).filter(Value::is_string)
        })
        .await;
        assert_eq!(token(&cluster.server(leader).admin()).await, filled, "the token stays");
    }
    let first = admin.get(&format!("{secrets}/token-0")).await.expect(200)["data"]["token"].clone();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(admin.get(&format!("{secrets}/token-0")).await.expect(200)["data"]["token"], first);
}

#[tokio::test(flavor = "multi_thread")]
async fn follower_takes_over_after_death_and_orderly_end_of_the_leader() {
    let Some(mut cluster) = Cluster::start(2, 1).await else { return };
    let first = leader(&cluster).await;
    let follower = 1 - first;
    let admin = cluster.server(follower).admin();
    let before = holder(&admin).await;
    delete_namespace(&admin, "with-leader").await;

    cluster.server_mut(first).kill();
    let begin = Instant::now();
    delete_namespace(&admin, "after-death").await;
    let elapsed = begin.elapsed();
    assert!(elapsed < Duration::from_secs(17), "takeover after a death: {elapsed:?}");
    assert_ne!(holder(&admin).await, before);
    println!("takeover after a death: {elapsed:?}");

    cluster.launch(first).await;
    let admin = cluster.server(first).admin();
    assert!(leads(cluster.server(follower)).await && !leads(cluster.server(first)).await);
    let before = holder(&admin).await;
    cluster.server(follower).signal(Signal::TERM);
    let begin = Instant::now();
    eventually("the Lease has another holder", || async {
        let now = holder(&admin).await;
        (!now.is_empty() && now != before).then_some(())
    })
    .await;
    let elapsed = begin.elapsed();
    assert!(elapsed < Duration::from_secs(3), "takeover after an orderly end: {elapsed:?}");
    println!("takeover after an orderly end: {elapsed:?}");
    delete_namespace(&admin, "after-end").await;
    cluster.server_mut(follower).stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn former_leader_and_single_apid_take_a_deleted_or_edited_lease() {
    let Some(cluster) = Cluster::start(2, 1).await else { return };
    let first = leader(&cluster).await;
    let admin = cluster.server(1 - first).admin();
    let path = format!("{LEASES}/apid-controllers");
    let before = holder(&admin).await;
    admin.delete(&path).await.expect(200);
    eventually("the leader creates the Lease again", || async {
        let answer = admin.get(&path).await;
        (answer.status == 200 && answer.json()["spec"]["holderIdentity"] == json!(before)).then_some(())
    })
    .await;
    assert!(leads(cluster.server(first)).await);
    // Another holder, who does not exist: the loops end, and an apid leads when the Lease expires.
    let patch = json!({"spec": {"holderIdentity": "somebody"}});
    admin.patch(&path, "application/merge-patch+json", &patch).await.expect(200);
    eventually("no apid leads", || async { (!leads(cluster.server(first)).await).then_some(()) }).await;
    assert_eq!(holder(&admin).await, "somebody");
    let begin = Instant::now();
    leader(&cluster).await;
    let elapsed = begin.elapsed();
    assert!(elapsed > Duration::from_secs(10) && elapsed < Duration::from_secs(17), "{elapsed:?}");
    delete_namespace(&admin, "after-edit").await;
}
