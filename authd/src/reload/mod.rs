//! Hot reload of files: [`watch_file`] reloads one configuration file, [`watch_files`] a group.
//!
//! # Contract
//!
//! A file is watched while the returned [`Watch`] exists. authd applies a change when the file was stable for
//! [`STABLE_TIME`], so that authd does not read a half-written file. A file that is still not stable after
//! [`MAX_STABILITY_CHECKS`] checks is read anyway. A valid file is activated. An invalid file leaves the
//! last-known-good configuration active; authd logs each error and adds a note to `/readyz?verbose` until a
//! valid file arrives. Metrics count the reloads of configuration files. authd reloads a file only if its
//! content changed: not after `touch`, but after a symbolic link to other content replaced it. (Requirements
//! A-JWT-4, A-JWT-5, A-AZC-45, A-AZC-46 and A-AZC-48.)
//!
//! # Invariants
//!
//! INVARIANT (all or nothing): a file or group is activated as a whole or not at all.

pub mod authentication;
pub mod authorization;
pub mod certificates_and_keys;
pub mod metrics;
pub mod webhooks;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::Clock;
use serving::metrics::Metrics;
use serving::reload::{Snapshot, Watch};

use crate::active_config::SharedConfig;
use crate::config::file;
use crate::config_error::ConfigError;
use metrics::ReloadMetrics;

/// The debounce time: a changed file must stay unchanged for this time before authd reads the file.
const STABLE_TIME: Duration = Duration::from_millis(100);
/// The maximum number of checks whether a changed file is stable; then authd reads the file in any case.
const MAX_STABILITY_CHECKS: usize = 20;
/// The note for a rejected change of a file.
/// `/readyz?verbose` is public, so only the log contains the details.
const RELOAD_REJECTED: &str = "change rejected, the last-known-good configuration stays active; see the log";

/// The parts of the process that reloads use.
#[derive(Clone)]
pub struct Context {
    /// The configuration that a reload replaces.
    pub config: Arc<SharedConfig>,
    /// The registry of the metrics.
    pub metrics: Arc<Metrics>,
    /// The clock of metrics and of revocation lists.
    pub clock: Arc<dyn Clock>,
}

/// One watched configuration file.
#[derive(Debug)]
pub struct WatchedFile {
    /// The name in the log and in notes, such as `authentication configuration`.
    pub subject: &'static str,
    /// The path of the file.
    pub path: PathBuf,
    /// The metrics of reloads of the file.
    pub metrics: ReloadMetrics,
}

/// Watches the file until the returned [`Watch`] is dropped.
/// `snapshot` was taken before the first read. `apply` gets the content of a changed file and activates it as
/// a whole, or returns all errors.
pub fn watch_file(
    file: WatchedFile,
    snapshot: Snapshot,
    context: &Context,
    mut apply: impl FnMut(&[u8]) -> Result<(), Vec<ConfigError>> + Send + 'static,
) -> Watch {
    let WatchedFile { subject, path, metrics } = file;
    let mut last_attempt = None;
    let (config, clock) = (Arc::clone(&context.config), Arc::clone(&context.clock));
    watch_files(subject, snapshot, Arc::clone(&context.config), move || {
        let content = file::read(&path);
        let outcome =
            content.as_ref().map_err(|error| vec![error.clone()]).and_then(|content| apply(content));
        let status = if outcome.is_ok() { "success" } else { "failure" };
        // The watch repeats failed attempts. The metrics count no repetition with equal content and result.
        let attempt = Some((content, status));
        if last_attempt != attempt {
            metrics.count(status, &*clock);
            config.notify();
            last_attempt = attempt;
        }
        outcome
    })
}

/// Watches a group of files until the returned [`Watch`] is dropped.
/// `apply` reads and activates them as a whole, or returns all errors. After a failure `apply` is called
/// again later, because the change of another file may complete the group. Repeated errors are logged once.
pub fn watch_files(
    subject: &'static str,
    snapshot: Snapshot,
    config: Arc<SharedConfig>,
    mut apply: impl FnMut() -> Result<(), Vec<ConfigError>> + Send + 'static,
) -> Watch {
    let paths = snapshot.paths();
    let mut logged_errors: Vec<ConfigError> = Vec::new();
    snapshot.watch(move || {
        wait_until_stable(&paths);
        match apply() {
            Ok(()) => {
                logged_errors.clear();
                config.set_note(subject, None);
                tracing::info!(subject, files = ?paths, "files reloaded");
                true
            }
            Err(errors) => {
                for error in errors.iter().filter(|error| !logged_errors.contains(error)) {
                    tracing::error!(subject, files = ?paths, %error, "file reload failed; keeping the last-known-good files");
                }
                logged_errors = errors;
                config.set_note(subject, Some(RELOAD_REJECTED.to_owned()));
                false
            }
        }
    })
}

/// Waits until no file has changed for [`STABLE_TIME`], because files of a group are rarely written at once.
fn wait_until_stable(paths: &[PathBuf]) {
    let mut snapshot = Snapshot::new(paths.iter().cloned());
    for _ in 0..MAX_STABILITY_CHECKS {
        std::thread::sleep(STABLE_TIME);
        if !snapshot.changed() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{authn, authz};
    use apimachinery::clock::SystemClock;
    use std::path::Path;
    use tokio::sync::mpsc;

    fn swap(dir: &Path, content: &str) {
        std::fs::write(dir.join("next"), content).unwrap();
        std::fs::rename(dir.join("next"), dir.join("file")).unwrap();
    }

    fn link(dir: &Path, content: &str) {
        std::fs::write(dir.join(content), content).unwrap();
        std::os::unix::fs::symlink(dir.join(content), dir.join("next")).unwrap();
        std::fs::rename(dir.join("next"), dir.join("file")).unwrap();
    }

    fn rewrite(dir: &Path, content: &str) {
        std::fs::write(dir.join("file"), content).unwrap();
    }

    #[tokio::test]
    async fn reload_applies_valid_content_and_notes_invalid_content() {
        let dir = tempfile::tempdir().unwrap();
        rewrite(dir.path(), "good 0");
        let config = SharedConfig::new(
            "one".into(),
            authn::AuthenticatorUnion::empty(),
            authz::Union::empty(),
            Vec::new(),
        );
        let registry = Arc::<Metrics>::default();
        let metrics = ReloadMetrics::for_authentication(&registry);
        let path = dir.path().join("file");
        let (sender, mut applied) = mpsc::unbounded_channel();
        let file = WatchedFile { subject: "the file", path: path.clone(), metrics: metrics.clone() };
        let context =
            Context { config: Arc::clone(&config), metrics: registry, clock: Arc::new(SystemClock::new()) };
        let _watch = watch_file(file, Snapshot::new([path]), &context, move |content| {
            let text = String::from_utf8_lossy(content).into_owned();
            sender.send(text.clone()).unwrap();
            if text.starts_with("good") {
                Ok(())
            } else {
                Err(["line 1: bad", "line 2: worse"]
                    .map(|text| ConfigError::Combination(text.into()))
                    .to_vec())
            }
        });
        let (mut successes, mut failures) = (0, 0);
        for (write, content) in [
            (swap as fn(&Path, &str), "good 1"),
            (rewrite, "bad 2"),
            (link, "bad 3"),
            (link, "good 4"),
            (swap, "bad 5"),
            (rewrite, "good 6"),
        ] {
            write(dir.path(), content);
            let received = tokio::time::timeout(Duration::from_secs(30), applied.recv()).await;
            assert_eq!(received.expect("a change is seen").unwrap(), content);
            let is_good = content.starts_with("good");
            if is_good {
                successes += 1
            } else {
                failures += 1
            }
            let notes = if is_good { Vec::new() } else { vec![format!("the file: {RELOAD_REJECTED}")] };
            let counts = || (metrics.number("success"), metrics.number("failure"));
            // Metrics and notes change only after the call of `apply`.
            let reported = async {
                while config.notes() != notes || counts() != (successes, failures) {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(30), reported).await.expect(content);
        }
    }
}
