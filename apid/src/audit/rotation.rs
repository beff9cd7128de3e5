//! The audit log file with rotation by size, and the removal and compression of rotated files.
//!
//! # Contract
//!
//! A line that would exceed the maximum size begins a new file; a line is never split. The full file gets the
//! time in its name: `audit.log` becomes `audit-2025-01-02T03-04-05.678.log`. A thread then removes rotated
//! files beyond the limits of number and age, and compresses the others (`.gz`) when requested.
//!
//! # Reference
//!
//! Names, times in UTC and limits are those of lumberjack, which kube-apiserver uses.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use apimachinery::clock::Clock;
use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;

/// Maximum size of a file without a flag, in megabytes.
const DEFAULT_MEGABYTES: u64 = 100;
/// The time in the names of rotated files.
const TIME_FORMAT: &str = "%Y-%m-%dT%H-%M-%S.%3f";
/// The suffix of compressed files.
const COMPRESSED: &str = ".gz";
/// Bytes per megabyte, as in lumberjack.
const MEGABYTE: u64 = 1 << 20;
/// Seconds per day.
const DAY: u64 = 24 * 3600;

/// When a file is rotated, and which rotated files are kept. Zero means the default or no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rotation {
    /// Maximum size of a file in megabytes; 0: 100.
    pub max_megabytes: u64,
    /// Maximum age of rotated files in days; 0: no limit.
    pub max_days: u64,
    /// Maximum number of rotated files; 0: no limit.
    pub max_backups: usize,
    /// Whether rotated files are compressed.
    pub is_compressed: bool,
}

impl Rotation {
    fn max_bytes(self) -> u64 {
        let megabytes = if self.max_megabytes == 0 { DEFAULT_MEGABYTES } else { self.max_megabytes };
        megabytes.saturating_mul(MEGABYTE)
    }
}

/// The file of the audit log.
pub(super) struct LogFile {
    path: PathBuf,
    file: File,
    bytes: u64,
    max_bytes: u64,
    rotation: Rotation,
    clock: Arc<dyn Clock>,
    /// Removes and compresses rotated files; at most one at a time.
    cleanup: Option<JoinHandle<()>>,
}

impl LogFile {
    /// Opens the file for appending, and creates it with mode 0600.
    pub(super) fn open(path: &Path, rotation: Rotation, clock: Arc<dyn Clock>) -> io::Result<Self> {
        let (file, bytes) = append(path)?;
        let max_bytes = rotation.max_bytes();
        Ok(LogFile { path: path.to_owned(), file, bytes, max_bytes, rotation, clock, cleanup: None })
    }

    /// Opens the path again, after another program has renamed the file.
    pub(super) fn reopen(&mut self) -> io::Result<()> {
        (self.file, self.bytes) = append(&self.path)?;
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        fs::rename(&self.path, self.unused_backup_path())?;
        self.reopen()?;
        if self.cleanup.as_ref().is_none_or(JoinHandle::is_finished) {
            let (path, rotation, now) = (self.path.clone(), self.rotation, self.clock.now());
            let clean = move || clean_up(&path, rotation, now);
            self.cleanup = std::thread::Builder::new().name("audit-cleanup".to_owned()).spawn(clean).ok();
        }
        Ok(())
    }

    /// The path of the next rotated file: two rotations within a millisecond get different times.
    fn unused_backup_path(&self) -> PathBuf {
        let mut time = self.clock.now();
        loop {
            let path = backup_path(&self.path, time);
            let compressed = PathBuf::from(format!("{}{COMPRESSED}", path.display()));
            if !path.exists() && !compressed.exists() {
                return path;
            }
            time = time.checked_add(Duration::from_millis(1)).unwrap_or(time);
        }
    }

    /// Waits for the removal and compression of rotated files.
    #[cfg(test)]
    fn finish_cleanup(&mut self) {
        if let Some(cleanup) = self.cleanup.take() {
            cleanup.join().unwrap();
        }
    }
}

impl Write for LogFile {
    /// Writes a whole line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let length = u64::try_from(line.len()).unwrap_or(u64::MAX);
        if self.bytes > 0
            && self.bytes.saturating_add(length) > self.max_bytes
            && let Err(error) = self.rotate()
        {
            tracing::error!(path = %self.path.display(), %error, "audit log rotation failed; the file grows");
        }
        self.file.write_all(line)?;
        self.bytes += length;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Opens a file for appending and returns its size.
fn append(path: &Path) -> io::Result<(File, u64)> {
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    let bytes = file.metadata()?.len();
    Ok((file, bytes))
}

/// The name of a file before and after the time in the names of rotated files.
fn name_parts(path: &Path) -> (String, String) {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let extension = name.rfind('.').map_or_else(String::new, |dot| name.get(dot..).unwrap_or("").to_owned());
    let stem = name.strip_suffix(&extension).unwrap_or(&name);
    (format!("{stem}-"), extension)
}

fn backup_path(path: &Path, time: Timestamp) -> PathBuf {
    let (before, after) = name_parts(path);
    path.with_file_name(format!("{before}{}{after}", time.strftime(TIME_FORMAT)))
}

/// A rotated file.
struct Backup {
    path: PathBuf,
    time: Timestamp,
    is_compressed: bool,
}

/// The rotated files of a log, newest first.
fn backups(path: &Path) -> Vec<Backup> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let (before, after) = name_parts(path);
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<Backup> = entries
        .filter_map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            let plain = name.strip_suffix(COMPRESSED);
            let time = plain.unwrap_or(&name).strip_prefix(&before)?.strip_suffix(&after)?;
            let time = jiff::civil::DateTime::strptime("%Y-%m-%dT%H-%M-%S%.f", time).ok()?;
            let time = time.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp();
            Some(Backup { path: entry.path(), time, is_compressed: plain.is_some() })
        })
        .collect();
    found.sort_by_key(|backup| std::cmp::Reverse(backup.time));
    found
}

/// Removes rotated files beyond the limits and compresses the others.
fn clean_up(path: &Path, rotation: Rotation, now: Timestamp) {
    let max_age = Duration::from_secs(rotation.max_days.saturating_mul(DAY));
    for (number, backup) in backups(path).into_iter().enumerate() {
        let age = now.duration_since(backup.time).unsigned_abs();
        let is_beyond_count = rotation.max_backups > 0 && number >= rotation.max_backups;
        let is_too_old = rotation.max_days > 0 && age > max_age;
        let result = if is_beyond_count || is_too_old {
            fs::remove_file(&backup.path)
        } else if rotation.is_compressed && !backup.is_compressed {
            compress(&backup.path)
        } else {
            Ok(())
        };
        if let Err(error) = result {
            tracing::warn!(path = %backup.path.display(), %error, "cannot remove or compress a rotated audit log");
        }
    }
}

/// Replaces a file by its compressed form.
fn compress(path: &Path) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(COMPRESSED);
    let target = PathBuf::from(name);
    let unfinished = target.with_extension("gz.new");
    let mut source = File::open(path)?;
    let created = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
    let mut encoder = GzEncoder::new(created, Compression::default());
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let length = source.read(&mut buffer)?;
        let Some(part) = buffer.get(..length).filter(|part| !part.is_empty()) else { break };
        encoder.write_all(part)?;
    }
    encoder.finish()?.sync_all()?;
    fs::rename(&unfinished, &target)?;
    fs::remove_file(path)
}

#[cfg(test)]
mod tests {
    use apimachinery::clock::ManualClock;
    use apimachinery::time;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    fn clock() -> Arc<ManualClock> {
        Arc::new(ManualClock::at(time::parse("2026-01-02T03:04:05Z").unwrap()))
    }

    #[test]
    fn full_audit_log_is_renamed_with_time_and_lines_stay_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let clock = clock();
        let rotation = Rotation { max_megabytes: 1, ..Rotation::default() };
        let mut file = LogFile::open(&path, rotation, clock.clone()).unwrap();
        let line = [vec![b'x'; (MEGABYTE / 2) as usize], b"\n".to_vec()].concat();
        for _ in 0..3 {
            file.write_all(&line).unwrap();
        }
        file.finish_cleanup();
        let rotated = ["audit-2026-01-02T03-04-05.000.log", "audit-2026-01-02T03-04-05.001.log"];
        assert_eq!(names(folder.path()), [rotated[0], rotated[1], "audit.log"]);
        assert_eq!(fs::read(folder.path().join(rotated[0])).unwrap(), line);
        // A file that exists counts with its size.
        drop(file);
        let mut file = LogFile::open(&path, rotation, clock).unwrap();
        file.write_all(&line).unwrap();
        assert_eq!(names(folder.path()).len(), 4);
    }

    #[test]
    fn rotated_audit_logs_are_limited_by_number_and_age_and_compressed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let file_at = |text: &str| fs::write(folder.path().join(text), "line\n").unwrap();
        for name in [
            "audit-2025-12-01T00-00-00.000.log",
            "audit-2026-01-01T00-00-00.000.log",
            "audit-2026-01-02T00-00-00.000.log.gz",
            "audit-2026-01-02T01-00-00.000.log",
            "audit.log",
            "audit-notes.log",
            "other-2025-12-01T00-00-00.000.log",
        ] {
            file_at(name);
        }
        let now = clock().now();
        clean_up(&path, Rotation { max_days: 2, ..Rotation::default() }, now);
        assert!(!names(folder.path()).contains(&"audit-2025-12-01T00-00-00.000.log".to_owned()));
        assert_eq!(names(folder.path()).len(), 6);
        clean_up(&path, Rotation { max_backups: 2, is_compressed: true, ..Rotation::default() }, now);
        assert_eq!(
            names(folder.path()),
            [
                "audit-2026-01-02T00-00-00.000.log.gz",
                "audit-2026-01-02T01-00-00.000.log.gz",
                "audit-notes.log",
                "audit.log",
                "other-2025-12-01T00-00-00.000.log",
            ]
        );
        let compressed = File::open(folder.path().join("audit-2026-01-02T01-00-00.000.log.gz")).unwrap();
        let mut text = String::new();
        flate2::read::GzDecoder::new(compressed).read_to_string(&mut text).unwrap();
        assert_eq!(text, "line\n");
    }
}
