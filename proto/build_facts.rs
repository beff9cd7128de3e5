//! Records commit, date and compiler for the build scripts of apid and authd.
//!
//! # Contract
//!
//! A release build has the commit of the work tree, and the date of `SOURCE_DATE_EPOCH` or of the build. Other
//! builds have neither, so a commit recompiles nothing. Sources within the repository of a different project
//! have no commit.
//!
//! The mark `-dirty` of uncommitted changes is a hint. It is determined again only after a commit or a
//! checkout, because a check at each build would recompile the programs. The variable `BUILD_COMMIT` replaces
//! the commit and the mark.

use std::env;
use std::path::Path;
use std::process::Command;

/// Sets the variables `BUILD_COMMIT`, `BUILD_SECONDS` and `BUILD_COMPILER` of the compilation. `root` is the
/// root of this repository, relative to the package.
pub(crate) fn record(root: &str) {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=SOURCE_DATE_EPOCH");
    println!("cargo::rerun-if-env-changed=BUILD_COMMIT");
    let is_release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let commit = env::var("BUILD_COMMIT").ok().or_else(|| is_release.then(|| commit(root)).flatten());
    println!("cargo::rustc-env=BUILD_COMMIT={}", commit.unwrap_or_default());
    let epoch = env::var("SOURCE_DATE_EPOCH").ok().map(|text| text.trim().to_owned());
    let seconds = epoch.and_then(|text| text.parse::<u64>().ok());
    let seconds = seconds.or_else(|| is_release.then(seconds_now).flatten());
    println!(
        "cargo::rustc-env=BUILD_SECONDS={}",
        seconds.map(|seconds| seconds.to_string()).unwrap_or_default()
    );
    let rustc = env::var("RUSTC").ok().and_then(|rustc| output(&rustc, &["--version"]));
    println!("cargo::rustc-env=BUILD_COMPILER={}", rustc.unwrap_or_default());
}

/// The commit of the work tree, with `-dirty` for uncommitted changes. None outside the repository of this
/// project.
fn commit(root: &str) -> Option<String> {
    let root = Path::new(&env::var("CARGO_MANIFEST_DIR").ok()?).join(root).canonicalize().ok()?;
    let top = output("git", &["rev-parse", "--show-toplevel"])?;
    if Path::new(&top).canonicalize().ok()? != root {
        return None;
    }
    // A commit or a checkout changes these files. The index is not among them: `git status` writes it.
    for path in ["HEAD", "logs/HEAD"] {
        if let Some(file) = output("git", &["rev-parse", "--path-format=absolute", "--git-path", path]) {
            println!("cargo::rerun-if-changed={file}");
        }
    }
    let commit = output("git", &["rev-parse", "HEAD"])?;
    let is_dirty = output("git", &["status", "--porcelain", "--untracked-files=no"])
        .is_none_or(|changes| !changes.is_empty());
    Some(if is_dirty { format!("{commit}-dirty") } else { commit })
}

#[expect(clippy::disallowed_methods, reason = "the date of the build is the time of the machine")]
fn seconds_now() -> Option<u64> {
    let now = std::time::SystemTime::now();
    now.duration_since(std::time::UNIX_EPOCH).ok().map(|since| since.as_secs())
}

/// Runs a program and returns its standard output; None if the program fails.
fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
