//! The protocol of controller-runtime's env tests: start and stop, users, definitions, a manager, SIGKILL of the test.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tests::harness::{Client, eventually};

use super::environment::Environment;
use super::{assert_no_process, kill, processes_of};
use crate::e2e::clients::python;

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
    let api_version = "workshop.example.com/v1";
    json!({"apiVersion": api_version, "kind": "Tool", "metadata": {"name": name}, "spec": {"color": color}})
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

/// An instance of the manager of tools, which is killed at the end.
struct Manager(Child);

impl Manager {
    fn start(python: &Path, folder: &Path, identity: &str) -> Manager {
        let log = fs::File::create(folder.join(identity)).expect("the log file");
        let mut command = Command::new(python);
        command
            .arg(prerequisites::repository().join("tests/e2e/python/leader_election.py"))
            .arg(identity)
            .env("KUBECONFIG", folder.join("kubeconfig"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        Manager(command.spawn().expect("the manager starts"))
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        kill(&mut self.0);
    }
}

/// Waits until a manager has written the ConfigMap of a blue tool.
async fn wait_for_map(client: &Client, name: &str, manager: &str) {
    let (path, data) = (format!("{MAPS}/{name}"), json!({"color": "blue", "by": manager}));
    eventually(&format!("`{manager}` reconciles `{name}`"), || async {
        (client.get(&path).await.json()["data"] == data).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn second_manager_takes_over_lease_and_objects_after_sigkill_of_leader() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let environment = Environment::start(folder.path()).await;
    environment.install(&definitions()).await;
    let admin = environment.admin().client();
    let manager = environment.add_user("tools-manager", "managers");
    let rules = json!([
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]},
        {"apiGroups": ["workshop.example.com"], "resources": ["tools"], "verbs": ["list", "watch"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create", "update"]},
    ]);
    grant(&admin, "managers", rules).await;
    fs::write(folder.path().join("kubeconfig"), manager.kubeconfig()).expect("the kubeconfig");
    let start = |identity| (identity, Manager::start(&python, folder.path(), identity));
    let mut managers = BTreeMap::from(["one", "two"].map(start));

    let lease = "/apis/coordination.k8s.io/v1/namespaces/default/leases/tools-manager";
    let leader = eventually("a manager has the lease", || async {
        admin.get(lease).await.json()["spec"]["holderIdentity"].as_str().map(str::to_owned)
    })
    .await;
    admin.post(TOOLS, &tool("hammer", "blue")).await.expect(201);
    wait_for_map(&admin, "hammer", &leader).await;

    drop(managers.remove(leader.as_str()));
    let other = *managers.keys().next().expect("the other manager");
    admin.post(TOOLS, &tool("saw", "blue")).await.expect(201);
    for name in ["saw", "hammer"] {
        wait_for_map(&admin, name, other).await;
    }
    let spec = admin.get(lease).await.expect(200)["spec"].clone();
    assert_eq!((&spec["holderIdentity"], &spec["leaseTransitions"]), (&json!(other), &json!(1)), "{spec}");
    // The watch of the manager is still open.
    environment.stop().await;
    drop(managers);
    assert_no_process(folder.path()).await;
}
