//! Prerequisites of tests that a machine may lack: recorded exchanges, programs, kernel features.
//!
//! # Contract
//!
//! A test without its prerequisite calls [`skip`] and returns. [`skip`] prints a line. In CI, where [`ALLOWED_SKIPS`] names a
//! file, a skip fails unless the file lists the prerequisite. A skipped test therefore never passes by accident.
//!
//! | variable | value |
//! |---|---|
//! | `CONFORMANCE_DIR` | folder of the recorded exchanges, relative to the repository; `none` skips their tests as the prerequisite `recordings`; default `../shared/conformance` |
//! | `ALLOWED_SKIPS` | file with one line for each prerequisite that CI may lack |
//! | `SKIPPED` | file that receives a line for each skip, so that CI names all skips at its end |

#![expect(clippy::panic, reason = "a test fails by panicking")]

use std::io::Write as _;
use std::path::{Path, PathBuf};

pub mod etcd;

/// The environment variable that names the file of allowed skips.
pub const ALLOWED_SKIPS: &str = "ALLOWED_SKIPS";

/// The environment variable that names the file of skips.
const SKIPPED: &str = "SKIPPED";

/// The environment variable that names the folder of recorded exchanges.
const CONFORMANCE_DIR: &str = "CONFORMANCE_DIR";

/// The folder of recorded exchanges without `CONFORMANCE_DIR`.
const DEFAULT_RECORDINGS: &str = "../shared/conformance";

/// The file of recorded conversions, in their folder.
const CONVERSIONS: &str = "conversions.jsonl";

/// The folder of recorded exchanges; None when the test is skipped.
///
/// # Panics
///
/// `CONFORMANCE_DIR` names a folder that does not exist, or the skip is not allowed.
#[must_use]
pub fn recordings() -> Option<PathBuf> {
    let named = std::env::var(CONFORMANCE_DIR).ok();
    if named.as_deref() == Some("none") {
        skip("recordings", "CONFORMANCE_DIR=none");
        return None;
    }
    let folder = repository().join(named.as_deref().unwrap_or(DEFAULT_RECORDINGS));
    if folder.join("cases").is_dir() {
        return Some(folder);
    }
    let found = format!("no recorded exchanges in {}", folder.display());
    assert!(
        named.is_none(),
        "{found}: set CONFORMANCE_DIR to their folder, or to `none` to skip these tests"
    );
    skip("recordings", &found);
    None
}

/// The folder of recorded facts about single fields, beside the recorded exchanges; None when the test is skipped.
///
/// # Panics
///
/// As [`recordings`].
#[must_use]
pub fn probes() -> Option<PathBuf> {
    beside_recordings("probes", "probes", "bases", "facts")
}

/// The folder of recorded exchanges with extension API servers, beside the recorded exchanges; None when the test is
/// skipped.
///
/// # Panics
///
/// As [`recordings`].
#[must_use]
pub fn aggregation() -> Option<PathBuf> {
    beside_recordings("aggregation", "aggregation", "headers.jsonl", "exchanges")
}

/// The folder of recorded audit events, beside the recorded exchanges; None when the test is skipped.
///
/// # Panics
///
/// As [`recordings`].
#[must_use]
pub fn audit() -> Option<PathBuf> {
    beside_recordings("audit", "audit", "requests.json", "audit events")
}

/// The folder of recorded expressions, beside the recorded exchanges; None when the test is skipped.
///
/// # Panics
///
/// As [`recordings`].
#[must_use]
pub fn expressions() -> Option<PathBuf> {
    beside_recordings("expressions", "cel", "values.jsonl", "expressions")
}

/// The folder of recorded encrypted values, beside the recorded exchanges; None when the test is skipped.
///
/// # Panics
///
/// As [`recordings`].
#[must_use]
pub fn encryption() -> Option<PathBuf> {
    beside_recordings("encryption", "encryption", "vectors.jsonl", "encrypted values")
}

/// The folder of recorded data of an etcd cluster, beside the recorded exchanges; None when the test is skipped.
///
/// # Panics
///
/// As [`recordings`].
#[must_use]
pub fn etcd_data() -> Option<PathBuf> {
    beside_recordings("etcd-data", "etcd", "keys.jsonl", "data of etcd")
}

/// The file of recorded conversions of removed API versions, beside the recorded exchanges; None when the test is skipped.
///
/// # Panics
///
/// As [`recordings`].
#[must_use]
pub fn conversions() -> Option<PathBuf> {
    let folder = beside_recordings("conversions", "conversions", CONVERSIONS, "conversions");
    folder.map(|folder| folder.join(CONVERSIONS))
}

/// The folder `folder` beside the recorded exchanges, if it contains `file`. Otherwise skips the test and returns None.
fn beside_recordings(prerequisite: &str, folder: &str, file: &str, what: &str) -> Option<PathBuf> {
    let folder = recordings()?.join("..").join(folder);
    if folder.join(file).exists() {
        return Some(folder);
    }
    skip(prerequisite, &format!("no recorded {what} in {}", folder.display()));
    None
}

/// Reports that a test is skipped because a prerequisite is missing.
///
/// # Panics
///
/// [`ALLOWED_SKIPS`] names a file that does not list the prerequisite.
pub fn skip(prerequisite: &str, reason: &str) {
    if let Some(file) = std::env::var_os(ALLOWED_SKIPS) {
        let file = repository().join(file);
        let allowed = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        assert!(
            is_listed(&allowed, prerequisite),
            "{prerequisite}: {reason}. Install it, or list `{prerequisite}` in {}",
            file.display()
        );
    }
    record(&format!("{prerequisite}: {reason}"));
}

/// Prints a skip and adds it to the file of skips.
fn record(skipped: &str) {
    println!("skipped: {skipped}");
    let Some(file) = std::env::var_os(SKIPPED) else { return };
    let appended = std::fs::OpenOptions::new().append(true).create(true).open(&file);
    let written = appended.and_then(|mut file| file.write_all(format!("{skipped}\n").as_bytes()));
    written.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
}

/// The root of the repository.
#[must_use]
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Whether a file of allowed skips lists a prerequisite. `#` begins a comment.
fn is_listed(allowed: &str, prerequisite: &str) -> bool {
    allowed.lines().any(|line| line.split('#').next().unwrap_or_default().trim() == prerequisite)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prerequisite_is_listed_by_its_whole_name() {
        let allowed = "# programs\nkubectl 1.27 # not on this image\ncurl\n";
        assert!(is_listed(allowed, "kubectl 1.27") && is_listed(allowed, "curl"));
        assert!(!is_listed(allowed, "kubectl") && !is_listed(allowed, "programs") && !is_listed("", "curl"));
    }

    #[test]
    fn repository_holds_the_workspace_manifest() {
        assert!(repository().join("Cargo.lock").is_file());
    }
}
