//! Env tests: controller-runtime's test environment, and private servers for Rust, Python and Go tests.
//!
//! # Contract
//!
//! The programs of `deploy/envtest` take apid from `$APID`. A test that needs a program of another project skips
//! with a line where the program is absent. Each test uses a temporary folder of its own: a process of the test is
//! one whose command line contains this folder.

mod authority;
mod controllers;
mod environment;
mod programs;
mod protocol;
pub mod servers;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;

use tests::harness::eventually;

/// The folder for `KUBEBUILDER_ASSETS`.
fn assets() -> PathBuf {
    let folder = prerequisites::repository().join("deploy/envtest");
    folder.canonicalize().expect("deploy/envtest")
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

fn kill(process: &mut Child) {
    process.kill().expect("a signal");
    process.wait().expect("an exit");
}
