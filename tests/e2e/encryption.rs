//! Encryption at rest with the programs: files, reload of the configuration, rewrite, lost keys, a KMS plugin.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use encryption::kms::mock::MockPlugin;
use serde_json::{Value, json};
use tests::harness::{Client, ControlPlane, Options, eventually, program};

use super::backup::backup;

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const MERGE: &str = "application/merge-patch+json";
/// `plain text of a secret` in base64, as a client sends it.
const DATA: &str = "cGxhaW4gdGV4dCBvZiBhIHNlY3JldA==";
const KEY_A: &str = "yCRbk8PwW8jX1xeeR3HL1Nkk/I6F6gQ2IEgScymIm7s=";
const KEY_B: &str = "n8RPBiVgeRS1MofKFASR08NfYyp4moZITLYC2/aV9Sc=";

/// Writes a configuration for Secrets; readers never see a part of it.
fn write(file: &Path, plane: &ControlPlane, providers: &Value) {
    let version = format!("{}/v1", plane.names().group("apiserver.config"));
    let rule = json!({"resources": ["secrets"], "providers": providers});
    let text = json!({"kind": "EncryptionConfiguration", "apiVersion": version, "resources": [rule]});
    let temporary = file.with_extension("new");
    fs::write(&temporary, text.to_string()).expect("the configuration is written");
    fs::rename(&temporary, file).expect("the configuration gets its name");
}

fn provider(kind: &str, name: &str, secret: &str) -> Value {
    json!({kind: {"keys": [{"name": name, "secret": secret}]}})
}

fn secret(name: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"password": DATA}})
}

/// The files below a folder that contain the plain data.
fn files_with_plain_data(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("the folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files_with_plain_data(&path));
            continue;
        }
        // A socket is no file that holds data.
        let Ok(bytes) = fs::read(&path) else { continue };
        if bytes.windows(DATA.len()).any(|window| window == DATA.as_bytes()) {
            found.push(path.display().to_string());
        }
    }
    found
}

/// Sends an unchanged patch. Returns the resourceVersion after it.
async fn touch(client: &Client, name: &str) -> String {
    let object = client.patch(&format!("{SECRETS}/{name}"), MERGE, &json!({})).await.expect(200);
    object["metadata"]["resourceVersion"].as_str().expect("a version").to_owned()
}

fn rewrite(plane: &ControlPlane, file: &Path) -> Output {
    let mut command = Command::new(program("apid"));
    command.args(["store", "rewrite", "--data-dir"]).arg(plane.data_dir());
    command.arg("--encryption-provider-config").arg(file).output().expect("apid runs")
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_are_encrypted_on_disk_and_keys_rotate() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("enc.json");
    let options = Options::default()
        .flag(&format!("--encryption-provider-config={}", file.display()))
        .flag("--encryption-provider-config-automatic-reload");
    let mut plane = ControlPlane::new_stopped(options);
    let old = provider("secretbox", "old", KEY_A);
    write(&file, &plane, &json!([old]));
    plane.launch().await;
    let admin = plane.admin();
    for name in ["one", "two"] {
        admin.post(SECRETS, &secret(name)).await.expect(201);
    }
    assert_eq!(files_with_plain_data(&plane.data_dir()), [""; 0]);
    let archive = dir.path().join("archive");
    fs::create_dir(&archive).expect("a folder");
    let output = tokio::task::block_in_place(|| backup(&plane, "admin", &archive.join("backup")));
    assert!(output.status.success(), "{output:?}");
    assert_eq!(files_with_plain_data(&archive), [""; 0]);
    let ready = admin.get("/readyz?verbose").await.text();
    for check in ["kms-providers", "poststarthook/start-encryption-provider-config-automatic-reload"] {
        assert!(ready.contains(&format!("[+]{check} ok")), "{ready}");
    }

    // A new first key makes the objects stale: an unchanged write stores them once.
    let before = touch(&admin, "one").await;
    write(&file, &plane, &json!([provider("aesgcm", "new", KEY_B), old]));
    let after = eventually("the new key encrypts", || async {
        Some(touch(&admin, "one").await).filter(|version| *version != before)
    })
    .await;
    assert_eq!(touch(&admin, "one").await, after, "a second unchanged write stores nothing");
    let metrics = admin.get("/metrics").await.text();
    let series = |name: &str, label: &str| {
        metrics.lines().any(|line| line.starts_with(name) && line.contains(label) && line.ends_with(" 1"))
    };
    assert!(series("apiserver_encryption_config_controller_automatic_reloads_total", "status=\"success\""));
    assert!(series("apiserver_encryption_config_controller_last_config_info", "hash=\"sha256:"));

    // A bad file leaves the configuration in use.
    fs::write(&file, "kind: EncryptionConfiguration\nresources: [").expect("the file is written");
    eventually("the bad file is counted", || async {
        admin.get("/metrics").await.text().contains("status=\"failure\"").then_some(())
    })
    .await;
    assert_eq!(admin.get(&format!("{SECRETS}/two")).await.expect(200)["data"]["password"], DATA);
    assert!(!plane.log().contains(KEY_A) && !plane.log().contains(KEY_B), "the log shows no key");
    write(&file, &plane, &json!([provider("aesgcm", "new", KEY_B), old]));
    plane.stop().await;

    let output = rewrite(&plane, &file);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains(" 0 unreadable"), "{output:?}");
    let again = rewrite(&plane, &file);
    assert!(String::from_utf8_lossy(&again.stdout).contains(" 0 rewritten"), "{again:?}");
    // The old key is not needed any more.
    write(&file, &plane, &json!([provider("aesgcm", "new", KEY_B)]));
    plane.launch().await;
    let admin = plane.admin();
    for name in ["one", "two"] {
        assert_eq!(admin.get(&format!("{SECRETS}/{name}")).await.expect(200)["data"]["password"], DATA);
    }
    assert_eq!(files_with_plain_data(&plane.data_dir()), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_a_lost_key_are_named_and_deleted_only_with_the_option() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("enc.json");
    let config = format!("--encryption-provider-config={}", file.display());
    let mut plane = ControlPlane::new_stopped(Options::default().flag(&config));
    write(&file, &plane, &json!([provider("aesgcm", "k", KEY_A)]));
    plane.launch().await;
    let admin = plane.admin();
    let mut held = secret("held");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    admin.post(SECRETS, &held).await.expect(201);
    admin.post(MAPS, &json!({"metadata": {"name": "m"}})).await.expect(201);
    write(&file, &plane, &json!([provider("aesgcm", "k", KEY_B)]));

    plane.relaunch_with(&[&config]).await;
    let admin = plane.admin();
    admin.post(SECRETS, &secret("new")).await.expect(201);
    let path = format!("{SECRETS}/held");
    let text = "cipher: message authentication failed";
    let message = |status: Value| status["message"].as_str().expect("a message").to_owned();
    assert_eq!(message(admin.get(&path).await.expect(500)), format!("Internal error occurred: {text}"));
    assert_eq!(
        message(admin.get(SECRETS).await.expect(500)),
        format!(
            "Internal error occurred: unable to transform key \"/registry/secrets/default/held\": {text}"
        )
    );
    admin.get(&format!("{SECRETS}/new")).await.expect(200);
    admin.get(&format!("{MAPS}/m")).await.expect(200);
    let options = json!({"ignoreStoreReadErrorWithClusterBreakingPotential": true}).to_string();
    let headers = [("content-type", "application/json")];
    admin.request("DELETE", &path, &headers, options.as_bytes()).await.expect(500);

    let gate = "--feature-gates=AllowUnsafeMalformedObjectDeletion=true";
    plane.relaunch_with(&[&config, gate]).await;
    let admin = plane.admin();
    let list = admin.get(SECRETS).await.expect(500);
    assert_eq!(list["reason"], "StorageReadError");
    assert_eq!(list["details"]["causes"][0]["field"], "/registry/secrets/default/held");
    admin.delete(&path).await.expect(500);
    let deleted = admin.request("DELETE", &path, &headers, options.as_bytes()).await.expect(200);
    assert_eq!(deleted["details"]["name"], "held");
    let list = admin.get(SECRETS).await.expect(200);
    assert_eq!(list["items"].as_array().expect("items").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn server_waits_for_its_kms_plugin_and_recovers() {
    let dir = tempfile::tempdir().expect("a folder");
    let (file, socket) = (dir.path().join("enc.json"), dir.path().join("kms.sock"));
    let plugin = MockPlugin::new("key-1", [7; 32]);
    let server = plugin.serve(&socket);
    let config = format!("--encryption-provider-config={}", file.display());
    let mut plane = ControlPlane::new_stopped(Options::default().flag(&config));
    let endpoint = format!("unix://{}", socket.display());
    let kms = json!({"apiVersion": "v2", "name": "plug", "endpoint": endpoint, "timeout": "1s"});
    write(&file, &plane, &json!([{"kms": kms}]));
    plane.launch().await;
    plane.admin().post(SECRETS, &secret("one")).await.expect(201);
    assert_eq!(files_with_plain_data(&plane.data_dir()), [""; 0]);
    assert!(plane.admin().get("/readyz?verbose").await.text().contains("[+]kms-providers ok"));
    plane.stop().await;
    server.abort();
    fs::remove_file(&socket).expect("the socket exists");

    let output = rewrite(&plane, &file);
    assert!(String::from_utf8_lossy(&output.stderr).contains("the rewrite needs the plugin"), "{output:?}");
    // The plugin comes back while the server starts.
    let returning = plugin.clone();
    let back = tokio::spawn(async move {
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        drop(returning.serve(&socket));
    });
    plane.launch().await;
    back.await.expect("the plugin is back");
    let admin = plane.admin();
    assert!(plane.log().contains("KMS plugin is healthy"), "{}", plane.log());
    assert_eq!(admin.get(&format!("{SECRETS}/one")).await.expect(200)["data"]["password"], DATA);
    admin.post(SECRETS, &secret("two")).await.expect(201);
}

/// Writes a configuration with these providers for a role, a quota and a definition.
fn write_for_policy(file: &Path, providers: &Value) {
    let resources = [
        "roles.rbac.authorization.k8s.io",
        "customresourcedefinitions.apiextensions.k8s.io",
        "resourcequotas",
    ];
    let rule = json!({"resources": resources, "providers": providers});
    let version = "apiserver.config.k8s.io/v1";
    let text = json!({"kind": "EncryptionConfiguration", "apiVersion": version, "resources": [rule]});
    let temporary = file.with_extension("new");
    fs::write(&temporary, text.to_string()).expect("the configuration is written");
    fs::rename(&temporary, file).expect("the configuration gets its name");
}

#[tokio::test(flavor = "multi_thread")]
async fn role_definition_and_quota_take_effect_after_encryption_key_returns() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("enc.json");
    let flags = [
        &format!("--encryption-provider-config={}", file.display()),
        "--encryption-provider-config-automatic-reload",
    ]
    .map(str::to_owned);
    let mut plane = ControlPlane::new_stopped(Options::kubernetes().flag(&flags[0]).flag(&flags[1]));
    let (first, second) = (provider("aesgcm", "a", KEY_A), provider("aesgcm", "b", KEY_B));
    write_for_policy(&file, &json!([first]));
    plane.launch().await;
    let admin = plane.admin();
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let rules = json!([{"verbs": ["list"], "apiGroups": [""], "resources": ["configmaps"]}]);
    admin
        .post(&format!("{rbac}/roles"), &json!({"metadata": {"name": "r"}, "rules": rules}))
        .await
        .expect(201);
    let binding = json!({
        "metadata": {"name": "r"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "bob"}],
    });
    admin.post(&format!("{rbac}/rolebindings"), &binding).await.expect(201);
    let definition = json!({
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object"}},
            }],
        },
    });
    admin.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).await.expect(201);
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"count/configmaps": "0"}}});
    admin.post("/api/v1/namespaces/default/resourcequotas", &quota).await.expect(201);
    let widgets = "/apis/example.com/v1/namespaces/default/widgets";
    let bob = plane.user("bob");
    let state = async |admin: &Client, bob: &Client| {
        let map = admin.post(&format!("{MAPS}?dryRun=All"), &json!({"metadata": {"name": "m"}})).await;
        [bob.get(MAPS).await.status, admin.get(widgets).await.status, map.status]
    };
    eventually("all three are effective", || async {
        (state(&admin, &bob).await == [200, 200, 403]).then_some(())
    })
    .await;

    write_for_policy(&file, &json!([second]));
    plane.relaunch_with(&flags.each_ref().map(String::as_str)).await;
    let (admin, bob) = (plane.admin(), plane.user("bob"));
    let [role, served, _] = state(&admin, &bob).await;
    assert_eq!([role, served], [403, 404], "the objects cannot be read");

    write_for_policy(&file, &json!([second, first]));
    eventually("all three are effective again", || async {
        (state(&admin, &bob).await == [200, 200, 403]).then_some(())
    })
    .await;
}
