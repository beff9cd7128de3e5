//! Metrics of both processes, failed TLS handshakes, SIGHUP, rotation of the audit log, the service manager.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tests::harness::{Client, ControlPlane, DEADLINE, Options, eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn pid_of(id: u32) -> Pid {
    i32::try_from(id).ok().and_then(Pid::from_raw).expect("a process id")
}

/// Sends text without TLS to a port; the server closes the connection.
async fn send_other_protocol(port: u16) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.expect("apid listens");
    let peer = stream.local_addr().expect("an address").to_string();
    stream.write_all(b"\0neither TLS nor HTTP\r\n").await.expect("the bytes are sent");
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
    peer
}

/// Sends requests that add samples to the metric families that have no samples after a start.
async fn use_families(plane: &ControlPlane) {
    let admin = plane.admin();
    admin.post(MAPS, &json!({"metadata": {"name": "one"}})).await.expect(201);
    let one = admin.get(&format!("{MAPS}/one")).await.expect(200);
    let version = one["metadata"]["resourceVersion"].as_str().expect("a version");
    admin.get(MAPS).await.expect(200);
    for parameters in ["", "&resourceVersionMatch=Exact"] {
        admin.get(&format!("{MAPS}?resourceVersion={version}{parameters}")).await.expect(200);
    }
    admin.get("/api/v1/componentstatuses").await.expect(200);
    plane.user("carol").get(MAPS).await.expect(403);
    let options = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut watch = admin.watch(&format!("{MAPS}?{options}")).await;
    while watch.next().await.expect("an initial event")["type"] != "BOOKMARK" {}
}

#[tokio::test]
async fn families_of_metrics_table_are_served_by_both_processes() {
    let plane = ControlPlane::start(Options::default().flag("--feature-gates=WatchList=true")).await;
    use_families(&plane).await;
    let admin = plane.admin();
    let rows = include_str!("../../docs/metrics.csv").lines().skip(1);
    let expected: Vec<&str> = rows
        .map(|row| row.split(',').collect::<Vec<_>>())
        .filter(|row| !["absent", "authd-own"].contains(&row[4]) && !row[5].starts_with("after "))
        .map(|row| row[0])
        .collect();
    // The metrics of authd arrive after at most 5 s.
    let begin = Instant::now();
    loop {
        let text =
            format!("\n{}\n{}", admin.get("/metrics").await.text(), admin.get("/metrics/slis").await.text());
        let is_served = |family: &&str| text.contains(&format!("\n# TYPE {family} "));
        let missing: Vec<&&str> = expected.iter().filter(|family| !is_served(family)).collect();
        if missing.is_empty() {
            break;
        }
        assert!(begin.elapsed() < DEADLINE, "families that are not served: {missing:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    plane.user("carol").get("/metrics/slis").await.expect(403);
}

#[tokio::test]
async fn failed_tls_handshake_is_logged_with_peer_and_counted() {
    let plane = ControlPlane::start(Options::default()).await;
    let admin = plane.admin();
    let peer = send_other_protocol(admin.port()).await;
    eventually("the log names the peer", || async {
        let log = plane.log();
        log.lines().any(|line| line.contains("tls handshake failed") && line.contains(&peer)).then_some(())
    })
    .await;
    let text = admin.get("/metrics").await.text();
    assert!(text.contains("\napiserver_tls_handshake_errors_total 1\n"), "{text}");
}

#[tokio::test]
async fn sighup_reopens_audit_log_and_ends_no_process() {
    let dir = tempfile::tempdir().expect("a folder");
    let (path, renamed) = (dir.path().join("audit.log"), dir.path().join("audit.log.1"));
    let plane =
        ControlPlane::start(Options::default().flag(&format!("--audit-log-path={}", path.display()))).await;
    let (admin, authd) = (plane.admin(), plane.authd_pids());
    admin.post(MAPS, &json!({"metadata": {"name": "before"}})).await.expect(201);
    fs::rename(&path, &renamed).expect("the file is renamed");
    for process in [plane.pid(), authd[0]] {
        kill_process(pid_of(process), Signal::HUP).expect("a signal");
    }
    eventually("the audit log is reopened", || async { path.exists().then_some(()) }).await;
    admin.post(MAPS, &json!({"metadata": {"name": "after"}})).await.expect(201);
    eventually("the new file has the event", || async {
        fs::read_to_string(&path).ok()?.contains("configmaps").then_some(())
    })
    .await;
    assert!(fs::read_to_string(&renamed).expect("the old file").contains("configmaps"));
    assert_eq!(plane.authd_pids(), authd, "authd runs on");
}

#[tokio::test]
async fn audit_log_is_rotated_by_size_and_limited_in_number() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("audit.log");
    let options = Options::default()
        .flag(&format!("--audit-log-path={}", path.display()))
        .flag("--audit-log-maxsize=1")
        .flag("--audit-log-maxbackup=1")
        .flag("--audit-log-maxage=1")
        .flag("--audit-log-compress");
    let plane = ControlPlane::start(options).await;
    let admin = plane.admin();
    let list = format!("{MAPS}?fill={}", "x".repeat(60_000));
    for _ in 0..60 {
        admin.get(&list).await.expect(200);
    }
    eventually("one compressed file remains", || async {
        let names: Vec<String> = fs::read_dir(dir.path())
            .expect("the folder")
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| name != "audit.log")
            .collect();
        let is_rotated = |name: &String| name.starts_with("audit-20") && name.ends_with(".log.gz");
        (names.len() == 1 && names.iter().all(is_rotated)).then_some(())
    })
    .await;
}

/// A process that is killed when the test ends.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn service_manager_is_notified_of_start_reload_and_stop() {
    let dir = tempfile::tempdir().expect("a folder");
    let socket = dir.path().join("notify");
    let notifications = UnixDatagram::bind(&socket).expect("a socket");
    notifications.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    let next = || {
        let mut bytes = [0; 512];
        let length = notifications.recv(&mut bytes).expect("a notification");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    let plane = ControlPlane::new_stopped(Options::default());
    let mut command = plane.command();
    command.env("NOTIFY_SOCKET", &socket).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let running = KillOnDrop(command.spawn().expect("apid starts"));
    assert!(next().starts_with("READY=1\n"));
    let port = fs::read_to_string(plane.data_dir().join("apid.port")).expect("the port");
    let client = Client::new(port.trim().parse().expect("a number"), None);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let ready = runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(10), client.get("/readyz")).await.expect("a response")
    });
    assert_eq!(ready.status, 200, "READY=1 is sent when readyz passes");
    kill_process(pid_of(running.0.id()), Signal::HUP).expect("a signal");
    let reloading = next();
    assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
    assert!(next().starts_with("READY=1\n"));
    kill_process(pid_of(running.0.id()), Signal::TERM).expect("a signal");
    assert!(next().starts_with("STOPPING=1\n"));
}
