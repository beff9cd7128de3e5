//! Hot reload of files.
//! [`watch`] reloads one configuration file, and [`follow`] a group that belongs together.
//!
//! # Contract
//!
//! A file is watched while the returned [`Watch`] exists. A change is applied after the file was stable for
//! [`STABLE_TIME`], so that a file under rewrite is not read half. A valid file is activated. An invalid one
//! leaves the last-known-good configuration active; authd logs each fault, counts the failure, and adds a
//! note to `/readyz?verbose` until a valid file arrives. Only content counts: a touched file is no change, a
//! swapped symbolic link is one (requirements A-JWT-4, A-JWT-5, A-AZC-45, A-AZC-46, A-AZC-48).
//!
//! # Invariants
//!
//! INVARIANT (all or nothing): a file is activated as a whole or not at all.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::Clock;
use serving::metrics::{Counters, FloatGauges};
use serving::reload::{Snapshot, Watch};

use crate::live::{Live, RELOAD_REJECTED};

/// How long a changed file must be stable.
const STABLE_TIME: Duration = Duration::from_millis(100);
/// Limit of checks of a file that is never stable.
const MAX_STABILITY_CHECKS: usize = 20;
/// Limit in bytes of a configuration file.
const MAX_FILE_BYTES: u64 = 16 * 1024 * 1024;

/// Labels of the reload metrics.
pub type ReloadLabels = [(&'static str, &'static str); 2];

/// Metrics of the reloads of one file.
#[derive(Clone, Debug)]
pub struct ReloadMeters {
    /// By status.
    pub total: Counters<ReloadLabels>,
    /// Unix time in seconds of the last reload, by status.
    pub last: FloatGauges<ReloadLabels>,
}

impl ReloadMeters {
    /// Counts one reload.
    pub(crate) fn count(&self, status: &'static str, clock: &dyn Clock) {
        // A single server has no id to hash.
        let labels = [("apiserver_id_hash", ""), ("status", status)];
        self.total.get_or_create(&labels).inc();
        let now = clock.now();
        self.last.get_or_create(&labels).set(now.as_microsecond() as f64 / 1e6);
    }
}

/// One watched file.
#[derive(Debug)]
pub struct File {
    /// The name for the log and the notes: `authentication configuration`.
    pub subject: &'static str,
    /// The path.
    pub path: PathBuf,
    /// Metrics of its reloads.
    pub meters: ReloadMeters,
}

/// Reads a whole file.
///
/// # Errors
///
/// The file cannot be read, or exceeds the size limit.
pub fn read(path: &std::path::Path) -> Result<Vec<u8>, String> {
    let shown = path.display();
    let size = std::fs::metadata(path).map_err(|error| format!("{shown}: {error}"))?.len();
    if size > MAX_FILE_BYTES {
        return Err(format!(
            "{shown}: {size} bytes exceed the limit of {MAX_FILE_BYTES} for a configuration file"
        ));
    }
    std::fs::read(path).map_err(|error| format!("{shown}: {error}"))
}

/// Watches the file until the returned [`Watch`] is dropped.
/// `snapshot` was taken before the first read. `apply` gets the content of a changed file and activates it as
/// a whole, or returns all faults.
pub fn watch(
    file: File,
    snapshot: Snapshot,
    live: Arc<Live>,
    clock: Arc<dyn Clock>,
    mut apply: impl FnMut(&[u8]) -> Result<(), Vec<String>> + Send + 'static,
) -> Watch {
    let File { subject, path, meters } = file;
    let mut counted = None;
    let told = Arc::clone(&live);
    follow(subject, vec![path.clone()], snapshot, live, move || {
        let content = read(&path);
        let outcome =
            content.as_ref().map_err(|fault| vec![fault.clone()]).and_then(|content| apply(content));
        let status = if outcome.is_ok() { "success" } else { "failure" };
        // The same content with the same outcome is not another reload.
        let attempt = Some((content, status));
        if counted != attempt {
            meters.count(status, &*clock);
            told.announce();
            counted = attempt;
        }
        outcome
    })
}

/// Watches a group of files until the returned [`Watch`] is dropped.
/// `apply` reads and activates them as a whole, or returns all faults. After a failure the group is offered
/// again, since another file may complete it; repeated faults are logged once.
pub fn follow(
    subject: &'static str,
    paths: Vec<PathBuf>,
    snapshot: Snapshot,
    live: Arc<Live>,
    mut apply: impl FnMut() -> Result<(), Vec<String>> + Send + 'static,
) -> Watch {
    let mut told: Vec<String> = Vec::new();
    snapshot.watch(move || {
        wait_until_stable(&paths);
        match apply() {
            Ok(()) => {
                told.clear();
                live.note(subject, None);
                tracing::info!(subject, files = ?paths, "files reloaded");
                true
            }
            Err(faults) => {
                for fault in faults.iter().filter(|fault| !told.contains(fault)) {
                    tracing::error!(subject, files = ?paths, fault, "file reload failed; keeping the last-known-good files");
                }
                told = faults;
                live.note(subject, Some(RELOAD_REJECTED.to_owned()));
                false
            }
        }
    })
}

/// Waits until no file has changed for [`STABLE_TIME`]: files of a group are rarely written at once.
fn wait_until_stable(paths: &[PathBuf]) {
    let mut last = Snapshot::new(paths.iter().cloned());
    for _ in 0..MAX_STABILITY_CHECKS {
        std::thread::sleep(STABLE_TIME);
        if !last.changed() {
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
        let live = Live::new("one".into(), authn::Union::empty(), authz::Union::empty(), Vec::new());
        let meters = crate::meters::Meters::new([]).authn_reloads.clone();
        let path = dir.path().join("file");
        let (told, mut applied) = mpsc::unbounded_channel();
        let file = File { subject: "the file", path: path.clone(), meters: meters.clone() };
        let clock = Arc::new(SystemClock::new());
        let _watch = watch(file, Snapshot::new([path]), Arc::clone(&live), clock, move |content| {
            let text = String::from_utf8_lossy(content).into_owned();
            told.send(text.clone()).unwrap();
            if text.starts_with("good") {
                Ok(())
            } else {
                Err(vec!["line 1: bad".into(), "line 2: worse".into()])
            }
        });
        let (mut taken, mut left) = (0, 0);
        for (write, content) in [
            (swap as fn(&Path, &str), "good 1"),
            (rewrite, "bad 2"),
            (link, "bad 3"),
            (link, "good 4"),
            (swap, "bad 5"),
            (rewrite, "good 6"),
        ] {
            write(dir.path(), content);
            let got = tokio::time::timeout(Duration::from_secs(30), applied.recv()).await;
            assert_eq!(got.expect("a change is seen").unwrap(), content);
            let good = content.starts_with("good");
            if good {
                taken += 1
            } else {
                left += 1
            }
            let want = if good { Vec::new() } else { vec![format!("the file: {RELOAD_REJECTED}")] };
            let count =
                |status| meters.total.get_or_create(&[("apiserver_id_hash", ""), ("status", status)]).get();
            // Counters and notes change after the reload attempt.
            let told = async {
                while live.notes() != want || (count("success"), count("failure")) != (taken, left) {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(30), told).await.expect(content);
        }
    }
}
