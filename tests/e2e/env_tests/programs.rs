//! The programs of env tests: they end with their parent, and reject a real etcd.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use tests::harness::{eventually, program};

use super::{assert_no_process, assets, kill, processes_of};

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
