//! The data directory of `apid up`, locked for this process.
//!
//! # Contract
//!
//! The lock precedes each write: a second start on the directory of a running server changes no file of that server.

use std::fs::{File, TryLockError};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use storage::engine::fjall::{self, OpenError};

use crate::config::STORE;

/// The reason why the data directory is not used.
#[derive(Debug, thiserror::Error)]
pub(super) enum DataDirError {
    /// The data directory cannot be created or read.
    #[error("cannot use the data directory `{}`: {error}; choose a directory of this user with --data-dir", path.display())]
    Unusable {
        /// The data directory.
        path: PathBuf,
        /// The error of the file system.
        error: std::io::Error,
    },
    /// Another process serves from the data directory.
    #[error(
        "the data directory `{}` is in use by another process of apid, which goes on; stop that process first, or choose \
         another directory with --data-dir", .0.display()
    )]
    InUse(PathBuf),
}

/// An existing data directory.
pub(super) struct DataDir {
    /// The absolute path.
    pub(super) path: PathBuf,
    /// The operating system releases the lock when the process ends.
    pub(super) lock: File,
}

impl DataDir {
    /// Creates the directory if it is missing, and locks it.
    ///
    /// # Errors
    ///
    /// The directory is not usable, or another process uses it or its store.
    pub(super) fn lock(path: &Path) -> Result<Self, DataDirError> {
        let unusable = |error| DataDirError::Unusable { path: path.to_owned(), error };
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(unusable)?;
        let path = path.canonicalize().map_err(unusable)?;
        let lock = File::open(&path).map_err(unusable)?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => DataDirError::InUse(path.clone()),
            TryLockError::Error(error) => unusable(error),
        })?;
        // An apid without `up` locks only the store. Other problems of the store are those of its opening.
        match fjall::check_unlocked(&path.join(STORE)) {
            Err(OpenError::Locked(_)) => Err(DataDirError::InUse(path)),
            _ => Ok(DataDir { path, lock }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(path: &Path) -> String {
        DataDir::lock(path).map(|_| ()).unwrap_err().to_string()
    }

    #[test]
    fn data_directory_is_locked_until_the_end_of_its_use() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        let first = DataDir::lock(&path).unwrap();
        let text = error(&path);
        assert!(text.contains(&format!("`{}` is in use", first.path.display())), "{text}");
        assert!(text.contains("--data-dir"), "{text}");
        drop(first);
        assert!(DataDir::lock(&path).is_ok());
    }

    #[test]
    fn data_directory_of_an_open_store_is_in_use() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(STORE)).unwrap();
        let store = File::create(dir.path().join(STORE).join("lock")).unwrap();
        assert!(DataDir::lock(dir.path()).is_ok());
        store.lock().unwrap();
        assert!(error(dir.path()).contains("is in use"));
    }

    #[test]
    fn data_directory_that_cannot_be_created_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let text = error(&file.join("d"));
        assert!(text.starts_with("cannot use the data directory `"), "{text}");
    }
}
