//! `deploy/up`: starts a control plane with one command; Ctrl-C stops it.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use apimachinery::names::{DEFAULT_API_DOMAIN, Names, Preset};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use tests::harness::{Client, eventually, program};

/// The process of the script; the drop sends the stop signal.
struct UpScript {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl UpScript {
    fn start(preset: Preset, data_dir: &Path, flags: &[&str]) -> UpScript {
        let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../deploy/up");
        let target = program("apid").parent().and_then(Path::parent).expect("target/<profile>").to_owned();
        let mut child = Command::new(script)
            .env("PROFILE", "dev")
            .env("CARGO_TARGET_DIR", target)
            .args(["--names", preset.as_str(), "--secure-port", "0", "--data-dir"])
            .arg(data_dir)
            .arg("--")
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the script starts");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        UpScript { child, lines }
    }

    /// Returns the output lines up to and including the first line with this prefix.
    fn read_until(&mut self, begin: &str) -> Vec<String> {
        let mut read = Vec::new();
        for line in self.lines.by_ref() {
            read.push(line.expect("a line"));
            if read.last().is_some_and(|line| line.starts_with(begin)) {
                return read;
            }
        }
        panic!("the script exited before the line `{begin}`: {read:#?}");
    }

    fn signal(&self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
}

impl Drop for UpScript {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.signal();
            let _ = self.child.wait();
        }
    }
}

#[tokio::test]
async fn deploy_up_starts_server_and_prints_usage() {
    for (preset, words) in
        [(Preset::Svc, ["curl", "--names kubernetes"]), (Preset::Kubernetes, ["kubectl", "whoami"])]
    {
        let dir = tempfile::tempdir().expect("a folder");
        let data = dir.path().join("a folder");
        let mut up = UpScript::start(preset, &data, &["--v=1"]);
        let lines = up.read_until("Ctrl-C").join("\n");
        assert!(lines.contains("ready at https://127.0.0.1:"), "{lines}");
        assert!(words.iter().all(|word| lines.contains(word)), "{lines}");
        assert!(lines.contains(r"a\ folder/"), "printed paths are quoted: {lines}");

        let read = |name: &str| std::fs::read_to_string(data.join(name)).expect("a file");
        let config = read("admin.kubeconfig");
        assert!(
            config.contains("client-key-data: ") && config.contains("server: https://127.0.0.1:"),
            "{config}"
        );
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &std::fs::metadata(data.join("admin.kubeconfig")).expect("a file").permissions(),
        );
        assert_eq!(mode & 0o777, 0o600, "only the owner can read the key");

        let port = read("apid.port").trim().parse().expect("a port");
        let admin = Client::with_certificate(port, &read("certs/admin.crt"), &read("certs/admin.key"));
        admin.get("/api/v1/namespaces").await.expect(200);
        Client::new(port, None).get("/api/v1/namespaces").await.expect(403);

        check_cluster_info(&admin, port, preset, &read("certs/ca.crt")).await;

        up.signal();
        let ended = eventually("the script exits", || {
            let ended = up.child.try_wait().expect("the child is ours");
            async move { ended }
        })
        .await;
        assert!(ended.success(), "{ended}");
        assert!(
            admin.try_request("GET", "/livez", &[], b"").await.is_err(),
            "no process listens on the port"
        );
    }
}

/// Checks that anonymous clients read server address, CA bundle and signature from `cluster-info`.
async fn check_cluster_info(admin: &Client, port: u16, preset: Preset, authority: &str) {
    let names = Names::new(preset, DEFAULT_API_DOMAIN).expect("valid names");
    let info = format!("/api/v1/namespaces/{}/configmaps/cluster-info", names.public_namespace);
    let secret = json!({"metadata": {"name": "bootstrap-token-abcdef"},
        "type": names.label_sub_key("bootstrap", "token"),
        "stringData": {"token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-signing": "true"}});
    let secrets = format!("/api/v1/namespaces/{}/secrets", names.system_namespace);
    admin.post(&secrets, &secret).await.expect(201);
    let anybody = Client::new(port, None);
    let data = eventually("cluster-info is published and signed", || async {
        let info = anybody.get(&info).await;
        (info.status == 200)
            .then(|| info.json()["data"].clone())
            .filter(|data| data["jws-kubeconfig-abcdef"].is_string())
    })
    .await;
    let config = data["kubeconfig"].as_str().expect("a configuration");
    assert!(
        config.contains("kind: Config\n") && config.contains(&format!("server: https://127.0.0.1:{port}\n")),
        "{config}"
    );
    assert!(
        config.contains(&format!("certificate-authority-data: {}", STANDARD.encode(authority))),
        "{config}"
    );
    let root = "/api/v1/namespaces/default/configmaps/kube-root-ca.crt";
    eventually("the published CA bundle", || async {
        (admin.get(root).await.json()["data"]["ca.crt"] == authority).then_some(())
    })
    .await;
}

#[test]
fn deploy_up_with_invalid_flag_exits_64() {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../deploy/up");
    for arguments in [&["--names", "other"][..], &["--nope"], &["--data-dir"]] {
        let ended =
            Command::new(&script).args(arguments).stderr(Stdio::null()).status().expect("the program runs");
        assert_eq!(ended.code(), Some(64), "{arguments:?}");
    }
}
