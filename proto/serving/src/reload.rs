//! Watches files by polling their content: a touched file is no change, a swapped symbolic link is one.
//!
//! # Contract
//!
//! Create the [`Snapshot`] before reading the files, so that no change between reading and watching is lost.
//! A file that vanishes is a change, and so is its return. Symbolic links are followed (mounted volumes swap
//! links).

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use aws_lc_rs::digest;
use tokio::task::JoinHandle;

/// Number of periods after which a change that was not accepted is offered again.
const RETRY_PERIODS: u32 = 25;
/// Maximum bytes of a file that are read to detect a change.
const MAX_READ_BYTES: u64 = 64 * 1024 * 1024;

/// Content of a set of files at the last check.
#[derive(Debug)]
pub struct Snapshot {
    files: Vec<File>,
}

#[derive(Debug)]
struct File {
    path: PathBuf,
    stat: Option<Stat>,
    content: Option<[u8; 32]>,
    /// The file was read again after its last change. A second change within one tick of the clock of the
    /// file system leaves no other trace.
    settled: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Snapshot {
    /// Records the current content of the files.
    pub fn new(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        let look = |path: PathBuf| File { stat: stat(&path), content: content(&path), path, settled: false };
        Snapshot { files: paths.into_iter().map(look).collect() }
    }

    /// Checks again; true when the content of any file changed since the last check.
    pub fn changed(&mut self) -> bool {
        let mut changed = false;
        for file in &mut self.files {
            let stat = stat(&file.path);
            if stat == file.stat && file.settled {
                continue;
            }
            file.settled = stat == file.stat;
            file.stat = stat;
            let content = content(&file.path);
            if content != file.content {
                file.content = content;
                file.settled = false;
                changed = true;
            }
        }
        changed
    }

    /// Calls `on_change` on a blocking thread after each change, until the returned watch is dropped.
    ///
    /// Changes within one period cause one call. A change that is not accepted (false) is offered again from
    /// time to time: it may depend on another file that changes later.
    pub fn watch(mut self, every: Duration, mut on_change: impl FnMut() -> bool + Send + 'static) -> Watch {
        Watch(tokio::spawn(async move {
            let mut ticks = tokio::time::interval(every);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            // When to offer the rejected change again.
            let mut again: Option<tokio::time::Instant> = None;
            loop {
                let now = ticks.tick().await;
                let due = again.is_some_and(|at| now >= at);
                let look = tokio::task::spawn_blocking(move || {
                    let taken = (self.changed() || due).then(&mut on_change);
                    (self, on_change, taken)
                });
                match look.await {
                    Ok((snapshot, callback, taken)) => {
                        self = snapshot;
                        on_change = callback;
                        if let Some(taken) = taken {
                            again = (!taken).then(|| now + every * RETRY_PERIODS);
                        }
                    }
                    Err(e) => {
                        tracing::error!(error = %e, "file watch ended; changes of files are no longer detected");
                        return;
                    }
                }
            }
        }))
    }
}

/// Running watch; ends on drop.
#[derive(Debug)]
pub struct Watch(JoinHandle<()>);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn stat(path: &PathBuf) -> Option<Stat> {
    let found = fs::metadata(path).ok()?;
    Some(Stat {
        device: found.dev(),
        inode: found.ino(),
        size: found.size(),
        modified: (found.mtime(), found.mtime_nsec()),
        changed: (found.ctime(), found.ctime_nsec()),
    })
}

fn content(path: &PathBuf) -> Option<[u8; 32]> {
    let mut bytes = Vec::new();
    fs::File::open(path).ok()?.take(MAX_READ_BYTES).read_to_end(&mut bytes).ok()?;
    digest::digest(&digest::SHA256, &bytes).as_ref().try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn only_content_changes_are_detected() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b, link) = (dir.path().join("a"), dir.path().join("b"), dir.path().join("link"));
        fs::write(&a, "one").unwrap();
        fs::write(&b, "two").unwrap();
        symlink(&a, &link).unwrap();
        let mut snapshot = Snapshot::new([link.clone(), dir.path().join("absent")]);
        assert!(!snapshot.changed());

        fs::write(&a, "one").unwrap();
        assert!(!snapshot.changed(), "same content");
        fs::write(&a, "uno").unwrap();
        assert!(snapshot.changed(), "other content of the same length");
        assert!(!snapshot.changed());

        let swapped = dir.path().join("swapped");
        symlink(&b, &swapped).unwrap();
        fs::rename(&swapped, &link).unwrap();
        assert!(snapshot.changed(), "the link points to another file");

        fs::remove_file(&b).unwrap();
        assert!(snapshot.changed());
        assert!(!snapshot.changed());
        fs::write(dir.path().join("absent"), "").unwrap();
        assert!(snapshot.changed());
    }

    #[tokio::test]
    async fn file_watch_calls_back_until_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "0").unwrap();
        let (told, mut calls) = tokio::sync::mpsc::unbounded_channel();
        let watch = Snapshot::new([path.clone()]).watch(Duration::from_millis(1), move || {
            let _ = told.send(());
            true
        });
        for round in 1..4 {
            fs::write(&path, round.to_string()).unwrap();
            calls.recv().await.unwrap();
        }
        drop(watch);
        while calls.recv().await.is_some() {}
    }

    #[tokio::test]
    async fn rejected_file_change_is_offered_again_and_accepted_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "0").unwrap();
        let (told, mut calls) = tokio::sync::mpsc::unbounded_channel();
        let mut offers = 0;
        let _watch = Snapshot::new([path.clone()]).watch(Duration::from_millis(1), move || {
            offers += 1;
            let _ = told.send(offers);
            offers == 3
        });
        fs::write(&path, "1").unwrap();
        for offer in 1..4 {
            assert_eq!(calls.recv().await, Some(offer));
        }
        fs::write(&path, "2").unwrap();
        assert_eq!(calls.recv().await, Some(4), "the next is the next change");
    }
}
