//! `deploy/up` and `apid up`: a control plane with one command; Ctrl-C stops it.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use apimachinery::names::{DEFAULT_API_DOMAIN, Names, Preset};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use tests::harness::{Client, build_folder, eventually, program};

/// The process of the script; the drop sends the stop signal.
struct UpScript {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/up");

/// The environment with which the script uses the programs of the tests. Without them it builds release programs.
fn built_programs() -> [(&'static str, PathBuf); 2] {
    let target = build_folder().parent().expect("target").to_owned();
    [("PROFILE", "dev".into()), ("CARGO_TARGET_DIR", target)]
}

impl UpScript {
    fn start(preset: Preset, data_dir: &Path, flags: &[&str]) -> UpScript {
        // A shell without job control ignores SIGINT in its background jobs; the script inherits that.
        let background = "trap '' INT; exec \"$0\" \"$@\"";
        let mut child = Command::new("bash")
            .args(["-c", background])
            .arg(SCRIPT)
            .envs(built_programs())
            .args(["--names", preset.as_str(), "--secure-port", "0", "--data-dir"])
            .arg(data_dir)
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
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
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
        let mut up = UpScript::start(preset, &data, &["--", "--v=1"]);
        let lines = up.read_until("Ctrl-C").join("\n");
        assert!(lines.contains("ready at https://127.0.0.1:"), "{lines}");
        assert!(words.iter().all(|word| lines.contains(word)), "{lines}");
        assert!(lines.contains("'") && lines.contains("a folder/"), "printed paths are quoted: {lines}");

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

/// Returns the client certificate of a context in the kubeconfig.
fn certificate_of(config: &str, user: &str, port: u16) -> Client {
    let begin = config.find(&format!("- name: {user}\n  user:\n")).expect("the user");
    let field = |name: &str| {
        let rest = &config[begin..];
        let value = &rest[rest.find(name).expect("the field") + name.len()..];
        let bytes = STANDARD.decode(value.lines().next().expect("a line").trim()).expect("base64");
        String::from_utf8(bytes).expect("PEM")
    };
    Client::with_certificate(port, &field("client-certificate-data:"), &field("client-key-data:"))
}

#[tokio::test]
async fn demo_users_have_different_rights_and_the_policy_denies() {
    for preset in [Preset::Kubernetes, Preset::Svc] {
        let dir = tempfile::tempdir().expect("a folder");
        let data = dir.path().join("data");
        for start in 0..2 {
            let mut up = UpScript::start(preset, &data, &["--demo"]);
            let lines = up.read_until("Ctrl-C").join("\n");
            assert!(!lines.contains("not created"), "start {start}: {lines}");
            let read = |name: &str| std::fs::read_to_string(data.join(name)).expect("a file");
            let (config, port) =
                (read("admin.kubeconfig"), read("apid.port").trim().parse().expect("a port"));
            let [alice, bob] = ["alice", "bob"].map(|user| certificate_of(&config, user, port));
            let jane = Client::new(port, Some(read("jane.token")));
            let orders = "/apis/demo.example.com/v1/namespaces/shop/orders";
            let tea = format!("{orders}/tea");
            for client in [&alice, &bob] {
                client.get(&tea).await.expect(200);
            }
            eventually("authd knows the issuer", || async {
                (jane.get(&tea).await.status == 200).then_some(())
            })
            .await;
            bob.delete(&tea).await.expect(403);
            jane.delete(&tea).await.expect(403);
            jane.get("/api/v1/namespaces/shop/configmaps").await.expect(403);
            let order = |item: &str, quantity: u32| {
                json!({"apiVersion": "demo.example.com/v1", "kind": "Order",
                    "metadata": {"name": format!("{item}-{quantity}-{start}")}, "spec": {"item": item, "quantity": quantity}})
            };
            jane.post(orders, &order("milk", 3)).await.expect(201);
            let denied = alice.post(orders, &order("milk", 50)).await;
            assert!(denied.status == 422 && denied.text().contains("more than 10"), "{}", denied.text());
            let invalid = alice.post(orders, &order("coffee", 4)).await;
            assert!(
                invalid.status == 422 && invalid.text().contains("coffee is rationed"),
                "{}",
                invalid.text()
            );
            alice.get("/api/v1/namespaces/default/configmaps").await.expect(403);
            let log = read("apid.log");
            assert!(log.contains("serving requests") && log.contains("authd is serving"), "{log}");
            up.signal();
            eventually("the command exits", || {
                let ended = up.child.try_wait().expect("the child is ours");
                async move { ended }
            })
            .await;
        }
    }
}

/// Runs a line of the shell with the programs, the plugins of kubectl and a kubeconfig; returns its output.
fn run_printed_line(line: &str, kubeconfig: &Path) -> String {
    let plugins = Path::new(SCRIPT).parent().expect("deploy").to_owned();
    let programs = program("authd").parent().expect("a folder").to_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = [plugins, programs].into_iter().chain(std::env::split_paths(&path));
    let output = Command::new("bash")
        .args(["-c", line])
        .env("PATH", std::env::join_paths(folders).expect("folders"))
        .env("KUBECONFIG", kubeconfig)
        .env("HOME", kubeconfig.parent().expect("a folder"))
        .output()
        .expect("bash runs");
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[tokio::test]
async fn printed_commands_of_the_demo_work_under_both_presets() {
    if Command::new("kubectl").arg("version").arg("--client").output().is_err() {
        return prerequisites::skip("kubectl", "no kubectl on PATH");
    }
    for preset in [Preset::Kubernetes, Preset::Svc] {
        let dir = tempfile::tempdir().expect("a folder");
        let mut up = UpScript::start(preset, dir.path(), &["--demo"]);
        let lines = up.read_until("Ctrl-C");
        let commands: Vec<&str> = lines
            .iter()
            .filter_map(|line| line.strip_prefix("  "))
            .filter(|line| line.starts_with("kubectl") || line.starts_with("authd"))
            .collect();
        let expected =
            ["green tea", "configmap/hours created", "Forbidden", "green tea", "order-limit", "denied"];
        assert_eq!(commands.len(), expected.len(), "{lines:#?}");
        for (command, expected) in commands.into_iter().zip(expected) {
            // The token of jane is rejected until authd knows the issuer.
            eventually(command, || async {
                run_printed_line(command, &dir.path().join("admin.kubeconfig"))
                    .contains(expected)
                    .then_some(())
            })
            .await;
        }
    }
}

/// Runs `apid up` that fails, and returns its errors.
fn run_failing_up(data_dir: &Path, port: u16) -> String {
    let output = Command::new(program("apid"))
        .args(["up", "--secure-port", &port.to_string(), "--data-dir"])
        .arg(data_dir)
        .stdin(Stdio::null())
        .output()
        .expect("the program runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    text
}

#[test]
fn up_that_fails_prints_the_reason_from_the_log() {
    let dir = tempfile::tempdir().expect("a folder");
    let data = unpack_old_store(dir.path());
    std::fs::write(data.join("store/fjall/version"), b"FJL\x04").expect("a file");
    let text = run_failing_up(&data, 0);
    assert!(text.contains("newer than the known format") && text.contains("apid.log"), "{text}");
}

#[test]
fn up_on_a_port_in_use_fails_with_advice_before_it_writes() {
    let dir = tempfile::tempdir().expect("a folder");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port();
    let text = run_failing_up(dir.path(), port);
    assert!(
        text.contains(&format!("cannot listen on 127.0.0.1:{port}")) && text.contains("--secure-port"),
        "{text}"
    );
    assert_eq!(std::fs::read_dir(dir.path()).expect("a folder").count(), 0, "{text}");
}

#[test]
fn unknown_command_and_help_name_the_commands() {
    let run = |name: &str, arguments: &[&str]| {
        let output = Command::new(program(name)).args(arguments).output().expect("the program runs");
        let text =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        (output.status.code(), text)
    };
    for (name, word, nearest) in [("apid", "stor", "`store`"), ("authd", "matrx", "`matrix`")] {
        let (code, text) = run(name, &[word]);
        assert!(code == Some(64) && text.lines().count() == 1 && text.contains(nearest), "{text}");
        let (code, text) = run(name, &["foo"]);
        assert!(
            code == Some(64) && text.lines().count() == 1 && text.contains("the commands are "),
            "{text}"
        );
        let (help, flag) = (run(name, &["help"]), run(name, &["--help"]));
        assert!(help == flag && help.0 == Some(0) && help.1.contains("\nCommands:\n  "), "{}", help.1);
        assert_eq!(run(name, &["completion", "bash"]).0, Some(0));
        assert!(run(name, &["man"]).1.contains(".TH"));
    }
}

#[test]
fn deploy_up_with_invalid_flag_exits_64() {
    for arguments in [&["--names", "other"][..], &["--nope"], &["--data-dir"]] {
        let mut up = Command::new(SCRIPT);
        up.args(arguments).envs(built_programs()).stderr(Stdio::null());
        let ended = up.status().expect("the program runs");
        assert_eq!(ended.code(), Some(64), "{arguments:?}");
    }
}

/// Unpacks a store of an earlier release into a folder.
fn unpack_old_store(dir: &Path) -> PathBuf {
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("e2e/upgrade/store-0.1.0.tar.xz");
    let status = Command::new("tar").arg("-xJf").arg(archive).arg("-C").arg(dir).status().expect("tar runs");
    assert!(status.success());
    dir.join("data")
}

/// Starts the server on a data directory and checks the objects of the earlier release.
async fn check_old_objects(data: &Path) {
    let mut up = UpScript::start(Preset::Kubernetes, data, &[]);
    let lines = up.read_until("Ctrl-C").join("\n");
    let read = |name: &str| std::fs::read_to_string(data.join(name)).expect("a file");
    let port = read("apid.port").trim().parse().expect("a port");
    let admin = Client::with_certificate(port, &read("certs/admin.crt"), &read("certs/admin.key"));
    let first = admin.get("/api/v1/namespaces/shop/configmaps/cm-1").await.expect(200);
    assert_eq!(first["data"]["n"], "one", "{lines}");
    assert_eq!(first["metadata"]["uid"], "62d053af-7248-434f-9628-cdf99dddd9ee");
    assert_eq!(first["metadata"]["resourceVersion"], "218");
    admin.get("/api/v1/namespaces/shop/configmaps/cm-5").await.expect(404);
    let secret = admin.get("/api/v1/namespaces/shop/secrets/s").await.expect(200);
    assert_eq!(secret["data"]["password"], STANDARD.encode("old-release"));
    let order = admin.get("/apis/demo.example.com/v1/namespaces/shop/orders/tea").await.expect(200);
    assert_eq!(order["spec"]["item"], "green");
    let patch = json!({"data": {"n": "two"}});
    admin
        .patch("/api/v1/namespaces/shop/configmaps/cm-1", "application/merge-patch+json", &patch)
        .await
        .expect(200);
}

#[tokio::test]
async fn store_of_the_last_release_is_opened_with_all_objects() {
    let dir = tempfile::tempdir().expect("a folder");
    let data = unpack_old_store(dir.path());
    check_old_objects(&data).await;
}

#[tokio::test]
async fn backup_of_the_last_release_is_restored() {
    let dir = tempfile::tempdir().expect("a folder");
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("e2e/upgrade/store-0.1.0.backup.gz");
    let backup = dir.path().join("backup");
    let unpacked = Command::new("gzip").arg("-dc").arg(archive).output().expect("gzip runs");
    std::fs::write(&backup, unpacked.stdout).expect("a file");
    let data = dir.path().join("data");
    let output = Command::new(program("apid"))
        .args(["store", "restore", "--data-dir"])
        .arg(&data)
        .arg("--from")
        .arg(&backup)
        .output()
        .expect("the program runs");
    assert!(output.status.success(), "{output:?}");
    check_old_objects(&data).await;
}

#[test]
fn store_of_newer_release_is_rejected_without_a_change() {
    let dir = tempfile::tempdir().expect("a folder");
    let data = unpack_old_store(dir.path());
    std::fs::write(data.join("store/fjall/version"), b"FJL\x04").expect("a file");
    let content = || {
        let mut files = Vec::new();
        let mut folders = vec![data.join("store")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    files.push((path.clone(), std::fs::read(&path).expect("a file")));
                }
            }
        }
        files.sort();
        files
    };
    let before = content();
    for arguments in [
        &["--spawn-authd", "--names=kubernetes", "--secure-port=0", "--bind-address=127.0.0.1"][..],
        &["store", "check"],
        &["store", "repair"],
        &["store", "backup", "--to=/nowhere/file"],
    ] {
        let mut command = Command::new(program("apid"));
        let output = command.args(arguments).arg("--data-dir").arg(&data).output().expect("the program runs");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {text}");
        assert!(
            text.contains("newer than the known format") && !text.contains("damaged"),
            "{arguments:?}: {text}"
        );
        assert!(content() == before, "{arguments:?} changes the store");
    }
}
