//! Files that are read again when they change: a configuration file ([`watch`]), or a group that belongs together
//! ([`follow`]).
//!
//! # Contract
//!
//! Files are followed for as long as the answer lives. A change is taken up when they have stood still for [`SETTLED`], so
//! that a file that is being written in place is not read half. What is good is applied; what is not leaves the old configuration in force, is named in
//! the log with every fault, counted, and noted for `/readyz?verbose` until a good file comes. Content decides: a touched
//! file is no change, a swapped symbolic link is one (requirements A-JWT-4, A-JWT-5, A-AZC-45, A-AZC-46, A-AZC-48).
//!
//! # Invariants
//!
//! INVARIANT (all or nothing): a file is applied whole or not at all.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::Clock;
use serving::metrics::{Counters, FloatGauges};
use serving::reload::{Snapshot, Watch};

use crate::live::{Live, NOT_TAKEN};

/// How often a file is looked at. Well under the second within which a change must be in force, and far more often than
/// the minute that is asked for where nothing tells of changes.
const EVERY: Duration = Duration::from_millis(200);
/// How long a changed file must stand still.
const SETTLED: Duration = Duration::from_millis(100);
/// Looks at a file that never stands still.
const MOST_LOOKS: usize = 20;
/// Bytes of a configuration file; more is a fault.
const LARGEST: u64 = 16 * 1024 * 1024;

/// Labels of the reload metrics.
pub type ReloadLabels = [(&'static str, &'static str); 2];

/// Counts reloads of one file.
#[derive(Clone, Debug)]
pub struct ReloadMeters {
    /// By status.
    pub total: Counters<ReloadLabels>,
    /// Seconds since 1970 of the last, by status.
    pub last: FloatGauges<ReloadLabels>,
}

impl ReloadMeters {
    /// Counts one reload.
    pub(crate) fn count(&self, status: &'static str, clock: &dyn Clock) {
        // One server stands for itself: the hash of its id tells nothing from nothing.
        let labels = [("apiserver_id_hash", ""), ("status", status)];
        self.total.get_or_create(&labels).inc();
        let now = clock.now();
        self.last.get_or_create(&labels).set(now.as_microsecond() as f64 / 1e6);
    }
}

/// One watched file.
#[derive(Debug)]
pub struct File {
    /// What it is, for the log and the notes: `authentication configuration`.
    pub subject: &'static str,
    /// Where.
    pub path: PathBuf,
    /// Counts of its reloads.
    pub meters: ReloadMeters,
}

/// Reads a file whole.
///
/// # Errors
///
/// It cannot be read, or is larger than any configuration is.
pub fn read(path: &std::path::Path) -> Result<Vec<u8>, String> {
    let shown = path.display();
    let size = std::fs::metadata(path).map_err(|error| format!("{shown}: {error}"))?.len();
    if size > LARGEST {
        return Err(format!("{shown}: {size} bytes are more than a configuration may have ({LARGEST})"));
    }
    std::fs::read(path).map_err(|error| format!("{shown}: {error}"))
}

/// Follows the file until the answer is dropped. `snapshot` was made before the file was read for the first time.
/// `apply` is given the content of a file that changed: it puts it in force whole, or says every fault.
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
        // The same content offered again with the same end is no other reload.
        let attempt = Some((content, status));
        if counted != attempt {
            meters.count(status, &*clock);
            told.announce();
            counted = attempt;
        }
        outcome
    })
}

/// Follows files that belong together until the answer is dropped. `apply` reads them and puts them in force whole, or
/// says every fault: then they are offered again, since what was missing may come with another file, and faults that are
/// told already are not told again.
pub fn follow(
    subject: &'static str,
    paths: Vec<PathBuf>,
    snapshot: Snapshot,
    live: Arc<Live>,
    mut apply: impl FnMut() -> Result<(), Vec<String>> + Send + 'static,
) -> Watch {
    let mut told: Vec<String> = Vec::new();
    snapshot.watch(EVERY, move || {
        stand_still(&paths);
        match apply() {
            Ok(()) => {
                told.clear();
                live.note(subject, None);
                tracing::info!(subject, files = ?paths, "changed files are in force");
                true
            }
            Err(faults) => {
                for fault in faults.iter().filter(|fault| !told.contains(fault)) {
                    tracing::error!(subject, files = ?paths, fault, "changed files are not taken");
                }
                told = faults;
                live.note(subject, Some(NOT_TAKEN.to_owned()));
                false
            }
        }
    })
}

/// Until nothing has changed for [`SETTLED`]: files that belong together are seldom written at once.
fn stand_still(paths: &[PathBuf]) {
    let mut last = Snapshot::new(paths.iter().cloned());
    for _ in 0..MOST_LOOKS {
        std::thread::sleep(SETTLED);
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
    async fn good_content_is_applied_and_bad_content_noted() {
        let dir = tempfile::tempdir().unwrap();
        rewrite(dir.path(), "good 0");
        let live = Live::new("one".into(), authn::Union::nothing(), authz::Union::nothing(), Vec::new());
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
            let want = if good { Vec::new() } else { vec![format!("the file: {NOT_TAKEN}")] };
            let count =
                |status| meters.total.get_or_create(&[("apiserver_id_hash", ""), ("status", status)]).get();
            // Counts and notes follow the attempt.
            let told = async {
                while live.notes() != want || (count("success"), count("failure")) != (taken, left) {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(30), told).await.expect(content);
        }
    }
}
