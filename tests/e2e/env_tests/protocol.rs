//! The env test program of controller-runtime.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tests::harness::eventually;

use super::{assert_no_process, assets, kill, processes_of};

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
