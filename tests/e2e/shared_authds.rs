//! Two apids on one etcd with two authds that both share over TCP with mutual TLS.
//!
//! `ROUNDS` sets the number of rounds of the trial (default 300).

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use apimachinery::clock::{Clock as _, SystemClock};
use prerequisites::etcd::{EtcdServer, Release, free_port};
use serde_json::{Value, json};
use serving::certs::{Authority, PemPair};
use tempfile::TempDir;
use tests::harness::{Client, ControlPlane, Options, TestResponse, eventually, program, request_body};
use tokio::time::Instant;

use super::fresh_policy::env_number;

/// Time within which a request gets a decision after the end of an authd.
const BOUND: Duration = Duration::from_secs(10);
const HOUR: Duration = Duration::from_secs(3600);
const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// The files of an installation: users, certificates and the key of service-account tokens.
struct Installation {
    dir: TempDir,
}

impl Installation {
    fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("shared-authds-").tempdir().expect("a folder");
        let now = SystemClock::new().now();
        let file = |name: &str| dir.path().join(name);
        let authority =
            Authority::ensure(&file("authd-ca.crt"), &file("authd-ca.key"), "ca", now).expect("a CA");
        let write = |name: &str, pair: PemPair| {
            fs::write(file(&format!("{name}.crt")), pair.cert).expect("the certificate");
            fs::write(file(&format!("{name}.key")), pair.key).expect("the key");
        };
        write("authd", authority.serving(&["127.0.0.1".to_owned()], HOUR, now).expect("a certificate"));
        write("apid", authority.client("apid", &[], HOUR, now).expect("a certificate"));
        write("alice", authority.client("alice", &[], HOUR, now).expect("a certificate"));
        serving::certs::ensure_key(&file("accounts.key")).expect("a key");
        Installation { dir }
    }

    fn flag(&self, flag: &str, file: &str) -> String {
        format!("--{flag}={}", self.dir.path().join(file).display())
    }

    /// The options of an apid that uses the authds in this order, with a client certificate.
    fn apid(&self, etcd: &EtcdServer, ports: [u16; 2], certificate: &str) -> Options {
        let urls = ports.map(|port| format!("https://127.0.0.1:{port}")).join(",");
        Options { shared_dir: Some(self.dir.path().to_owned()), ..Options::kubernetes() }
            .flag("--spawn-authd=false")
            .flag(&format!("--etcd-servers={}", etcd.url()))
            .flag(&format!("--authd-servers={urls}"))
            .flag(&self.flag("authd-cafile", "authd-ca.crt"))
            .flag(&self.flag("authd-certfile", &format!("{certificate}.crt")))
            .flag(&self.flag("authd-keyfile", &format!("{certificate}.key")))
    }
}

/// A shared authd on a port; the drop kills the process.
struct SharedAuthd {
    port: u16,
    flags: Vec<String>,
    log: PathBuf,
    child: Option<Child>,
}

impl SharedAuthd {
    /// An authd that is not started.
    fn new(installation: &Installation, number: usize) -> Self {
        let port = free_port();
        let flags = vec![
            format!("--listen-address=127.0.0.1:{port}"),
            installation.flag("listen-cafile", "authd-ca.crt"),
            installation.flag("listen-certfile", "authd.crt"),
            installation.flag("listen-keyfile", "authd.key"),
            "--listen-allowed-names=apid".to_owned(),
            "--names=kubernetes".to_owned(),
            "--authorization-mode=Node,RBAC".to_owned(),
            installation.flag("token-auth-file", "tokens.csv"),
            installation.flag("service-account-key-file", "accounts.key"),
        ];
        let log = installation.dir.path().join(format!("authd-{number}.log"));
        SharedAuthd { port, flags, log, child: None }
    }

    fn start(&mut self) {
        let log = File::options().create(true).append(true).open(&self.log).expect("the log");
        let mut command = Command::new(program("authd"));
        command.args(&self.flags).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.child = Some(command.spawn().expect("authd starts"));
    }

    /// Sends SIGKILL.
    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for SharedAuthd {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Repeats a request while it has no decision; the time without a decision is bounded.
async fn decided(client: &Client, method: &str, path: &str, body: &Value) -> TestResponse {
    let begin = Instant::now();
    loop {
        let response =
            client.try_request(method, path, &[], &request_body(body)).await.expect("apid answers");
        if response.status != 503 {
            return response;
        }
        assert!(begin.elapsed() < BOUND, "no decision on {method} {path} for {:?}", begin.elapsed());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Number of decision streams that an apid has opened.
fn opened_streams(plane: &ControlPlane) -> usize {
    plane.log().lines().filter(|line| line.contains("decision stream to authd opened")).count()
}

async fn start(etcd: &EtcdServer) -> (Installation, Vec<SharedAuthd>, Vec<ControlPlane>) {
    let installation = Installation::new();
    let mut authds: Vec<SharedAuthd> = (0..2).map(|number| SharedAuthd::new(&installation, number)).collect();
    let ports = [authds[0].port, authds[1].port];
    let orders = [ports, [ports[1], ports[0]]];
    let mut planes: Vec<ControlPlane> = orders
        .into_iter()
        .map(|ports| ControlPlane::new_stopped(installation.apid(etcd, ports, "apid")))
        .collect();
    authds.iter_mut().for_each(SharedAuthd::start);
    for plane in &mut planes {
        plane.launch().await;
    }
    (installation, authds, planes)
}

#[tokio::test(flavor = "multi_thread")]
async fn policy_stays_fresh_while_shared_authds_are_killed() {
    let Some(etcd) = EtcdServer::start(Release::Current, &[]) else { return };
    let (_installation, authds, planes) = start(&etcd).await;
    let rule = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]);
    let admin = planes[0].admin();
    let role = json!({"metadata": {"name": "reader"}, "rules": rule});
    decided(&admin, "POST", &format!("{ROLES}/roles"), &role).await.expect(201);

    let ended = Arc::new(AtomicBool::new(false));
    let kills = Arc::new(AtomicU32::new(0));
    let disturber = {
        let (ended, kills, mut authds) = (Arc::clone(&ended), Arc::clone(&kills), authds);
        tokio::spawn(async move {
            while !ended.load(Ordering::SeqCst) {
                for authd in &mut authds {
                    tokio::time::sleep(Duration::from_millis(700)).await;
                    authd.kill();
                    kills.fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(300)).await;
                    authd.start();
                }
            }
            authds
        })
    };
    let binding = json!({
        "metadata": {"name": "grant"}, "subjects": [{"kind": "User", "name": "alice"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
    });
    let bindings = format!("{ROLES}/rolebindings");
    for round in 0..env_number("ROUNDS", 300) {
        let writer = planes[usize::from(round % 2 == 1)].admin();
        decided(&writer, "POST", &bindings, &binding).await.expect(201);
        for plane in &planes {
            decided(&plane.user("alice"), "GET", MAPS, &Value::Null).await.expect(200);
        }
        decided(&writer, "DELETE", &format!("{bindings}/grant"), &Value::Null).await.expect(200);
        for plane in &planes {
            decided(&plane.user("alice"), "GET", MAPS, &Value::Null).await.expect(403);
        }
    }
    ended.store(true, Ordering::SeqCst);
    let mut authds = disturber.await.expect("the disturber ends");
    assert!(kills.load(Ordering::SeqCst) >= 4, "{} kills", kills.load(Ordering::SeqCst));
    for plane in &planes {
        assert!(opened_streams(plane) > 1, "apid has not gone on to another authd: {}", plane.log());
    }

    // Without any authd, apid decides nothing new. With one of them, all apids go on.
    authds.iter_mut().for_each(SharedAuthd::kill);
    let carol = planes[0].user("carol");
    eventually("apid notices", || async { (carol.get("/version").await.status == 503).then_some(()) }).await;
    assert_eq!(planes[1].user("carol").get("/api/v1/nodes").await.status, 503);
    authds[1].start();
    for plane in &planes {
        decided(&plane.user("carol"), "GET", "/api/v1/nodes", &Value::Null).await.expect(403);
        decided(&plane.admin(), "GET", MAPS, &Value::Null).await.expect(200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn apid_without_an_accepted_certificate_gets_no_decision() {
    let Some(etcd) = EtcdServer::start(Release::Current, &[]) else { return };
    let (installation, authds, planes) = start(&etcd).await;
    planes[0].admin().get(MAPS).await.expect(200);
    let ports = [authds[0].port, authds[1].port];
    let stranger = ControlPlane::new_stopped(installation.apid(&etcd, ports, "alice"));
    let log = File::create(installation.dir.path().join("stranger.log")).expect("a log");
    let mut command = tokio::process::Command::from(stranger.command());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).kill_on_drop(true);
    let _child = command.spawn().expect("apid starts");
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
    eventually("authd refuses the certificate", || async {
        let is_refused = read(&authds[0].log).contains("client certificate with another common name refused");
        let is_logged = read(&installation.dir.path().join("stranger.log")).contains("AccessDenied");
        (is_refused && is_logged).then_some(())
    })
    .await;
    planes[1].admin().get(MAPS).await.expect(200);
}
