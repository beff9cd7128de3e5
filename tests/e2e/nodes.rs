//! Node authorizer (A-NODE): reads of objects that pods reference, and their end with the pods.
//!
//! `authd/src/authz/node` tests the decisions, `apid/admission` the plugin NodeRestriction.
//!
//! `ROUNDS` is the number of pod changes in the concurrency test below (default 400). The test prints its
//! seed; `SEED` repeats a run.

use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use tests::harness::{Client, ControlPlane, Options, request_body};

const GROUP: &str = "system:nodes";
const MERGE: &str = "application/merge-patch+json";
const TEAM: &str = "/api/v1/namespaces/team";

fn options() -> Options {
    Options::kubernetes().flag("--enable-admission-plugins=NodeRestriction")
}

fn agent(plane: &ControlPlane, node: &str) -> Client {
    plane.certificate(&format!("system:node:{node}"), &[GROUP])
}

async fn namespace(admin: &Client, name: &str) {
    admin.post("/api/v1/namespaces", &json!({"metadata": {"name": name}})).await.expect(201);
    let account = json!({"metadata": {"name": "robot"}});
    admin.post(&format!("/api/v1/namespaces/{name}/serviceaccounts"), &account).await.expect(201);
}

/// A pod that runs as `robot` and has no termination grace period.
fn pod(name: &str, node: &str, volumes: Value) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "nodeName": node, "serviceAccountName": "robot", "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": false, "volumes": volumes,
            "containers": [{"name": "c", "image": "registry.example/c:1"}],
        },
    })
}

async fn check(client: &Client, rows: &[(&str, u16)]) {
    for (path, status) in rows {
        let answer = client.get(path).await;
        assert_eq!(answer.status, *status, "GET {path}: {}", answer.text());
    }
}

async fn expect_status(client: &Client, method: &str, path: &str, body: &Value, status: u16) -> Value {
    let kind = if method == "PATCH" { MERGE } else { "application/json" };
    let answer = client.request(method, path, &[("content-type", kind)], &request_body(body)).await;
    assert_eq!(answer.status, status, "{method} {path}: {}", answer.text());
    answer.json()
}

/// A node may read the objects that its pods reference, from the creation of the pod to its deletion.
#[tokio::test]
async fn node_reads_objects_of_its_pods_until_pod_deletion() {
    let plane = ControlPlane::start(options()).await;
    let admin = plane.admin();
    namespace(&admin, "team").await;
    for name in ["used", "other"] {
        let named = json!({"metadata": {"name": name}});
        admin.post(&format!("{TEAM}/secrets"), &named).await.expect(201);
        admin.post(&format!("{TEAM}/configmaps"), &named).await.expect(201);
        let spec = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": name, "resources": {"requests": {"storage": "1Gi"}}});
        admin
            .post(
                &format!("{TEAM}/persistentvolumeclaims"),
                &json!({"metadata": {"name": name}, "spec": spec}),
            )
            .await
            .expect(201);
        let spec = json!({
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "claimRef": {"namespace": "team", "name": name},
            "csi": {"driver": "d.example.com", "volumeHandle": name, "nodePublishSecretRef": {"namespace": "default", "name": name}},
        });
        admin
            .post("/api/v1/persistentvolumes", &json!({"metadata": {"name": name}, "spec": spec}))
            .await
            .expect(201);
        admin.post("/api/v1/namespaces/default/secrets", &named).await.expect(201);
    }
    let reads = |name: &str| {
        [
            format!("{TEAM}/secrets/{name}"),
            format!("{TEAM}/secrets?fieldSelector=metadata.name={name}"),
            format!("{TEAM}/configmaps/{name}"),
            format!("{TEAM}/persistentvolumeclaims/{name}"),
            format!("/api/v1/persistentvolumes/{name}"),
            format!("/api/v1/namespaces/default/secrets/{name}"),
        ]
    };
    let (n1, n2) = (agent(&plane, "n1"), agent(&plane, "n2"));
    let check_reads = |client: Client, name: &'static str, status: u16| async move {
        let reads = reads(name);
        check(&client, &reads.iter().map(|path| (path.as_str(), status)).collect::<Vec<_>>()).await;
    };
    check_reads(n1.clone(), "used", 403).await;
    let volumes = json!([
        {"name": "s", "secret": {"secretName": "used"}}, {"name": "c", "configMap": {"name": "used"}},
        {"name": "d", "persistentVolumeClaim": {"claimName": "used"}},
    ]);
    for _ in 0..3 {
        let created = admin.post(&format!("{TEAM}/pods"), &pod("p", "n1", volumes.clone())).await.expect(201);
        check_reads(n1.clone(), "used", 200).await;
        check_reads(n1.clone(), "other", 403).await;
        check_reads(n2.clone(), "used", 403).await;
        check(&n1, &[(&format!("{TEAM}/pods/p"), 200)]).await;
        check(&n2, &[(&format!("{TEAM}/pods/p"), 403)]).await;
        let bound =
            json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": created["metadata"]["uid"]});
        let request = json!({"spec": {"boundObjectRef": bound, "audiences": ["unnamed"]}});
        let token = format!("{TEAM}/serviceaccounts/robot/token");
        expect_status(&n1, "POST", &token, &request, 403).await;
        admin.delete(&format!("{TEAM}/pods/p")).await.expect(200);
        check_reads(n1.clone(), "used", 403).await;
    }
    // Binding a pending pod to the node grants the reads as well.
    admin.post(&format!("{TEAM}/pods"), &pod("late", "", volumes)).await.expect(201);
    check_reads(n1.clone(), "used", 403).await;
    let binding = json!({"metadata": {"name": "late"}, "target": {"kind": "Node", "name": "n1"}});
    admin.post(&format!("{TEAM}/pods/late/binding"), &binding).await.expect(201);
    check_reads(n1.clone(), "used", 200).await;
    // Deletion of a PersistentVolume revokes the read of its Secret.
    let finalizers = json!({"metadata": {"finalizers": null}});
    admin.patch("/api/v1/persistentvolumes/used", MERGE, &finalizers).await.expect(200);
    admin.delete("/api/v1/persistentvolumes/used").await.expect(200);
    check(&n1, &[("/api/v1/namespaces/default/secrets/used", 403), (&format!("{TEAM}/secrets/used"), 200)])
        .await;
    // VolumeAttachments belong to the node in their field `nodeName`.
    for (name, node) in [("mine", "n1"), ("theirs", "n2")] {
        let spec = json!({"attacher": "d.example.com", "nodeName": node, "source": {"persistentVolumeName": "other"}});
        let attachments = "/apis/storage.k8s.io/v1/volumeattachments";
        admin.post(attachments, &json!({"metadata": {"name": name}, "spec": spec})).await.expect(201);
        check(&n1, &[(&format!("{attachments}/{name}"), if node == "n1" { 200 } else { 403 })]).await;
    }
}

/// A mirror pod that a node creates grants no reads, even if no admission plugin rejects it.
#[tokio::test]
async fn mirror_pod_grants_node_no_reads() {
    let plane =
        ControlPlane::start(Options::kubernetes().flag("--disable-admission-plugins=ServiceAccount")).await;
    let admin = plane.admin();
    namespace(&admin, "team").await;
    admin.post(&format!("{TEAM}/configmaps"), &json!({"metadata": {"name": "c"}})).await.expect(201);
    let n1 = agent(&plane, "n1");
    let mut mirror = pod("static", "n1", json!([{"name": "c", "configMap": {"name": "c"}}]));
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "h"});
    expect_status(&n1, "POST", &format!("{TEAM}/pods"), &mirror, 201).await;
    check(&n1, &[(&format!("{TEAM}/configmaps/c"), 403), (&format!("{TEAM}/pods/static"), 200)]).await;
}

/// A watch of a Secret ends when the last pod that references the Secret is deleted.
#[tokio::test]
async fn secret_watch_of_node_ends_with_last_referencing_pod() {
    let plane = ControlPlane::start(options()).await;
    let admin = plane.admin();
    namespace(&admin, "team").await;
    let secrets = format!("{TEAM}/secrets");
    admin.post(&secrets, &json!({"metadata": {"name": "s"}})).await.expect(201);
    let volumes = json!([{"name": "s", "secret": {"secretName": "s"}}]);
    for name in ["p", "q"] {
        admin.post(&format!("{TEAM}/pods"), &pod(name, "n1", volumes.clone())).await.expect(201);
    }
    let n1 = agent(&plane, "n1");
    let mut events = n1.watch(&format!("{secrets}?watch=1&fieldSelector=metadata.name=s")).await;
    assert_eq!(events.next().await.expect("the Secret")["type"], "ADDED");
    let label = |value: &str| json!({"metadata": {"labels": {"seen": value}}});
    admin.delete(&format!("{TEAM}/pods/p")).await.expect(200);
    admin.patch(&format!("{secrets}/s"), MERGE, &label("while-q-is-there")).await.expect(200);
    let event = events.next().await.expect("the pod q still references the Secret");
    assert_eq!(event["object"]["metadata"]["labels"]["seen"], "while-q-is-there");
    admin.delete(&format!("{TEAM}/pods/q")).await.expect(200);
    admin.patch(&format!("{secrets}/s"), MERGE, &label("after")).await.expect(200);
    while let Some(event) = events.next().await {
        assert_ne!(event["type"], "MODIFIED", "no event after the pod is gone: {event}");
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// After each acknowledged write of a pod, the authorizer decides by the current pods.
///
/// Pods are created and deleted on several nodes concurrently.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_authorization_is_never_stale_after_pod_write() {
    let seed = number("SEED", rand::random());
    println!("SEED={seed}");
    let plane = Arc::new(ControlPlane::start(options()).await);
    let rounds = number("ROUNDS", 400) / 4;
    let workers = (0..4).map(|worker| {
        let plane = Arc::clone(&plane);
        tokio::spawn(race(plane, worker, rounds, SmallRng::seed_from_u64(seed.wrapping_add(worker))))
    });
    for worker in futures_util::future::join_all(workers).await {
        worker.expect("no stale decision");
    }
}

/// Runs one worker: a node with its own namespace.
async fn race(plane: Arc<ControlPlane>, worker: u64, rounds: u64, mut random: SmallRng) {
    let name = format!("w{worker}");
    let admin = plane.admin();
    namespace(&admin, &name).await;
    let namespace_path = format!("/api/v1/namespaces/{name}");
    admin.post(&format!("{namespace_path}/secrets"), &json!({"metadata": {"name": "s"}})).await.expect(201);
    let mut admin = admin.connect().await.expect("a connection");
    let mut agent = agent(&plane, &name).connect().await.expect("a connection");
    let volumes = json!([{"name": "s", "secret": {"secretName": "s"}}]);
    // Existence of the three pods that reference the Secret.
    let mut present = [false; 3];
    for round in 0..rounds {
        let i = random.random_range(0..present.len());
        let (method, path, body, done) = if present[i] {
            ("DELETE", format!("{namespace_path}/pods/p{i}"), String::new(), 200)
        } else {
            (
                "POST",
                format!("{namespace_path}/pods"),
                pod(&format!("p{i}"), &name, volumes.clone()).to_string(),
                201,
            )
        };
        let answer = admin.request(method, &path, body.as_bytes()).await.expect("a response");
        assert_eq!(answer.status, done, "{method} {path}: {}", answer.text());
        present[i] = !present[i];
        let expected = if present.contains(&true) { 200 } else { 403 };
        for _ in 0..2 {
            let answer =
                agent.request("GET", &format!("{namespace_path}/secrets/s"), b"").await.expect("a response");
            assert_eq!(
                answer.status,
                expected,
                "worker {worker}, round {round}, pods {present:?}: {}",
                answer.text()
            );
        }
    }
}
