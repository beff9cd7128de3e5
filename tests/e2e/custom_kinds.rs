//! Custom kinds in both presets: definitions, background tasks, and a restart.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tests::harness::{ControlPlane, Options, eventually, program};

const WIDGETS: &str = "/apis/shop.example.com/v1/namespaces/team/widgets";

fn definition() -> Value {
    json!({
        "metadata": {"name": "widgets.shop.example.com"},
        "spec": {"group": "shop.example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"]},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": {
                        "size": {"type": "integer", "default": 1, "maximum": 9}}},
                    "status": {"type": "object", "properties": {"size": {"type": "integer"}}},
                }}},
                "subresources": {"status": {}},
            }]},
    })
}

fn widget(name: &str) -> Value {
    json!({"apiVersion": "shop.example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": {}})
}

/// Creates the definition and waits until it is established. Returns its path.
async fn define(plane: &ControlPlane) -> String {
    let admin = plane.admin();
    let definitions = format!("{}/customresourcedefinitions", plane.api("apiextensions", "v1"));
    admin.post(&definitions, &definition()).await.expect(201);
    let path = format!("{definitions}/widgets.shop.example.com");
    admin.wait_until_established(&path).await;
    // An established kind is served at once.
    admin.get("/apis/shop.example.com/v1/widgets").await.expect(200);
    admin.post("/api/v1/namespaces", &json!({"metadata": {"name": "team"}})).await.expect(201);
    path
}

/// Objects in CBOR pass the check, a backup and a restore, and are read and written without the gate.
#[tokio::test]
async fn custom_objects_in_cbor_are_restored_and_read_without_the_gate() {
    let flags = vec!["--feature-gates=CBORServingAndStorage=true".to_owned()];
    let mut plane = ControlPlane::start(Options { flags, ..Options::default() }).await;
    define(&plane).await;
    plane.admin().post(WIDGETS, &widget("a")).await.expect(201);
    plane.stop().await;
    let dir = tempfile::tempdir().expect("a folder");
    let (file, restored) = (dir.path().join("backup"), dir.path().join("data"));
    std::fs::create_dir(&restored).expect("a folder");
    let store = |word: &str, data: &Path, flags: &[String]| {
        let run =
            Command::new(program("apid")).args(["store", word, "--data-dir"]).arg(data).args(flags).output();
        let output = run.expect("apid runs");
        assert!(output.status.success(), "{word}: {output:?}");
    };
    store("check", &plane.data_dir(), &[]);
    store("backup", &plane.data_dir(), &[format!("--to={}", file.display())]);
    let backup = std::fs::read(&file).expect("the backup");
    assert!(backup.windows(3).any(|window| window == [0xd9, 0xd9, 0xf7]), "the backup has an object in CBOR");
    store("restore", &restored, &[format!("--from={}", file.display())]);
    store("check", &restored, &[]);

    let plane = ControlPlane::start(Options { data_dir: Some(restored), ..Options::default() }).await;
    let (admin, url) = (plane.admin(), format!("{WIDGETS}/a"));
    assert_eq!(admin.get(&url).await.expect(200)["spec"], json!({"size": 1}));
    let change = json!({"spec": {"size": 2}});
    admin.patch(&url, "application/merge-patch+json", &change).await.expect(200);
    assert_eq!(admin.get(WIDGETS).await.expect(200)["items"][0]["spec"], json!({"size": 2}));
    admin.delete(&url).await.expect(200);
}

#[tokio::test]
async fn background_tasks_take_up_custom_kinds() {
    let plane = ControlPlane::start(Options::default()).await;
    let admin = plane.admin();
    define(&plane).await;
    // Quota.
    let quotas = "/api/v1/namespaces/team/resourcequotas";
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"count/widgets.shop.example.com": "2"}}});
    admin.post(quotas, &quota).await.expect(201);
    let has_used = |used: &'static str| {
        let admin = &admin;
        async move {
            eventually("the usage of the quota", || async {
                let quota = admin.get(&format!("{quotas}/q")).await.expect(200);
                (quota["status"]["used"]["count/widgets.shop.example.com"] == used).then_some(())
            })
            .await;
        }
    };
    has_used("0").await;
    let owner = admin.post(WIDGETS, &widget("owner")).await.expect(201);
    admin.post(WIDGETS, &widget("b")).await.expect(201);
    admin.post(WIDGETS, &widget("c")).await.expect(403);
    has_used("2").await;
    admin.delete(&format!("{WIDGETS}/b")).await.expect(200);
    has_used("1").await;
    // Garbage collection: a custom object owns a ConfigMap.
    let reference = json!({"apiVersion": "shop.example.com/v1", "kind": "Widget", "name": "owner",
        "uid": owner["metadata"]["uid"]});
    let map = json!({"metadata": {"name": "owned", "ownerReferences": [reference]}});
    admin.post("/api/v1/namespaces/team/configmaps", &map).await.expect(201);
    admin.delete(&format!("{WIDGETS}/owner")).await.expect(200);
    admin.wait_until_deleted("/api/v1/namespaces/team/configmaps/owned").await;
    // Deletion of the namespace (requirement D-NAME-10).
    admin.post(WIDGETS, &widget("last")).await.expect(201);
    let others = ["configmaps", "secrets"].map(|plural| format!("/api/v1/namespaces/team/{plural}"));
    for url in &others {
        admin.post(url, &json!({"metadata": {"name": "last"}})).await.expect(201);
    }
    admin.delete("/api/v1/namespaces/team").await.expect(200);
    admin.wait_until_deleted("/api/v1/namespaces/team").await;
    assert_eq!(admin.get("/apis/shop.example.com/v1/widgets").await.expect(200)["items"], json!([]));
    for url in &others {
        admin.get(&format!("{url}/last")).await.expect(404);
    }
}

/// A definition with the versions v1 and v2, and a conversion webhook that refuses connections.
fn definition_with_dead_webhook(storage: &str) -> Value {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("https://{}/convert", closed.local_addr().expect("an address"));
    drop(closed);
    let mut definition = definition();
    let mut versions = vec![definition["spec"]["versions"][0].clone(); 2];
    for (version, name) in versions.iter_mut().zip(["v1", "v2"]) {
        version["name"] = json!(name);
        version["storage"] = json!(name == storage);
    }
    definition["spec"]["versions"] = json!(versions);
    definition["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {
        "clientConfig": {"url": url}, "conversionReviewVersions": ["v1"]}});
    definition
}

#[tokio::test]
async fn dead_conversion_webhook_concerns_only_its_kind() {
    let plane = ControlPlane::start(Options::default()).await;
    let admin = plane.admin();
    let path = define(&plane).await;
    let owner = admin.post(WIDGETS, &widget("old")).await.expect(201);
    // The object is stored in v1, so each read in v2 calls the webhook.
    let change = json!({"spec": definition_with_dead_webhook("v2")["spec"]});
    admin.patch(&path, "application/merge-patch+json", &change).await.expect(200);
    let in_v2 = WIDGETS.replace("/v1/", "/v2/");
    eventually("a failed conversion", || async { (admin.get(&in_v2).await.status == 500).then_some(()) })
        .await;

    admin.post("/api/v1/namespaces", &json!({"metadata": {"name": "other"}})).await.expect(201);
    let maps = "/api/v1/namespaces/team/configmaps";
    let owning_map = admin.post(maps, &json!({"metadata": {"name": "owner"}})).await.expect(201);
    let owned = |name: &str, api_version: &str, kind: &str, owner: &Value| {
        let reference = json!({"apiVersion": api_version, "kind": kind, "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"]});
        json!({"metadata": {"name": name, "ownerReferences": [reference]}})
    };
    admin.post(maps, &owned("of-map", "v1", "ConfigMap", &owning_map)).await.expect(201);
    admin.post(maps, &owned("of-widget", "shop.example.com/v2", "Widget", &owner)).await.expect(201);
    admin.delete(&format!("{maps}/owner")).await.expect(200);
    admin.wait_until_deleted(&format!("{maps}/of-map")).await;
    admin.get(&format!("{maps}/of-widget")).await.expect(200);

    admin.post("/api/v1/namespaces/other/configmaps", &json!({"metadata": {"name": "m"}})).await.expect(201);
    admin.delete("/api/v1/namespaces/other").await.expect(200);
    admin.wait_until_deleted("/api/v1/namespaces/other").await;
}
