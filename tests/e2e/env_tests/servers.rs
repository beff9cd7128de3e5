//! Private servers: `apid test-server` through its helpers for Rust, Python and Go.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use testenv::Server;
use tests::harness::{Client, program};

use super::{assert_no_process, assets};

/// Starts a private server with the programs of this build.
pub fn test_server() -> Server {
    let authd = format!("--authd-program={}", program("authd").display());
    assert!(program("apid").is_file());
    Server::start_with_flags(&[authd]).unwrap_or_else(|error| panic!("{error}"))
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
fn testenv_server_with_invalid_flag_reports_the_error() {
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
