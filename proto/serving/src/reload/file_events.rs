//! File-system events that request an early check of watched files.
//!
//! # Contract
//!
//! The watcher observes folders, not files, so that renames, new files and swapped symbolic links are events.
//! It signals events of the files themselves and of every symbolic link on their paths. For a missing folder
//! the watcher observes the nearest existing parent. Links can change, so [`FileEvents::follow`] runs before
//! each check.
//!
//! An event only requests a check. Some file systems (NFS, FUSE) report no changes of other hosts, and the
//! system limits the number of watches: the caller also polls.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use notify::event::{AccessKind, AccessMode, Event, EventKind};
use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Maximum number of symbolic links on one path, as in Linux.
const MAX_LINKS: usize = 40;

/// Watcher of the folders that contain the watched files and the links on their paths.
pub(super) struct FileEvents {
    watcher: RecommendedWatcher,
    folders: BTreeSet<PathBuf>,
    /// Paths of files and links whose events are signalled.
    entries: Arc<Mutex<BTreeSet<PathBuf>>>,
}

impl FileEvents {
    /// Creates a watcher that notifies `signal` of each relevant event.
    ///
    /// # Errors
    ///
    /// The system has no file-system events, or its limit of watchers is reached.
    pub(super) fn new(signal: Arc<Notify>) -> notify::Result<Self> {
        let entries = Arc::new(Mutex::new(BTreeSet::new()));
        let relevant = Arc::clone(&entries);
        let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            // An error may mean that events are lost, so it signals like an event.
            if event.as_ref().map_or(true, |event| is_relevant(event, &relevant.lock())) {
                signal.notify_one();
            }
        })?;
        Ok(FileEvents { watcher, folders: BTreeSet::new(), entries })
    }

    /// Watches the folders of the files at these paths and of the current links on the paths.
    pub(super) fn follow<'p>(&mut self, paths: impl IntoIterator<Item = &'p Path>) {
        let mut entries = BTreeSet::new();
        for path in paths {
            collect_entries(path, MAX_LINKS, &mut entries);
        }
        let folders: BTreeSet<PathBuf> =
            entries.iter().filter_map(|entry| Some(entry.parent()?.to_owned())).collect();
        *self.entries.lock() = entries;
        for folder in &folders {
            // A known folder is watched again, because a new folder can have the path of a removed one.
            if let Err(error) = self.watcher.watch(folder, RecursiveMode::NonRecursive) {
                tracing::debug!(folder = %folder.display(), %error, "folder has no events; polling its files");
            }
        }
        for folder in self.folders.difference(&folders) {
            // An error is ignored: the system has already ended the watch of a removed folder.
            let _ = self.watcher.unwatch(folder);
        }
        self.folders = folders;
    }
}

/// Whether an event can change the content of a watched file.
///
/// Other accesses than the end of a write are not relevant, because the checks themselves open and read
/// files.
fn is_relevant(event: &Event, entries: &BTreeSet<PathBuf>) -> bool {
    let is_write = match event.kind {
        EventKind::Access(kind) => kind == AccessKind::Close(AccessMode::Write),
        _ => true,
    };
    is_write && (event.need_rescan() || event.paths.iter().any(|path| entries.contains(path)))
}

/// Collects a path, the symbolic links on it, and the targets of the links.
///
/// The folder of each entry is canonical, because the system reports one path for each folder. The first
/// missing part of a path is its last entry.
fn collect_entries(path: &Path, links: usize, entries: &mut BTreeSet<PathBuf>) {
    let Ok(path) = std::path::absolute(path) else { return };
    let mut prefix = PathBuf::new();
    for component in path.components() {
        prefix.push(component);
        let Some((parent, name)) = prefix.parent().zip(prefix.file_name()) else { continue };
        let metadata = fs::symlink_metadata(&prefix);
        let is_link = metadata.as_ref().is_ok_and(fs::Metadata::is_symlink);
        if is_link || metadata.is_err() || prefix == path {
            entries.extend(fs::canonicalize(parent).map(|parent| parent.join(name)));
        }
        if metadata.is_err() {
            return;
        }
        if is_link
            && links > 0
            && let Ok(target) = fs::read_link(&prefix)
        {
            collect_entries(&parent.join(target), links - 1, entries);
        }
    }
}
