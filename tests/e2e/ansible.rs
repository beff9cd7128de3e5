//! Ansible with the Kubernetes preset: the modules `k8s`, `k8s_scale` and `k8s_info` of `kubernetes.core`.
//!
//! The test skips without Ansible: `ansible-playbook` of `target/ansible` or on PATH, with the collection.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use testenv::Server;

use crate::e2e::env_tests::servers::test_server;

/// Path of `ansible-playbook`, or `None` if the test is skipped.
fn ansible_playbook() -> Option<PathBuf> {
    let root = prerequisites::repository();
    let on_path = std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect::<Vec<_>>());
    let folders = [root.join("target/ansible/bin")].into_iter().chain(on_path.unwrap_or_default());
    let found = folders.map(|folder| folder.join("ansible-playbook")).find(|file| file.is_file());
    if found.is_none() {
        let reason = "no `ansible-playbook` in target/ansible/bin or on PATH; see tests/README.md";
        prerequisites::skip("ansible", reason);
    }
    found
}

/// Runs a playbook that must succeed.
fn play(program: &Path, server: &Server, playbook: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("e2e/ansible").join(playbook);
    let folder = server.directory();
    let output = Command::new(program)
        .args(["--inventory", "localhost,", "--connection", "local"])
        .arg(file)
        .env("K8S_AUTH_KUBECONFIG", server.kubeconfig())
        .env("ANSIBLE_HOME", folder.join("ansible"))
        .env("ANSIBLE_LOCALHOST_WARNING", "false")
        .env("ANSIBLE_PYTHON_INTERPRETER", program.with_file_name("python3"))
        .env("HOME", folder)
        .stdin(Stdio::null())
        .output()
        .expect("ansible-playbook starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{playbook}: {text}\n{errors}");
}

/// `k8s_scale` sends a merge patch whose kind is that of the workload to the subresource `scale`.
#[tokio::test(flavor = "multi_thread")]
async fn ansible_creates_and_scales_workloads() {
    let Some(program) = ansible_playbook() else { return };
    let server = test_server();
    tokio::task::block_in_place(|| play(&program, &server, "scale.yaml"));
}
