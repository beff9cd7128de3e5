//! `apid up --etcd N`: several servers on three members of etcd behind a balancer.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use prerequisites::etcd;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tests::harness::{Client, eventually, program};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// A running `apid up`; the drop sends SIGTERM.
struct Up {
    child: Child,
    data_dir: PathBuf,
    /// The port of the balancer.
    port: u16,
    /// The port and the process id of each server.
    servers: Vec<(u16, i32)>,
}

impl Up {
    /// Starts the command, and waits for its text at readiness; None when the test is skipped.
    fn start(data_dir: &Path) -> Option<Up> {
        let etcd = etcd::newest_programs()?.join("etcd");
        let mut child = Command::new(program("apid"))
            .args(["up", "--etcd", "2", "--secure-port", "0", "--etcd-program"])
            .arg(etcd)
            .arg("--data-dir")
            .arg(data_dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("apid starts");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let (mut port, mut servers, mut output) = (None, Vec::new(), Vec::new());
        let number = |text: &str| {
            text.split(|c: char| !c.is_ascii_digit()).find(|part| !part.is_empty()).map(str::to_owned)
        };
        for line in lines {
            let line = line.expect("a line");
            output.push(line.clone());
            if let Some(rest) = line.strip_prefix("ready at https://127.0.0.1:") {
                port = number(rest).and_then(|port| port.parse().ok());
            } else if line.starts_with("  apid ")
                && let Some((_, rest)) = line.split_once("https://127.0.0.1:")
                && let Some((port, process)) = rest.split_once(", process ")
            {
                servers.push((port.parse().expect("a port"), process.parse().expect("a process id")));
            } else if line.starts_with("Ctrl-C") {
                break;
            }
        }
        let port = port.unwrap_or_else(|| panic!("no address in {output:#?}"));
        assert_eq!(servers.len(), 2, "{output:#?}");
        Some(Up { child, data_dir: data_dir.to_owned(), port, servers })
    }

    fn signal(&self, signal: Signal) {
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    fn admin(&self, port: u16) -> Client {
        let read = |name: &str| fs::read_to_string(self.data_dir.join("certs").join(name)).expect("a file");
        Client::with_certificate(port, &read("admin.crt"), &read("admin.key"))
    }

    /// The command lines of the running processes that use the data directory.
    fn processes(&self) -> Vec<String> {
        let own = self.data_dir.display().to_string();
        let lines = fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| {
            let line = fs::read(entry.path().join("cmdline")).ok()?;
            Some(String::from_utf8_lossy(&line).replace('\0', " "))
        });
        lines.filter(|line| line.contains(&own)).collect()
    }

    async fn wait_for_end(&mut self) -> std::process::ExitStatus {
        eventually("the command ends", || {
            let ended = self.child.try_wait().expect("the child is ours");
            async move { ended }
        })
        .await
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.signal(Signal::TERM);
            let _ = self.child.wait();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_serves_while_a_server_is_killed_and_ends_with_the_command() {
    let dir = tempfile::tempdir().expect("a folder");
    let data_dir = dir.path().join("a cluster");
    let Some(mut up) = Up::start(&data_dir) else { return };
    let kubeconfig = fs::read_to_string(data_dir.join("admin.kubeconfig")).expect("the kubeconfig");
    assert!(kubeconfig.contains(&format!("server: https://127.0.0.1:{}\n", up.port)), "{kubeconfig}");
    let admin = up.admin(up.port);
    let map = |name: &str| json!({"metadata": {"name": name}, "data": {"key": "value"}});
    admin.post(MAPS, &map("before")).await.expect(201);

    // Each server accepts the tokens of the others, and reads their encrypted objects.
    let [(first, first_id), (second, _)] = up.servers[..] else { panic!("two servers") };
    let token = format!("{}/token", "/api/v1/namespaces/default/serviceaccounts/default");
    let issued = up.admin(first).post(&token, &json!({"spec": {}})).await.expect(201);
    let token = issued["status"]["token"].as_str().expect("a token").to_owned();
    let whoami = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let user = Client::new(second, Some(token)).post(whoami, &json!({})).await.expect(201);
    assert_eq!(user["status"]["userInfo"]["username"], "system:serviceaccount:default:default");
    let secrets = "/api/v1/namespaces/default/secrets";
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"word": "hidden"}});
    up.admin(second).post(secrets, &secret).await.expect(201);
    let read = up.admin(first).get(&format!("{secrets}/s")).await.expect(200);
    assert_eq!(read["data"]["word"], "aGlkZGVu");

    kill_process(Pid::from_raw(first_id).expect("a process id"), Signal::KILL).expect("the server runs");
    // The balancer goes on to the other server for each new connection. A connection that the killed process had accepted
    // fails, as at each TCP balancer.
    let mut failed = 0;
    let json_type = [("content-type", "application/json")];
    for number in 0..20 {
        let body = map(&format!("during-{number}")).to_string();
        let create = async || admin.try_request("POST", MAPS, &json_type, body.as_bytes()).await;
        while !create().await.is_ok_and(|answer| answer.status == 201) {
            failed += 1;
            assert!(failed < 3, "{failed} requests failed");
        }
    }
    admin.get(&format!("{MAPS}/before")).await.expect(200);
    let again = up.admin(first);
    eventually("the killed server starts again", || async {
        matches!(again.try_request("GET", "/readyz", &[], b"").await, Ok(answer) if answer.status == 200)
            .then_some(())
    })
    .await;
    again.get(&format!("{MAPS}/during-19")).await.expect(200);

    assert!(up.processes().len() >= 7, "{:#?}", up.processes());
    up.signal(Signal::INT);
    let status = up.wait_for_end().await;
    assert!(status.success(), "{status}");
    assert_eq!(up.processes(), [""; 0]);

    // A second start has the same objects. The processes end even with a killed command.
    let Some(mut up) = Up::start(&data_dir) else { return };
    up.admin(up.port).get(&format!("{MAPS}/before")).await.expect(200);
    up.signal(Signal::KILL);
    up.wait_for_end().await;
    eventually("all processes end", || async { up.processes().is_empty().then_some(()) }).await;
}

#[test]
fn missing_etcd_and_other_store_are_reported() {
    let dir = tempfile::tempdir().expect("a folder");
    let run = |flags: &[&str], path: &str| {
        let output = Command::new(program("apid"))
            .args(["up", "--data-dir"])
            .arg(dir.path())
            .args(flags)
            .env("PATH", path)
            .output()
            .expect("apid runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, text) = run(&["--etcd", "3"], "/nonexistent");
    assert!(code == Some(64) && text.contains("apt-get install etcd-server"), "{code:?} {text}");
    let (code, text) = run(&["--etcd", "0"], "/nonexistent");
    assert!(code == Some(64) && text.contains("1..=9"), "{code:?} {text}");
    fs::create_dir(dir.path().join("store")).expect("a folder");
    let (code, text) = run(&["--etcd", "3", "--etcd-program", "/bin/true"], "");
    assert!(code == Some(64) && text.contains("made without --etcd"), "{code:?} {text}");
}
