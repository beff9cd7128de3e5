//! Unmodified clients of three servers on an etcd cluster, behind a TCP balancer. The test repeatedly kills one of the servers:
//! clients lose no event, and see no errors beyond reconnects.
//!
//! `CLIENT_SECONDS` is the duration (default 12), `KILL_SECONDS` the time between two kills (default 3), `OBJECTS` the number
//! of objects of the reflector (default 100).

mod managers;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tests::harness::{Client, Cluster, DEADLINE, Options, Relay, TestResponse, eventually, request_body};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, Command};

use super::clients::{kube_rs, python, streaming_client_go};
use super::fresh_policy::env_number;
use super::kubectl::installed;
use managers::GoManagers;

const TOOLS: &str = "/apis/workshop.example.com/v1/namespaces/default/tools";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases/tools-manager";

/// Duration of the Lease of a manager in seconds, as in controller-runtime.
const LEASE_SECONDS: &str = "15";

/// Colors of tools, which change.
const COLORS: [&str; 3] = ["blue", "red", "green"];

/// Words in the errors of kubectl about a connection whose server ended.
const BROKEN_CONNECTIONS: [&str; 5] =
    ["EOF", "connection reset", "connection refused", "broken pipe", "client connection lost"];

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_three_servers_lose_nothing_while_servers_are_killed() {
    let (Some(kube_rs), Some(python), Some(kubectl)) = (kube_rs("failing"), python(), installed("1.33"))
    else {
        return;
    };
    let client_go = streaming_client_go("workload");
    let options = Options::kubernetes().flag("--feature-gates=WatchList=true");
    let Some(mut cluster) = Cluster::start_with(options, 3, 3).await else { return };
    let balancer = Relay::open(cluster.ports());
    let config = cluster.kubeconfig(balancer.port());
    let client = PersistentClient(Client::new(balancer.port(), Some("admin-token".to_owned())));
    client.write("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition()).await;
    eventually("tools are served", || async { (client.get(TOOLS).await.status == 200).then_some(()) }).await;

    let over = AtomicBool::new(false);
    let time = Duration::from_secs(env_number("CLIENT_SECONDS", 12));
    let end = async {
        tokio::time::sleep(time).await;
        over.store(true, Ordering::SeqCst);
    };
    let (kills, rounds, tools, commands, terms, ()) = tokio::join!(
        kill_servers(&mut cluster, &balancer, &over),
        run_rounds(kube_rs, &config, &over),
        manage(&python, &config, &client, &over),
        run_commands(&kubectl, &config, &over),
        manage_with_client_go(client_go, &config, &over),
        end,
    );
    println!(
        "{kills} kills; {rounds} rounds of the reflector, {tools} tools, {commands} commands of kubectl, {terms} terms of \
         managers of client-go"
    );
    assert!(kills > 1 && rounds > 0 && tools > 0 && commands > 0, "each client works during kills");
}

/// Kills one server after the other until the end.
async fn kill_servers(cluster: &mut Cluster, balancer: &Relay, over: &AtomicBool) -> usize {
    let pause = Duration::from_secs(env_number("KILL_SECONDS", 3));
    let mut kills = 0;
    while !over.load(Ordering::SeqCst) {
        tokio::time::sleep(pause).await;
        let number = kills % cluster.size();
        cluster.server_mut(number).kill();
        balancer.set_targets(cluster.ports());
        cluster.launch(number).await;
        balancer.set_targets(cluster.ports());
        kills += 1;
    }
    kills
}

/// Runs a session that asks before each round, with `OBJECTS` objects. Returns the number of rounds.
async fn run_rounds(mut program: Command, config: &Path, over: &AtomicBool) -> usize {
    let objects = env_number("OBJECTS", 100).to_string();
    let child = program
        .env("KUBECONFIG", config)
        .env("OBJECTS", objects)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = child.kill_on_drop(true).spawn().expect("the session starts");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut input = child.stdin.take().expect("a pipe");
    let mut rounds = 0;
    while let Some(line) = lines.next_line().await.expect("text") {
        assert_eq!(line, "round");
        // At least one round follows, however long the creation of the objects takes.
        let is_enough = over.load(Ordering::SeqCst) && rounds > 0;
        let answer = if is_enough { "end\n" } else { "more\n" };
        input.write_all(answer.as_bytes()).await.expect("the session reads");
        rounds += usize::from(!is_enough);
    }
    let status = child.wait().await.expect("the session ends");
    assert!(status.success(), "the session finds no violation: {status}");
    rounds
}

/// Runs two managers with leader election, and creates and changes tools. Returns the number of tools.
async fn manage(python: &Path, config: &Path, client: &PersistentClient, over: &AtomicBool) -> usize {
    let mut managers = ["one", "two"].map(|identity| start_manager(python, config, identity));
    let mut colors: BTreeMap<String, &str> = BTreeMap::new();
    while !over.load(Ordering::SeqCst) {
        let count = colors.len();
        let name = format!("tool-{count}");
        client.write("POST", TOOLS, &tool(&name, COLORS[0])).await;
        colors.insert(name, COLORS[0]);
        let (changed, color) = (format!("tool-{}", count / 2), COLORS[count % COLORS.len()]);
        client.change_color(&changed, color).await;
        colors.insert(changed, color);
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    for (name, color) in &colors {
        eventually(&format!("the ConfigMap of {name} is {color}"), || async {
            (client.get(&format!("{MAPS}/{name}")).await.json()["data"]["color"] == *color).then_some(())
        })
        .await;
    }
    let spec = client.get(LEASE).await.expect(200)["spec"].clone();
    assert_eq!(spec["leaseTransitions"], 0, "no manager lost the Lease: {spec}");
    for manager in &mut managers {
        let ended = manager.try_wait().expect("the process is ours");
        assert!(ended.is_none(), "a manager ended with {ended:?}; see its error above");
    }
    colors.len()
}

fn start_manager(python: &Path, config: &Path, identity: &str) -> Child {
    let mut command = Command::new(python);
    let script = prerequisites::repository().join("tests/e2e/python/leader_election.py");
    let command =
        command.arg(script).arg(identity).env("KUBECONFIG", config).env("LEASE_SECONDS", LEASE_SECONDS);
    command.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true).spawn().expect("the manager starts")
}

/// Runs two managers of client-go with leader election and the session that gives them work, and replaces the leader from
/// time to time. Returns the number of terms of leaders; 0 without client-go.
async fn manage_with_client_go(workload: Option<Command>, config: &Path, over: &AtomicBool) -> usize {
    let Some(workload) = workload else { return 0 };
    let mut managers = GoManagers::start(config);
    let (rounds, ()) = tokio::join!(run_rounds(workload, config, over), managers.replace_leaders(over));
    println!("{rounds} rounds of client-go; {}", managers.takeovers());
    managers.assert_single_leaders()
}

/// Runs commands of kubectl one after the other. Returns their number.
async fn run_commands(kubectl: &Path, config: &Path, over: &AtomicBool) -> usize {
    let kubectl = Kubectl { program: kubectl.to_owned(), config: config.to_owned() };
    let mut number = 0;
    while !over.load(Ordering::SeqCst) {
        let name = format!("commanded-{number}");
        kubectl.run(&["create", "configmap", &name, "--from-literal=key=one"], "already exists").await;
        let found = kubectl.run(&["get", "configmap", &name, "-o", "jsonpath={.data.key}"], "").await;
        assert_eq!(found, "one", "the acknowledged object is read from any server");
        let patch = r#"{"data": {"key": "two"}}"#;
        kubectl.run(&["patch", "configmap", &name, "--type=merge", "-p", patch], "").await;
        let found = kubectl.run(&["get", "configmap", &name, "-o", "jsonpath={.data.key}"], "").await;
        assert_eq!(found, "two", "the acknowledged change is read from any server");
        if number % 2 == 0 {
            kubectl.run(&["delete", "configmap", &name], "not found").await;
        }
        number += 1;
    }
    number * 4
}

struct Kubectl {
    program: PathBuf,
    config: PathBuf,
}

impl Kubectl {
    /// Runs a command, and repeats a command whose connection broke. A repeated write can fail because of its own effect,
    /// with the words `effect`. Returns the output.
    async fn run(&self, arguments: &[&str], effect: &str) -> String {
        let mut is_repeated = false;
        loop {
            let mut command = Command::new(&self.program);
            let command = command.arg("--kubeconfig").arg(&self.config).args(arguments).kill_on_drop(true);
            let output = tokio::time::timeout(DEADLINE, command.output()).await.expect("kubectl ends");
            let output = output.expect("kubectl runs");
            let complaint = String::from_utf8_lossy(&output.stderr);
            let is_own_effect = is_repeated && !effect.is_empty() && complaint.contains(effect);
            if output.status.success() || is_own_effect {
                return String::from_utf8_lossy(&output.stdout).into_owned();
            }
            let is_broken = BROKEN_CONNECTIONS.iter().any(|words| complaint.contains(words));
            assert!(is_broken, "kubectl {arguments:?}: {complaint}");
            is_repeated = true;
        }
    }
}

/// A client that repeats requests whose connection breaks.
struct PersistentClient(Client);

impl PersistentClient {
    /// Repeats a request until a response. Returns the response, and whether the request was repeated.
    async fn request(&self, method: &str, path: &str, body: &Value) -> (TestResponse, bool) {
        let headers = [(
            "content-type",
            if method == "PATCH" { "application/merge-patch+json" } else { "application/json" },
        )];
        let body = request_body(body);
        let mut is_repeated = false;
        loop {
            match self.0.try_request(method, path, &headers, &body).await {
                Ok(response) => return (response, is_repeated),
                Err(error) => println!("reconnect: {method} {path}: {error}"),
            }
            is_repeated = true;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn get(&self, path: &str) -> TestResponse {
        self.request("GET", path, &Value::Null).await.0
    }

    async fn write(&self, method: &str, path: &str, body: &Value) {
        let (response, is_repeated) = self.request(method, path, body).await;
        let is_done = [200, 201].contains(&response.status) || is_repeated && response.status == 409;
        assert!(is_done, "{method} {path}: {} {}", response.status, response.text());
    }

    async fn change_color(&self, tool: &str, color: &str) {
        self.write("PATCH", &format!("{TOOLS}/{tool}"), &json!({"spec": {"color": color}})).await;
    }
}

fn tool(name: &str, color: &str) -> Value {
    json!({
        "apiVersion": "workshop.example.com/v1", "kind": "Tool",
        "metadata": {"name": name}, "spec": {"color": color},
    })
}

fn definition() -> Value {
    let schema = json!({"type": "object", "properties": {"spec": {
        "type": "object", "properties": {"color": {"type": "string"}},
    }}});
    json!({
        "metadata": {"name": "tools.workshop.example.com"},
        "spec": {
            "group": "workshop.example.com", "scope": "Namespaced",
            "names": {"plural": "tools", "singular": "tool", "kind": "Tool", "listKind": "ToolList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    })
}
