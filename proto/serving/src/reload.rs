//! Watches files by their content: a new modification time is not a change; a symbolic link to new content
//! is.
//!
//! # Contract
//!
//! Create the [`Snapshot`] before reading the files, so that no change between reading and watching is lost.
//! A file that vanishes is a change, and so is its return. Symbolic links are followed (mounted volumes swap
//! links).
//!
//! SIGHUP and file-system events start a check of all watched files after [`DEBOUNCE`]. A poll finds changes
//! without an event within [`POLL_INTERVAL`]. The hash of the content decides in each case whether a file has
//! changed.

mod file_events;

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest;
use tokio::signal::unix::{Signal, SignalKind};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use self::file_events::FileEvents;

/// Time from a file-system event to the check of the files: a program writes several files one after the
/// other.
///
/// The time is longer than a tick of the clock of file systems.
const DEBOUNCE: Duration = Duration::from_millis(20);
/// Poll interval of a system that reports file-system events.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// Poll interval of a system without file-system events.
const POLL_INTERVAL_WITHOUT_EVENTS: Duration = Duration::from_millis(250);
/// Time after which the callback gets a change again that it has rejected.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum number of bytes of a file that the hash covers. Changes beyond them are not detected.
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
    /// Whether the file was read again after its last change.
    ///
    /// A second change within one tick of the clock of the file system changes the content but not the times.
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
        let read =
            |path: PathBuf| File { stat: stat(&path), content: content_digest(&path), path, settled: false };
        Snapshot { files: paths.into_iter().map(read).collect() }
    }

    /// The paths of the files.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.files.iter().map(|file| file.path.clone()).collect()
    }

    /// Whether the snapshot has no files.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Checks the files again and records their content; true if a content has changed since the last check.
    pub fn changed(&mut self) -> bool {
        let mut changed = false;
        for file in &mut self.files {
            let stat = stat(&file.path);
            if stat == file.stat && file.settled {
                continue;
            }
            file.settled = stat == file.stat;
            file.stat = stat;
            let content = content_digest(&file.path);
            if content != file.content {
                file.content = content;
                file.settled = false;
                changed = true;
            }
        }
        changed
    }

    /// Makes the next check read all files, also those with unchanged times.
    ///
    /// An event can follow a check within one tick of the clock of the file system.
    fn mark_all_unsettled(&mut self) {
        self.files.iter_mut().for_each(|file| file.settled = false);
    }

    /// Calls `on_change` on a blocking thread after each change, until the returned watch is dropped.
    ///
    /// Changes in quick succession cause one call. If `on_change` returns false, it rejects the change and is
    /// called again after a while: the change may depend on a file outside the snapshot.
    pub fn watch(self, on_change: impl FnMut() -> bool + Send + 'static) -> Watch {
        let signal = Arc::new(Notify::new());
        match FileEvents::new(Arc::clone(&signal)) {
            Ok(events) => self.watch_with(Some(events), signal, POLL_INTERVAL, RETRY_INTERVAL, on_change),
            Err(error) => {
                tracing::warn!(%error, "the system reports no file changes; polling files");
                self.watch_with(None, signal, POLL_INTERVAL_WITHOUT_EVENTS, RETRY_INTERVAL, on_change)
            }
        }
    }

    fn watch_with(
        mut self,
        mut events: Option<FileEvents>,
        signal: Arc<Notify>,
        poll: Duration,
        retry: Duration,
        mut on_change: impl FnMut() -> bool + Send + 'static,
    ) -> Watch {
        Watch(tokio::spawn(async move {
            let mut ticks = tokio::time::interval(poll.min(retry));
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            let mut hangups = hangups();
            // Time at which the callback gets a rejected change again.
            let mut next_offer: Option<tokio::time::Instant> = None;
            loop {
                let has_event = tokio::select! {
                    _ = ticks.tick() => false,
                    () = signal.notified() => true,
                    () = next_hangup(&mut hangups) => true,
                };
                if has_event {
                    tokio::time::sleep(DEBOUNCE).await;
                }
                let now = tokio::time::Instant::now();
                let is_due = next_offer.is_some_and(|at| now >= at);
                let check = tokio::task::spawn_blocking(move || {
                    if let Some(events) = &mut events {
                        // This precedes the check, so that a change after the check is an event.
                        events.follow(self.files.iter().map(|file| file.path.as_path()));
                    }
                    if has_event {
                        self.mark_all_unsettled();
                    }
                    let is_accepted = (self.changed() || is_due).then(&mut on_change);
                    (self, events, on_change, is_accepted)
                });
                match check.await {
                    Ok((snapshot, file_events, callback, is_accepted)) => {
                        (self, events, on_change) = (snapshot, file_events, callback);
                        if let Some(is_accepted) = is_accepted {
                            next_offer = (!is_accepted).then(|| now + retry);
                        }
                    }
                    Err(error) => {
                        tracing::error!(%error, "file watch ended; changes of files are no longer detected");
                        return;
                    }
                }
            }
        }))
    }
}

/// Receives the SIGHUP signals of the process, which then no longer end it. Returns None if the system refused this.
pub fn hangups() -> Option<Signal> {
    let hangups = tokio::signal::unix::signal(SignalKind::hangup());
    hangups.inspect_err(|error| tracing::warn!(%error, "cannot receive SIGHUP; it ends the process")).ok()
}

/// Waits for the next SIGHUP; forever without [`hangups`].
pub async fn next_hangup(hangups: &mut Option<Signal>) {
    if let Some(hangups) = hangups
        && hangups.recv().await.is_some()
    {
        return;
    }
    std::future::pending().await
}

/// Running watch; ends on drop.
#[derive(Debug)]
pub struct Watch(JoinHandle<()>);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn stat(path: &Path) -> Option<Stat> {
    let metadata = fs::metadata(path).ok()?;
    Some(Stat {
        device: metadata.dev(),
        inode: metadata.ino(),
        size: metadata.size(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    })
}

fn content_digest(path: &Path) -> Option<[u8; 32]> {
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

    /// Upper bound of the time from a change to its call: far above [`DEBOUNCE`], far below [`NEVER`].
    const DEADLINE: Duration = Duration::from_secs(20);
    const NEVER: Duration = Duration::from_secs(3600);

    /// Watches a path; the receiver gets the number of each call. The callback accepts from call `accepted`
    /// on.
    fn watch(
        path: &Path,
        has_events: bool,
        (poll, retry): (Duration, Duration),
        accepted: u32,
    ) -> (Watch, tokio::sync::mpsc::UnboundedReceiver<u32>) {
        let (sender, calls) = tokio::sync::mpsc::unbounded_channel();
        let signal = Arc::new(Notify::new());
        let events = has_events.then(|| FileEvents::new(Arc::clone(&signal)).unwrap());
        let mut count = 0;
        let watch = Snapshot::new([path.to_owned()]).watch_with(events, signal, poll, retry, move || {
            count += 1;
            let _ = sender.send(count);
            count >= accepted
        });
        (watch, calls)
    }

    /// Waits long enough for the first check, which installs the watches of the folders.
    async fn wait_for_first_check() {
        tokio::time::sleep(Duration::from_millis(300)).await;
    }

    #[tokio::test]
    async fn polled_file_change_calls_back_until_watch_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "0").unwrap();
        let (watch, mut calls) = watch(&path, false, (Duration::from_millis(1), NEVER), 1);
        for round in 1..4 {
            fs::write(&path, round.to_string()).unwrap();
            assert_eq!(calls.recv().await, Some(round));
        }
        drop(watch);
        while calls.recv().await.is_some() {}
    }

    #[tokio::test]
    async fn file_change_without_event_calls_back_within_a_minute() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "0").unwrap();
        let (sender, mut calls) = tokio::sync::mpsc::unbounded_channel();
        // The events go to a signal that the watch does not read, as if the system had lost them.
        let lost_events = FileEvents::new(Arc::new(Notify::new())).unwrap();
        let signal = Arc::new(Notify::new());
        let snapshot = Snapshot::new([path.clone()]);
        let _watch =
            snapshot.watch_with(Some(lost_events), signal, POLL_INTERVAL, RETRY_INTERVAL, move || {
                sender.send(()).is_ok()
            });
        wait_for_first_check().await;
        fs::write(dir.path().join("next"), "1").unwrap();
        fs::rename(dir.path().join("next"), &path).unwrap();
        let call = tokio::time::timeout(Duration::from_secs(60), calls.recv()).await;
        assert_eq!(call, Ok(Some(())));
    }

    #[tokio::test]
    async fn rejected_file_change_is_offered_again_and_accepted_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "0").unwrap();
        let quick = Duration::from_millis(1);
        let (_watch, mut calls) = watch(&path, false, (quick, quick * 25), 3);
        fs::write(&path, "1").unwrap();
        for offer in 1..4 {
            assert_eq!(calls.recv().await, Some(offer));
        }
        fs::write(&path, "2").unwrap();
        assert_eq!(calls.recv().await, Some(4), "the next call is the next change");
    }

    /// Makes changes to a file that is watched without polls; each change must cause a call.
    async fn assert_changes_call_back(path: &Path, changes: &mut [&mut dyn FnMut()]) {
        let (_watch, mut calls) = watch(path, true, (NEVER, NEVER), 1);
        for (index, change) in changes.iter_mut().enumerate() {
            wait_for_first_check().await;
            change();
            let call = tokio::time::timeout(DEADLINE, calls.recv()).await;
            assert!(matches!(call, Ok(Some(_))), "change {index} of {}", path.display());
        }
    }

    #[tokio::test]
    async fn file_change_without_poll_calls_back() {
        let dir = tempfile::tempdir().unwrap();
        let (path, next) = (dir.path().join("file"), dir.path().join("next"));
        fs::write(&path, "0").unwrap();
        assert_changes_call_back(
            &path,
            &mut [
                &mut || fs::write(&path, "1").unwrap(),
                &mut || {
                    fs::write(&next, "2").unwrap();
                    fs::rename(&next, &path).unwrap();
                },
                &mut || fs::remove_file(&path).unwrap(),
                &mut || fs::write(&path, "3").unwrap(),
            ],
        )
        .await;
    }

    /// A mounted volume: `file` links to `..data/file`, and `..data` links to `..1`. The test replaces the
    /// link `..data`.
    #[tokio::test]
    async fn swapped_volume_link_without_poll_calls_back() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        for version in ["..1", "..2"] {
            fs::create_dir(root.join(version)).unwrap();
            fs::write(root.join(version).join("file"), version).unwrap();
        }
        let swap = |to: &str| {
            symlink(to, root.join("..next")).unwrap();
            fs::rename(root.join("..next"), root.join("..data")).unwrap();
        };
        swap("..1");
        symlink("..data/file", root.join("file")).unwrap();
        // The path of the volume contains a further link, to a folder.
        let outside = tempfile::tempdir().unwrap();
        symlink(root, outside.path().join("current")).unwrap();
        let path = outside.path().join("current/file");
        assert_changes_call_back(
            &path,
            &mut [
                &mut || swap("..2"),
                &mut || fs::write(root.join("..2/file"), "in the folder of the new target").unwrap(),
                &mut || fs::remove_file(outside.path().join("current")).unwrap(),
            ],
        )
        .await;
    }

    #[tokio::test]
    async fn file_in_new_folder_without_poll_calls_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("later/file");
        assert_changes_call_back(
            &path,
            &mut [&mut || {
                fs::create_dir(path.parent().unwrap()).unwrap();
                fs::write(&path, "1").unwrap();
            }],
        )
        .await;
    }
}
