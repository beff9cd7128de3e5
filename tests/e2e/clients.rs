//! Unmodified client libraries with the Kubernetes preset.
//!
//! The libraries are client-go (`client-go/`), kube-rs (`kube-rs/`) and the Python package `kubernetes` (`python/`). Each
//! session is a separate program. The test skips a program that is not installed and prints the reason.
//!
//! # Contract
//!
//! A session finds the server through a kubeconfig file. A line of its output requests an action of the test,
//! and the session continues when it reads `done`. The actions are:
//!
//! - `restart`: SIGTERM, then start.
//! - `kill`: SIGKILL, then start.
//! - `trim`: close all connections, change objects, and compact the revisions of these changes.
//!
//! The test passes if the session exits with code 0.

use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use serde_json::json;
use tests::harness::{ControlPlane, Options, build_folder, eventually};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Timeout of a session.
const SESSION: Duration = Duration::from_secs(180);

/// TCP proxy with a fixed port in front of a server whose port changes with each start.
struct TcpProxy {
    port: u16,
    target_port: Arc<AtomicU16>,
    generation: watch::Sender<u64>,
    accepting: JoinHandle<()>,
}

impl TcpProxy {
    async fn open(target_port: u16) -> TcpProxy {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let target_port = Arc::new(AtomicU16::new(target_port));
        let (generation, cut) = watch::channel(0);
        let target = target_port.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((outer, _)) = listener.accept().await {
                let (target, mut cut) = (target.load(Ordering::SeqCst), cut.clone());
                cut.mark_unchanged();
                tokio::spawn(async move {
                    tokio::select! {
                        _ = forward(outer, target) => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        TcpProxy { port, target_port, generation, accepting }
    }

    /// Sets the target port of new connections (0 rejects them) and closes all open connections.
    fn set_target(&self, port: u16) {
        self.target_port.store(port, Ordering::SeqCst);
        self.generation.send_modify(|generation| *generation += 1);
    }
}

impl Drop for TcpProxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn forward(mut outer: TcpStream, port: u16) -> io::Result<()> {
    let mut inner = TcpStream::connect(("127.0.0.1", port)).await?;
    tokio::io::copy_bidirectional(&mut outer, &mut inner).await.map(drop)
}

/// Runs one session until it exits.
async fn session(mut program: Command, options: Options) {
    let mut plane = ControlPlane::start(options).await;
    let tcp_proxy = TcpProxy::open(plane.admin().port()).await;
    let config = plane.dir().join("session.kubeconfig");
    let content = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "plane",
        "clusters": [{"name": "plane", "cluster": {
            "server": format!("https://127.0.0.1:{}", tcp_proxy.port),
            "certificate-authority": plane.data_dir().join("certs/ca.crt"),
        }}],
        "users": [{"name": "admin", "user": {"token": "admin-token"}}],
        "contexts": [{"name": "plane", "context": {"cluster": "plane", "user": "admin", "namespace": "default"}}],
    });
    std::fs::write(&config, content.to_string()).expect("the configuration file");
    let mut child = program
        .env("KUBECONFIG", &config)
        .env("HOME", plane.dir())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the session starts");
    let mut stderr = child.stderr.take().expect("a pipe");
    let complaints = tokio::spawn(async move {
        let mut text = String::new();
        stderr.read_to_string(&mut text).await.map(|_| text)
    });
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut stdin = child.stdin.take().expect("a pipe");
    let run = async {
        while let Some(output) = lines.next_line().await.expect("text") {
            match output.as_str() {
                "restart" => {
                    plane.stop().await;
                    plane.launch().await;
                    tcp_proxy.set_target(plane.admin().port());
                }
                "kill" => {
                    plane.kill();
                    plane.launch().await;
                    tcp_proxy.set_target(plane.admin().port());
                }
                "trim" => trim(&mut plane, &tcp_proxy).await,
                other => panic!("the session requested the unknown action `{other}`"),
            }
            stdin.write_all(b"done\n").await.expect("the session reads");
        }
        child.wait().await.expect("the session ends")
    };
    let status = tokio::time::timeout(SESSION, run).await.expect("the session ends in time");
    let complaints = complaints.await.expect("the reader task").expect("text");
    assert!(status.success(), "{status}\n{complaints}");
}

/// Closes all connections, changes objects, waits for compaction, and restarts the server.
async fn trim(plane: &mut ControlPlane, tcp_proxy: &TcpProxy) {
    tcp_proxy.set_target(0);
    let admin = plane.admin();
    let maps = "/api/v1/namespaces/default/configmaps";
    let before = admin.get(maps).await.expect(200)["metadata"]["resourceVersion"].clone();
    let before = before.as_str().expect("a version").to_owned();
    for index in 0..5 {
        admin.delete(&format!("{maps}/object-{index}")).await.expect(200);
        let made = json!({"metadata": {"name": format!("made-{index}"), "labels": {"part": "reflected"}}});
        admin.post(maps, &made).await.expect(201);
    }
    // apid reads a kind without a watch cache from the store.
    let old = format!("/api/v1/podtemplates?resourceVersionMatch=Exact&resourceVersion={before}");
    eventually("the store has compacted the revision", || async {
        (admin.get(&old).await.status == 410).then_some(())
    })
    .await;
    // A running server has recent events in memory; a restarted server has only the revisions of the store.
    plane.stop().await;
    plane.launch().await;
    tcp_proxy.set_target(plane.admin().port());
}

/// A session of a program with the sessions of a client; None when the program is not built and the test is skipped.
fn built_session(client: &str, program: PathBuf, session: &str) -> Option<Command> {
    if !program.exists() {
        prerequisites::skip(client, &format!("{} is not built; see tests/README.md", program.display()));
        return None;
    }
    let mut command = Command::new(program);
    command.arg(session);
    Some(command)
}

/// A session of kube-rs; None when the test is skipped.
pub(super) fn kube_rs(session: &str) -> Option<Command> {
    built_session("kube-rs", build_folder().join("kube-rs-session"), session)
}

#[tokio::test(flavor = "multi_thread")]
async fn kube_rs_manages_typed_objects() {
    if let Some(program) = kube_rs("typed") {
        session(program, Options::kubernetes()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kube_rs_discovers_kinds() {
    if let Some(program) = kube_rs("dynamic") {
        session(program, Options::kubernetes()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kube_rs_controller_reconciles_derived_kind() {
    if let Some(program) = kube_rs("custom") {
        session(program, Options::kubernetes()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kube_rs_reflector_with_1000_objects_survives_restarts() {
    if let Some(program) = kube_rs("reflected") {
        session(program, Options::kubernetes()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kube_rs_reflector_with_streaming_list_survives_restarts() {
    if let Some(program) = kube_rs("reflected-streaming") {
        session(program, Options::kubernetes().flag("--feature-gates=WatchList=true")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kube_rs_reflector_relists_after_compaction() {
    if let Some(program) = kube_rs("trimmed") {
        session(program, Options::kubernetes().flag("--history-retention=1s")).await;
    }
}

/// A session of client-go; None when the test is skipped.
pub(crate) fn client_go(session: &str) -> Option<Command> {
    built_session("client-go", prerequisites::repository().join("target/client-go/session"), session)
}

/// A session of client-go whose informers prefer a streamed list; None when the test is skipped.
pub(super) fn streaming_client_go(session: &str) -> Option<Command> {
    let mut command = client_go(session)?;
    command.env("KUBE_FEATURE_WatchListClient", "true");
    Some(command)
}

#[tokio::test(flavor = "multi_thread")]
async fn client_go_manages_typed_objects() {
    if let Some(program) = client_go("typed") {
        session(program, Options::kubernetes()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn client_go_discovers_kinds_and_manages_custom_objects() {
    if let Some(program) = streaming_client_go("dynamic") {
        session(program, Options::kubernetes().flag("--feature-gates=WatchList=true")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn client_go_informer_with_1000_objects_survives_restarts() {
    if let Some(program) = client_go("informer") {
        session(program, Options::kubernetes()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn client_go_informer_with_streaming_list_survives_restarts() {
    if let Some(program) = streaming_client_go("informer-streaming") {
        session(program, Options::kubernetes().flag("--feature-gates=WatchList=true")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn client_go_informer_lists_where_server_does_not_stream_lists() {
    if let Some(program) = streaming_client_go("informer-unstreamed") {
        session(program, Options::kubernetes()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn client_go_informer_relists_after_compaction() {
    if let Some(program) = client_go("trimmed") {
        session(program, Options::kubernetes().flag("--history-retention=1s")).await;
    }
}

/// Python with the package `kubernetes`, from the environment that `.ci/run` creates or from PATH.
pub(crate) fn python() -> Option<PathBuf> {
    let candidates = [prerequisites::repository().join("target/python/bin/python"), PathBuf::from("python3")];
    let has_package = |python: &PathBuf| {
        let output = std::process::Command::new(python)
            .args(["-c", "import kubernetes"])
            .stderr(Stdio::null())
            .status();
        output.is_ok_and(|status| status.success())
    };
    let python = candidates.into_iter().find(has_package);
    if python.is_none() {
        prerequisites::skip("python", "no Python has the package `kubernetes`; see tests/README.md");
    }
    python
}

/// A session of the Python client; None when the test is skipped.
fn python_session(session: &str) -> Option<Command> {
    let mut command = Command::new(python()?);
    command.arg(prerequisites::repository().join("tests/e2e/python/sessions.py")).arg(session);
    Some(command)
}

#[tokio::test(flavor = "multi_thread")]
async fn python_manages_typed_objects() {
    if let Some(program) = python_session("typed") {
        session(program, Options::kubernetes()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn python_dynamic_client_manages_objects() {
    if let Some(program) = python_session("dynamic") {
        session(program, Options::kubernetes()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn python_operator_handles_custom_objects() {
    if let Some(program) = python_session("operator") {
        session(program, Options::kubernetes()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn python_watch_survives_restarts() {
    if let Some(program) = python_session("watched") {
        session(program, Options::kubernetes()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn python_watch_relists_after_compaction() {
    if let Some(program) = python_session("trimmed") {
        session(program, Options::kubernetes().flag("--history-retention=1s")).await;
    }
}
