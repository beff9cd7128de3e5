//! Env tests: controller-runtime's test environment, and private servers for Rust, Python and Go tests.
//!
//! # Contract
//!
//! The programs of `deploy/envtest` take apid from `$APID`. A test that needs a program of another project skips
//! with a line where the program is absent. Each test uses a temporary folder of its own: a process of the test is
//! one whose command line contains this folder.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use testenv::Server;
use tests::harness::{Client, eventually, program};

/// Starts a private server with the programs of this build.
pub fn test_server() -> Server {
    let authd = format!("--authd-program={}", program("authd").display());
    assert!(program("apid").is_file());
    Server::start_with_flags(&[authd]).unwrap_or_else(|error| panic!("{error}"))
}

/// The folder for `KUBEBUILDER_ASSETS`.
fn assets() -> PathBuf {
    let folder = prerequisites::repository().join("deploy/envtest");
    folder.canonicalize().expect("deploy/envtest")
}

/// The env test program of controller-runtime, unpacked; None when the test is skipped.
fn envtest_program(folder: &Path) -> Option<PathBuf> {
    let packed = prerequisites::clients()?.join("envtest/envtest.xz");
    let path = folder.join("envtest.test");
    let file = fs::File::create(&path).expect("the unpacked program");
    let unpacked = Command::new("xz").arg("-dc").arg(&packed).stdout(file).status();
    if !unpacked.is_ok_and(|status| status.success()) {
        prerequisites::skip("xz", "xz is not installed");
        return None;
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("an executable");
    Some(path)
}

/// The command of the env test with a temporary folder of its own.
fn envtest(program: &Path, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .arg("-test.v")
        .env("KUBEBUILDER_ASSETS", assets())
        .env("APID", tests::harness::program("apid"))
        .env("TMPDIR", folder)
        .env("HOME", folder)
        .env_remove("KUBECONFIG")
        .current_dir(folder)
        .stdin(Stdio::null());
    command
}

/// The process ids whose command line contains a folder, without ended ones.
fn processes_of(folder: &Path) -> Vec<u32> {
    let folder = folder.display().to_string();
    let entries = fs::read_dir("/proc").expect("/proc").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&folder)
    })
    .collect()
}

async fn assert_no_process(folder: &Path) {
    eventually("no process of the test is left", || async { processes_of(folder).is_empty().then_some(()) })
        .await;
}

/// Runs the env test with further variables; returns its output.
async fn run_envtest(variables: &[(&str, &str)]) -> Option<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let program = envtest_program(folder.path())?;
    let temporary = folder.path().join("tmp");
    fs::create_dir(&temporary).expect("a folder");
    let mut command = envtest(&program, &temporary);
    command.envs(variables.iter().copied());
    let output = tokio::task::spawn_blocking(move || command.output()).await.expect("the task");
    let output = output.expect("the env test starts");
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}");
    for line in ["started in", "reconciled in", "stopped in"] {
        let line =
            text.lines().find(|text| text.contains(line)).unwrap_or_else(|| panic!("{line} in {text}"));
        println!("{line}");
    }
    assert_no_process(&temporary).await;
    Some(text)
}

#[tokio::test(flavor = "multi_thread")]
async fn controller_runtime_env_test_passes_unchanged() {
    run_envtest(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn controller_runtime_env_test_with_users_and_definitions_passes() {
    let definitions = Path::new(env!("CARGO_MANIFEST_DIR")).join("e2e/helm/chart/crds");
    let definitions = definitions.display().to_string();
    if let Some(text) = run_envtest(&[("USERS", "1"), ("CRDS", &definitions)]).await {
        assert!(text.contains("joe: ") && text.contains("forbidden"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_process_is_left_after_sigkill_of_env_test() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(program) = envtest_program(folder.path()) else { return };
    let temporary = folder.path().join("tmp");
    fs::create_dir(&temporary).expect("a folder");
    let mut running =
        envtest(&program, &temporary).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a process");
    // The three processes are etcd, kube-apiserver and authd.
    eventually("three processes run", || async { (processes_of(&temporary).len() >= 3).then_some(()) }).await;
    kill(&mut running);
    assert_no_process(&temporary).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn env_test_programs_end_with_their_parent() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = r#""$0"/etcd --data-dir "$1/etcd" --listen-client-urls=http://127.0.0.1:0 &
        "$0"/kube-apiserver --data-dir "$1/data" --bind-address=127.0.0.1 --secure-port=0 --authorization-mode=RBAC &
        wait"#;
    let mut shell = Command::new("sh")
        .args(["-c", script])
        .arg(assets())
        .arg(folder.path())
        .env("APID", program("apid"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("a shell");
    // The four processes are the shell itself, etcd, kube-apiserver and authd.
    eventually("all processes run", || async {
        let is_bound = folder.path().join("data/apid.port").exists();
        (is_bound && processes_of(folder.path()).len() == 4).then_some(())
    })
    .await;
    kill(&mut shell);
    assert_no_process(folder.path()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn env_test_program_ends_if_its_parent_ended_before_its_start() {
    if Command::new("setsid").arg("--version").output().is_err() {
        return prerequisites::skip("setsid", "setsid is not installed");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let waiting_apid = folder.path().join("waiting-apid");
    let script = format!(
        r#"#!/bin/sh
        touch "{folder}/started"
        until [ -e "{folder}/parent-has-ended" ]; do sleep 0.01; done
        exec "{apid}" "$@"
        "#,
        folder = folder.path().display(),
        apid = program("apid").display()
    );
    fs::write(&waiting_apid, script).expect("a script");
    fs::set_permissions(&waiting_apid, fs::Permissions::from_mode(0o755)).expect("an executable");
    // setsid makes the program the leader of a session, so only `--parent-id` reveals the new parent.
    let script = r#"setsid "$0"/etcd --data-dir "$1/etcd" --listen-client-urls=http://127.0.0.1:0 & wait"#;
    let errors = folder.path().join("errors");
    let mut shell = Command::new("sh")
        .args(["-c", script])
        .arg(assets())
        .arg(folder.path())
        .env("APID", &waiting_apid)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(&errors).expect("a file"))
        .spawn()
        .expect("a shell");
    let started = folder.path().join("started");
    eventually("the program starts", || async { started.exists().then_some(()) }).await;
    kill(&mut shell);
    fs::write(folder.path().join("parent-has-ended"), "").expect("a file");
    eventually("the program reports that its parent ended", || async {
        let text = fs::read_to_string(&errors).unwrap_or_default();
        text.contains("ended before the start").then_some(())
    })
    .await;
    assert_no_process(folder.path()).await;
}

fn kill(process: &mut Child) {
    process.kill().expect("a signal");
    process.wait().expect("an exit");
}

#[tokio::test(flavor = "multi_thread")]
async fn kube_apiserver_rejects_a_real_etcd_and_lists_flags_in_help() {
    let run = |arguments: &[&str]| {
        let mut command = Command::new(assets().join("kube-apiserver"));
        command.args(arguments).env("APID", program("apid")).stdin(Stdio::null()).output().expect("a process")
    };
    let help = run(&["--help"]);
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    let has = |flag: &str| help.lines().any(|line| line.trim_start().starts_with(&format!("--{flag} ")));
    assert!(has("etcd-servers") && has("secure-port") && !has("insecure-port"), "{help}");
    // No server listens on port 1.
    let output = run(&["--etcd-servers=http://127.0.0.1:1"]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(64), "{errors}");
    assert!(
        errors.contains("--etcd-servers=http://127.0.0.1:1") && errors.contains("no etcd cluster"),
        "{errors}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn testenv_server_is_ready_and_leaves_nothing_behind() {
    let server = test_server();
    let (folder, pid) = (server.directory().to_owned(), server.pid());
    let port = server.url().rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
    let client = Client::new(port, Some(server.token().to_owned()));
    client.get("/readyz").await.expect(200);
    client.get("/api/v1/namespaces/default").await.expect(200);
    let kubeconfig = fs::read_to_string(server.kubeconfig()).expect("a kubeconfig");
    assert!(kubeconfig.contains(server.url()) && server.certificate_authority().is_file(), "{kubeconfig}");
    drop(server);
    assert!(!folder.exists() && !Path::new(&format!("/proc/{pid}")).exists());
    assert_no_process(&folder).await;
}

#[test]
fn testenv_server_with_invalid_flag_reports_the_mistake() {
    let error = Server::start_with_flags(&["--nope"]).map(drop).expect_err("an unknown flag");
    assert!(error.to_string().contains("unknown flag `--nope`"), "{error}");
}

const PYTHON: &str = r#"
import json, os, ssl, sys, urllib.request
sys.path.insert(0, sys.argv[1])
import apid_testenv
with apid_testenv.Server() as server:
    config = json.load(open(server.kubeconfig))
    assert config["clusters"][0]["cluster"]["server"] == server.url
    trust = ssl.create_default_context(cafile=server.certificate_authority)
    request = urllib.request.Request(server.url + "/api/v1/namespaces", headers={"Authorization": "Bearer " + server.token})
    names = [item["metadata"]["name"] for item in json.load(urllib.request.urlopen(request, context=trust))["items"]]
    assert "kube-system" in names, names
assert not os.path.exists(server.directory)
try:
    apid_testenv.Server("--nope")
except RuntimeError as error:
    assert "unknown flag `--nope`" in str(error), error
else:
    raise AssertionError("the server started")
"#;

#[tokio::test(flavor = "multi_thread")]
async fn python_helper_starts_and_stops_a_server() {
    if Command::new("python3").arg("--version").output().is_err() {
        return prerequisites::skip("python3", "python3 is not installed");
    }
    let mut command = Command::new("python3");
    command.args(["-c", PYTHON]).arg(assets()).env("APID", program("apid"));
    let output =
        tokio::task::spawn_blocking(move || command.output()).await.expect("the task").expect("python3");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

const GO: &str = r#"package main

import (
	"fmt"
	"os"

	"example.com/session/testenv"
)

func main() {
	server, err := testenv.Start()
	if err != nil {
		panic(err)
	}
	if _, err := os.Stat(server.Kubeconfig); err != nil {
		panic(err)
	}
	if err := server.Stop(); err != nil {
		panic(err)
	}
	if _, err := os.Stat(server.Directory); err == nil {
		panic("the folder exists after the stop")
	}
	_, err = testenv.Start("--nope")
	fmt.Println(server.URL, err)
}
"#;

#[tokio::test(flavor = "multi_thread")]
async fn go_helper_starts_and_stops_a_server() {
    let venv = prerequisites::repository().join("target/python/bin/go");
    let go = if venv.is_file() { venv } else { PathBuf::from("go") };
    if Command::new(&go).arg("version").output().is_err() {
        return prerequisites::skip("go", "go is not installed");
    }
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("testenv")).expect("a folder");
    fs::copy(assets().join("testenv.go"), folder.path().join("testenv/testenv.go")).expect("a copy");
    fs::write(folder.path().join("go.mod"), "module example.com/session\n\ngo 1.21\n").expect("a file");
    fs::write(folder.path().join("main.go"), GO).expect("a file");
    let mut command = Command::new(go);
    command
        .args(["run", "."])
        .current_dir(folder.path())
        .env("APID", program("apid"))
        .env("GOCACHE", folder.path().join("cache"))
        .env("GOFLAGS", "-mod=mod")
        .env("GOTOOLCHAIN", "local")
        .env("GOPROXY", "off");
    let output = tokio::task::spawn_blocking(move || command.output()).await.expect("the task").expect("go");
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{errors}");
    assert!(text.contains("https://127.0.0.1:") && text.contains("unknown flag `--nope`"), "{text}");
}

/// Maximum time that stopping a server of the test environment may take.
const MAX_STOP_TIME: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread")]
async fn testenv_server_with_open_watch_stops_at_once() {
    let server = test_server();
    let port = server.url().rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
    let client = Client::new(port, Some(server.token().to_owned()));
    let mut watch = client.watch("/api/v1/namespaces?watch=1").await;
    let begin = std::time::Instant::now();
    let (stopped, ()) = tokio::join!(tokio::task::spawn_blocking(move || drop(server)), async {
        while watch.next().await.is_some() {}
    });
    stopped.expect("the task");
    assert!(begin.elapsed() < MAX_STOP_TIME, "{:?}", begin.elapsed());
}
