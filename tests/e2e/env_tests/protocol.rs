//! The protocol of controller-runtime's env tests: start and stop, users, definitions, SIGKILL of the test.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tests::harness::{Client, eventually};

use super::environment::Environment;
use super::{assert_no_process, kill, processes_of};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
/// The group version of tools.
const WORKSHOP: &str = "/apis/workshop.example.com/v1";
const TOOLS: &str = "/apis/workshop.example.com/v1/namespaces/default/tools";

/// The folder with the definition of tools.
fn definitions() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("e2e/helm/chart/crds")
}

fn tool(name: &str, color: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"color": color}})
}

async fn make_map(client: &Client, name: &str) {
    client.post(MAPS, &json!({"metadata": {"name": name}})).await.expect(201);
}

#[tokio::test(flavor = "multi_thread")]
async fn env_test_with_open_watch_stops_and_leaves_nothing_behind() {
    let folder = tempfile::tempdir().expect("a folder");
    let environment = Environment::start(folder.path()).await;
    let admin = environment.admin().client();
    let mut watch = admin.watch(&format!("{MAPS}?watch=1")).await;
    make_map(&admin, "seen").await;
    assert_eq!(watch.next().await.expect("an event")["object"]["metadata"]["name"], "seen");
    let (_, ()) = tokio::join!(async { while watch.next().await.is_some() {} }, environment.stop());
    assert_no_process(folder.path()).await;
    assert_eq!(fs::read_dir(folder.path()).expect("the folder").count(), 0, "the folders are removed");
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_api_server_of_env_test_has_objects_of_its_etcd() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut environment = Environment::start(folder.path()).await;
    make_map(&environment.admin().client(), "kept").await;
    environment.restart_api_server().await;
    environment.admin().client().get(&format!("{MAPS}/kept")).await.expect(200);
    environment.stop().await;
    assert_no_process(folder.path()).await;
}

/// Gives a group a ClusterRole with these rules.
async fn grant(admin: &Client, group: &str, rules: Value) {
    let role = json!({"metadata": {"name": group}, "rules": rules});
    admin.post(&format!("{RBAC}/clusterroles"), &role).await.expect(201);
    let api_group = "rbac.authorization.k8s.io";
    let binding = json!({
        "metadata": {"name": group},
        "roleRef": {"apiGroup": api_group, "kind": "ClusterRole", "name": group},
        "subjects": [{"apiGroup": api_group, "kind": "Group", "name": group}],
    });
    admin.post(&format!("{RBAC}/clusterrolebindings"), &binding).await.expect(201);
}

#[tokio::test(flavor = "multi_thread")]
async fn env_test_users_and_definitions_are_added_and_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let environment = Environment::start(folder.path()).await;
    let (admin, joe) = (environment.admin().client(), environment.add_user("joe", "smiths").client());
    let installed = environment.install(&definitions()).await;
    assert_eq!(installed.len(), 1);
    let rejected = joe.get(TOOLS).await.expect(403);
    let message = rejected["message"].as_str().expect("a message");
    let denial = r#"User "joe" cannot list resource "tools" in API group "workshop.example.com""#;
    assert!(message.contains(denial), "{message}");
    let rule =
        json!({"apiGroups": ["workshop.example.com"], "resources": ["tools"], "verbs": ["create", "list"]});
    grant(&admin, "smiths", json!([rule])).await;
    joe.post(TOOLS, &tool("hammer", "mauve")).await.expect(422);
    joe.post(TOOLS, &tool("hammer", "blue")).await.expect(201);
    // A second installation updates the definition; its objects stay.
    environment.install(&definitions()).await;
    assert_eq!(joe.get(TOOLS).await.expect(200)["items"][0]["spec"]["size"], 3);
    environment.uninstall(&installed).await;
    admin.wait_until_deleted(WORKSHOP).await;
    environment.install(&definitions()).await;
    assert_eq!(joe.get(TOOLS).await.expect(200)["items"], json!([]));
    environment.stop().await;
    assert_no_process(folder.path()).await;
}

/// The folder of an environment that this process starts for a test in another process.
const FOLDER: &str = "ENV_TEST_FOLDER";

#[tokio::test(flavor = "multi_thread")]
async fn no_process_is_left_after_sigkill_of_env_test() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        let environment = Environment::start(Path::new(&folder)).await;
        let input = tokio::task::spawn_blocking(|| std::io::read_to_string(std::io::stdin()));
        drop(input.await);
        return environment.stop().await;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut env_test = Command::new(std::env::current_exe().expect("the path of the test"))
        .args(["--exact", "e2e::env_tests::protocol::no_process_is_left_after_sigkill_of_env_test"])
        .env(FOLDER, folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("a process");
    // The three processes are etcd, kube-apiserver and authd.
    eventually("three processes run", || async { (processes_of(folder.path()).len() >= 3).then_some(()) })
        .await;
    kill(&mut env_test);
    assert_no_process(folder.path()).await;
}
