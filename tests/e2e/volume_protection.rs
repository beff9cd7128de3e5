//! Protection of volumes: deletion of claims, volumes and their namespace ends when nothing uses them.

use serde_json::{Value, json};
use tests::harness::{Client, ControlPlane, Options, eventually};

const MERGE: &str = "application/merge-patch+json";
const CLAIMS: &str = "/api/v1/namespaces/team/persistentvolumeclaims";
const VOLUMES: &str = "/api/v1/persistentvolumes";
const PODS: &str = "/api/v1/namespaces/team/pods";

fn claim(name: &str, volume: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": "", "volumeName": volume,
        },
    })
}

fn volume(name: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/srv/v"},
        },
    })
}

/// Asserts that an object is terminating and has a protection finalizer.
async fn assert_protected(client: &Client, path: &str) {
    let object = client.get(path).await.expect(200);
    assert!(object["metadata"]["deletionTimestamp"].is_string(), "{object}");
    assert!(
        object["metadata"]["finalizers"][0].as_str().unwrap_or_default().contains("protection"),
        "{object}"
    );
}

#[tokio::test]
async fn deletion_of_claim_and_volume_ends_after_last_use() {
    let plane = ControlPlane::start(Options::kubernetes()).await;
    let admin = plane.admin();
    admin.post("/api/v1/namespaces", &json!({"metadata": {"name": "team"}})).await.expect(201);
    eventually("the default service account", || async {
        let account = admin.get("/api/v1/namespaces/team/serviceaccounts/default").await;
        (account.status == 200).then_some(())
    })
    .await;
    for name in ["unused", "used"] {
        admin.post(VOLUMES, &volume(name)).await.expect(201);
        admin.post(CLAIMS, &claim(name, name)).await.expect(201);
        let bound = json!({"status": {"phase": "Bound"}});
        admin.patch(&format!("{CLAIMS}/{name}/status"), MERGE, &bound).await.expect(200);
    }
    let pod = json!({
        "metadata": {"name": "p"},
        "spec": {
            "nodeName": "n1", "containers": [{"name": "c", "image": "i"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "used"}}],
        },
    });
    admin.post(PODS, &pod).await.expect(201);

    for name in ["used", "unused"] {
        admin.delete(&format!("{CLAIMS}/{name}")).await.expect(200);
        admin.delete(&format!("{VOLUMES}/{name}")).await.expect(200);
    }
    admin.wait_until_deleted(&format!("{CLAIMS}/unused")).await;
    admin.wait_until_deleted(&format!("{VOLUMES}/unused")).await;
    assert_protected(&admin, &format!("{CLAIMS}/used")).await;
    assert_protected(&admin, &format!("{VOLUMES}/used")).await;

    admin.delete(&format!("{PODS}/p?gracePeriodSeconds=0")).await.expect(200);
    admin.wait_until_deleted(&format!("{CLAIMS}/used")).await;
    admin.wait_until_deleted(&format!("{VOLUMES}/used")).await;

    admin.post(CLAIMS, &claim("last", "")).await.expect(201);
    admin.delete("/api/v1/namespaces/team").await.expect(200);
    admin.wait_until_deleted("/api/v1/namespaces/team").await;
}

/// The finalizers are removed from objects whose deletion began before a restart.
#[tokio::test]
async fn finalizer_of_terminating_claim_is_removed_after_restart() {
    let mut plane = ControlPlane::start(Options::kubernetes()).await;
    let admin = plane.admin();
    admin.post("/api/v1/namespaces", &json!({"metadata": {"name": "team"}})).await.expect(201);
    admin.post(CLAIMS, &claim("c", "")).await.expect(201);
    admin.delete(&format!("{CLAIMS}/c")).await.expect(200);
    plane.kill();
    plane.launch().await;
    plane.admin().wait_until_deleted(&format!("{CLAIMS}/c")).await;
}
