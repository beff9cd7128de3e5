//! The destination of a backup: a file, or a folder that keeps the newest backups.

use std::io;
use std::num::NonZeroUsize;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use apimachinery::clock::{Clock as _, SystemClock};
use jiff::Timestamp;
use storage::engine::fjall::offline::BackupSummary;

use super::print_summary;
use crate::console::fail;

/// Prefix and suffix of the names of backups in a folder. The time between them sorts the names by age.
const NAME: (&str, &str) = ("apid-", ".backup");

/// The destination of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Destination {
    /// A new file, or with `keep` a folder.
    pub(super) path: PathBuf,
    /// The number of backups in the folder after a successful one.
    pub(super) keep: Option<NonZeroUsize>,
}

impl Destination {
    /// Calls `backup` with the new file, prints the summary, and removes old backups.
    ///
    /// # Errors
    ///
    /// The error of `backup`. Old backups then stay.
    pub(super) fn fill<E>(
        &self,
        backup: impl FnOnce(&Path) -> Result<BackupSummary, E>,
    ) -> Result<ExitCode, E> {
        let Some(keep) = self.keep else { return backup(&self.path).map(|summary| print_summary(&summary)) };
        if let Err(error) = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.path) {
            return Ok(fail(format_args!(
                "`{}`: {error}; --keep needs a folder in --to",
                self.path.display()
            )));
        }
        let file = unused_file(&self.path, SystemClock::new().now());
        let summary = backup(&file)?;
        crate::console::print(format!("{}: ", file.display()));
        let code = print_summary(&summary);
        match remove_old(&self.path, keep) {
            Ok(removed) => {
                for path in removed {
                    crate::console::print(format!("removed {}\n", path.display()));
                }
                Ok(code)
            }
            Err(error) => Ok(fail(format_args!(
                "the backup is complete, but an older one was not removed: `{}`: {error}",
                self.path.display()
            ))),
        }
    }
}

/// Returns the name of a backup of this time, for example `apid-20261130T030000Z.backup`.
fn file_name(now: Timestamp) -> String {
    format!("{}{}{}", NAME.0, now.strftime("%Y%m%dT%H%M%SZ"), NAME.1)
}

/// Returns the path of a backup of this time, or of the first second after it whose name is not used: several backups
/// can be made within a second.
fn unused_file(folder: &Path, now: Timestamp) -> PathBuf {
    let at = |second| folder.join(file_name(Timestamp::from_second(second).unwrap_or(now)));
    let is_used = |path: &PathBuf| path.try_exists().unwrap_or(false);
    (now.as_second()..).map(at).find(|path| !is_used(path)).unwrap_or_else(|| at(now.as_second()))
}

/// Whether a file name is that of a backup.
fn is_backup(name: &str) -> bool {
    let time = name.strip_prefix(NAME.0).and_then(|rest| rest.strip_suffix(NAME.1));
    let is_time =
        |time: &str| time.len() == 16 && time.chars().all(|c| c.is_ascii_digit() || c == 'T' || c == 'Z');
    time.is_some_and(is_time)
}

/// Removes all but the newest backups of a folder. Returns the removed files.
fn remove_old(folder: &Path, keep: NonZeroUsize) -> io::Result<Vec<PathBuf>> {
    let names: io::Result<Vec<_>> =
        std::fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.file_name())).collect();
    let mut names: Vec<String> = names?.into_iter().filter_map(|name| name.into_string().ok()).collect();
    names.retain(|name| is_backup(name));
    names.sort();
    let old: Vec<PathBuf> = names.iter().rev().skip(keep.get()).map(|name| folder.join(name)).collect();
    old.iter().try_for_each(std::fs::remove_file)?;
    Ok(old)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_backups_are_kept_and_other_files_stay() {
        let dir = tempfile::tempdir().unwrap();
        let name = file_name(Timestamp::from_second(1_780_000_000).unwrap());
        assert!(is_backup(&name) && name == "apid-20260528T202640Z.backup", "{name}");
        let names = [
            "apid-20260101T000000Z.backup",
            "apid-20260102T000000Z.backup",
            &name,
            "apid-old.backup",
            "notes",
        ];
        for name in names {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        let removed = remove_old(dir.path(), NonZeroUsize::new(2).unwrap()).unwrap();
        assert_eq!(removed, [dir.path().join(names[0])]);
        let left = names.iter().filter(|name| dir.path().join(name).exists()).count();
        assert_eq!(left, 4);
    }

    #[test]
    fn backups_within_a_second_get_the_names_of_the_next_seconds() {
        let dir = tempfile::tempdir().unwrap();
        let now = Timestamp::from_second(1_780_000_000).unwrap();
        for name in ["apid-20260528T202640Z.backup", "apid-20260528T202641Z.backup"] {
            let file = unused_file(dir.path(), now);
            assert_eq!(file, dir.path().join(name));
            std::fs::write(file, "").unwrap();
        }
    }

    #[test]
    fn failed_backup_removes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let old = dir.path().join("apid-20260101T000000Z.backup");
        std::fs::write(&old, "").unwrap();
        let to = Destination { path: dir.path().to_owned(), keep: NonZeroUsize::new(1) };
        assert!(to.fill(|_| Err::<BackupSummary, _>("no connection")).is_err());
        assert!(old.exists());
        let file = Destination { path: old.join("x"), keep: NonZeroUsize::new(1) };
        assert_eq!(file.fill(|_| Err::<BackupSummary, _>("not called")), Ok(ExitCode::FAILURE));
    }
}
