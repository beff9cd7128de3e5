//! The audit log file with rotation by size, and the removal and compression of rotated files.
//!
//! # Contract
//!
//! A line that would exceed the maximum size begins a new file; rotation never splits a line. The full file gets
//! the time in its name: `audit.log` becomes `audit-2025-01-02T03-04-05.678.log`. A thread then removes rotated
//! files beyond the limits of number and age, and compresses the others (`.gz`) if configured. A rotation during this
//! work causes one more run.
//!
//! # Errors
//!
//! After a failure of the system or a full disk, a file can end within a line. The line gets its end before the next
//! line. A write may accept a part of the bytes; the caller continues with the rest. A failed rotation is logged and
//! repeated at the next line that does not fit. Until the rotation succeeds, lines go to the file that is open.
//!
//! # Reference
//!
//! Names, times in UTC and limits are the same as in lumberjack, which kube-apiserver uses.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, SyncSender};
use std::thread::JoinHandle;
use std::time::Duration;

use apimachinery::clock::Clock;
use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;

use crate::counts::LogLimit;

/// Maximum size of the file in megabytes if the flag is 0.
const DEFAULT_MEGABYTES: u64 = 100;
/// The time in the names of rotated files.
const TIME_FORMAT: &str = "%Y-%m-%dT%H-%M-%S.%3f";
/// The suffix of compressed files.
const COMPRESSED: &str = ".gz";
/// Bytes per megabyte, as in lumberjack.
const MEGABYTE: u64 = 1 << 20;
/// The byte that ends a line.
const NEWLINE: u8 = b'\n';
/// Seconds per day.
const DAY: u64 = 24 * 3600;

/// Maximum size of the audit log, and limits of its rotated files.
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
    /// Whether the last written byte ends a line.
    is_line_start: bool,
    /// Whether the file ends with a part of a line that has no rest. The next write ends this line first.
    has_fragment: bool,
    rotation_failures: LogLimit,
    rotation: Rotation,
    clock: Arc<dyn Clock>,
    /// The thread that removes and compresses rotated files, after the first rotation.
    cleaner: Option<Cleaner>,
}

/// Thread that removes and compresses rotated files on request, until `requests` is dropped.
struct Cleaner {
    /// Each request is the time of a rotation. At most one request waits, because one run examines all files.
    requests: SyncSender<Timestamp>,
    #[cfg_attr(not(test), expect(dead_code, reason = "only tests wait for the end of the thread"))]
    thread: JoinHandle<()>,
}

impl Cleaner {
    fn start(path: &Path, rotation: Rotation) -> io::Result<Self> {
        let (requests, rotations) = mpsc::sync_channel(1);
        let path = path.to_owned();
        let work = move || rotations.iter().for_each(|now| clean_up(&path, rotation, now));
        let thread = std::thread::Builder::new().name("audit-cleanup".to_owned()).spawn(work)?;
        Ok(Cleaner { requests, thread })
    }
}

impl LogFile {
    /// Opens the file for appending, and creates it with mode 0600.
    pub(super) fn open(path: &Path, rotation: Rotation, clock: Arc<dyn Clock>) -> io::Result<Self> {
        let (file, bytes) = open_for_append(path)?;
        Ok(LogFile {
            path: path.to_owned(),
            file,
            bytes,
            is_line_start: true,
            has_fragment: has_fragment(path, bytes),
            rotation_failures: LogLimit::default(),
            rotation,
            clock,
            cleaner: None,
        })
    }

    /// Opens the path again, because the file was renamed.
    pub(super) fn reopen(&mut self) -> io::Result<()> {
        (self.file, self.bytes) = open_for_append(&self.path)?;
        self.is_line_start = true;
        self.has_fragment = has_fragment(&self.path, self.bytes);
        Ok(())
    }

    /// Renames the full file and opens a new file. If the full file is renamed or removed already, only opens
    /// a new file: a previous rotation could not open it, or a different program rotates the log.
    fn rotate(&mut self) -> io::Result<()> {
        match fs::rename(&self.path, self.unused_backup_path()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => self.reopen()?,
        }
        if self.cleaner.is_none() {
            let cleaner = Cleaner::start(&self.path, self.rotation).inspect_err(|error| {
                tracing::warn!(path = %self.path.display(), %error, "audit log cleaner did not start; retrying at the next rotation");
            });
            self.cleaner = cleaner.ok();
        }
        if let Some(cleaner) = &self.cleaner {
            // If the queue is full, the run of the queued request begins after this rotation.
            let _ = cleaner.requests.try_send(self.clock.now());
        }
        Ok(())
    }

    /// Returns the path of the next rotated file. Two rotations within a millisecond get different times.
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
        if let Some(Cleaner { requests, thread }) = self.cleaner.take() {
            drop(requests);
            thread.join().unwrap();
        }
    }

    /// Rotates the file if not even the first line fits. Returns the number of bytes of `lines` to write to
    /// the open file: the length of the lines that fit, but at least of one line.
    fn rotate_if_full(&mut self, lines: &[u8]) -> usize {
        let mut fitting = self.fitting_lines(lines);
        if fitting == 0 && self.is_line_start && self.bytes > 0 {
            if let Err(error) = self.rotate()
                && self.rotation_failures.allows(self.clock.monotonic())
            {
                tracing::error!(
                    path = %self.path.display(),
                    %error,
                    "audit log rotation failed; the file grows beyond its maximum size"
                );
            }
            fitting = self.fitting_lines(lines);
        }
        if fitting > 0 {
            return fitting;
        }
        lines.iter().position(|byte| *byte == NEWLINE).map_or(lines.len(), |end| end + 1)
    }

    /// Returns the length of the whole lines that fit into the file.
    fn fitting_lines(&self, lines: &[u8]) -> usize {
        let room =
            usize::try_from(self.rotation.max_bytes().saturating_sub(self.bytes)).unwrap_or(usize::MAX);
        let Some(beginning) = lines.get(..room) else { return lines.len() };
        beginning.iter().rposition(|byte| *byte == NEWLINE).map_or(0, |end| end + 1)
    }
}

impl Write for LogFile {
    /// Writes lines, or the rest of a line that a previous call wrote in part.
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        let length = self.rotate_if_full(lines);
        if self.has_fragment {
            self.file.write_all(&[NEWLINE])?;
            self.bytes = self.bytes.saturating_add(1);
            self.has_fragment = false;
        }
        let part = lines.get(..length).unwrap_or(lines);
        let written = self.file.write(part)?;
        if let Some(last) = written.checked_sub(1).and_then(|last| part.get(last)) {
            self.is_line_start = *last == NEWLINE;
        }
        self.bytes = self.bytes.saturating_add(u64::try_from(written).unwrap_or(u64::MAX));
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Opens a file for appending and returns its size.
fn open_for_append(path: &Path) -> io::Result<(File, u64)> {
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    let bytes = file.metadata()?.len();
    Ok((file, bytes))
}

/// Whether a file of this size ends within a line, for example because the system stopped during a write. A file that
/// cannot be read counts as such a file, because an empty line does no harm.
fn has_fragment(path: &Path, bytes: u64) -> bool {
    let Some(last) = bytes.checked_sub(1) else { return false };
    let mut byte = [0];
    let read = File::open(path).and_then(|file| file.read_exact_at(&mut byte, last));
    read.is_err() || byte != [NEWLINE]
}

/// The parts of the names of rotated files before and after the time.
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
struct RotatedFile {
    path: PathBuf,
    time: Timestamp,
    is_compressed: bool,
}

/// The rotated files of a log, newest first.
fn rotated_files(path: &Path) -> Vec<RotatedFile> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let (before, after) = name_parts(path);
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<RotatedFile> = entries
        .filter_map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            let plain = name.strip_suffix(COMPRESSED);
            let time = plain.unwrap_or(&name).strip_prefix(&before)?.strip_suffix(&after)?;
            let time = jiff::civil::DateTime::strptime("%Y-%m-%dT%H-%M-%S%.f", time).ok()?;
            let time = time.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp();
            Some(RotatedFile { path: entry.path(), time, is_compressed: plain.is_some() })
        })
        .collect();
    files.sort_by_key(|file| std::cmp::Reverse(file.time));
    files
}

/// Removes rotated files beyond the limits and compresses the others.
fn clean_up(path: &Path, rotation: Rotation, now: Timestamp) {
    let max_age = Duration::from_secs(rotation.max_days.saturating_mul(DAY));
    for (number, file) in rotated_files(path).into_iter().enumerate() {
        // After the clock was set back, the time in the name can be in the future; the age then counts as 0.
        let age = Duration::try_from(now.duration_since(file.time)).unwrap_or_default();
        let is_beyond_count = rotation.max_backups > 0 && number >= rotation.max_backups;
        let is_too_old = rotation.max_days > 0 && age > max_age;
        let result = if is_beyond_count || is_too_old {
            fs::remove_file(&file.path)
        } else if rotation.is_compressed && !file.is_compressed {
            compress(&file.path)
        } else {
            Ok(())
        };
        if let Err(error) = result {
            tracing::warn!(path = %file.path.display(), %error, "cannot remove or compress a rotated audit log");
        }
    }
}

/// Replaces a file by its compressed form.
fn compress(path: &Path) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(COMPRESSED);
    let target = PathBuf::from(name);
    let temporary = target.with_extension("gz.new");
    let mut source = File::open(path)?;
    let output = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    let mut encoder = GzEncoder::new(output, Compression::default());
    io::copy(&mut source, &mut encoder)?;
    encoder.finish()?.sync_all()?;
    fs::rename(&temporary, &target)?;
    fs::remove_file(path)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

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

    /// Rotation with the smallest maximum size of a file.
    const SMALL: Rotation = Rotation { max_megabytes: 1, max_days: 0, max_backups: 0, is_compressed: false };

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
        // The size of an existing file counts against the maximum size.
        drop(file);
        let mut file = LogFile::open(&path, rotation, clock).unwrap();
        file.write_all(&line).unwrap();
        assert_eq!(names(folder.path()).len(), 4);
    }

    #[test]
    fn rotation_during_cleanup_causes_one_more_run() {
        let folder = tempfile::tempdir().unwrap();
        let rotation = Rotation { max_backups: 1, is_compressed: true, ..SMALL };
        let mut file = LogFile::open(&folder.path().join("audit.log"), rotation, clock()).unwrap();
        let line = [vec![b'x'; (MEGABYTE / 2) as usize], b"\n".to_vec()].concat();
        for _ in 0..20 {
            file.write_all(&line).unwrap();
        }
        file.finish_cleanup();
        let found = names(folder.path());
        assert!(found.len() == 2 && found[0].ends_with(COMPRESSED), "{found:?}");
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

    /// A line longer than half the maximum size of a file, so each file contains only one such line.
    fn long_line() -> Vec<u8> {
        [vec![b'x'; (MEGABYTE / 2) as usize], b"\n".to_vec()].concat()
    }

    #[test]
    fn full_audit_log_without_path_is_created_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let mut file = LogFile::open(&path, SMALL, clock()).unwrap();
        file.write_all(&long_line()).unwrap();
        fs::rename(&path, folder.path().join("renamed")).unwrap();
        file.write_all(&long_line()).unwrap();
        assert_eq!(fs::read(&path).unwrap(), long_line());
        assert_eq!(names(folder.path()), ["audit.log", "renamed"]);
    }

    #[test]
    fn audit_log_that_cannot_be_opened_after_its_rename_is_opened_later() {
        let root = tempfile::tempdir().unwrap();
        let (folder, moved) = (root.path().join("log"), root.path().join("moved"));
        fs::create_dir(&folder).unwrap();
        let path = folder.join("audit.log");
        let mut file = LogFile::open(&path, SMALL, clock()).unwrap();
        file.write_all(&long_line()).unwrap();
        fs::rename(&folder, &moved).unwrap();
        file.write_all(b"without a folder\n").unwrap();
        file.write_all(&long_line()).unwrap();
        let previous = [long_line(), b"without a folder\n".to_vec(), long_line()].concat();
        assert_eq!(fs::read(moved.join("audit.log")).unwrap(), previous, "the open file receives the lines");
        fs::create_dir(&folder).unwrap();
        file.write_all(b"next\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "next\n");
    }

    #[test]
    fn audit_log_that_cannot_be_renamed_receives_all_lines() {
        let root = tempfile::tempdir().unwrap();
        let (folder, moved) = (root.path().join("log"), root.path().join("moved"));
        fs::create_dir(&folder).unwrap();
        let mut file = LogFile::open(&folder.join("audit.log"), SMALL, clock()).unwrap();
        fs::rename(&folder, &moved).unwrap();
        fs::write(&folder, "a file instead of the folder").unwrap();
        (0..3).for_each(|_| file.write_all(&long_line()).unwrap());
        assert_eq!(fs::read(moved.join("audit.log")).unwrap(), long_line().repeat(3));
    }

    #[test]
    fn many_lines_of_one_write_are_divided_between_files_at_line_ends() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = LogFile::open(&folder.path().join("audit.log"), SMALL, clock()).unwrap();
        let line = [vec![b'x'; 300 * 1024], b"\n".to_vec()].concat();
        file.write_all(&line.repeat(8)).unwrap();
        let files = names(folder.path());
        assert_eq!(files.len(), 3, "{files:?}");
        for name in files {
            let bytes = fs::read(folder.path().join(name)).unwrap();
            assert!(
                bytes.len() as u64 <= MEGABYTE && bytes.len().is_multiple_of(line.len()),
                "{}",
                bytes.len()
            );
        }
    }

    #[test]
    fn rest_of_a_line_stays_in_the_file_of_its_beginning() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let mut file = LogFile::open(&path, SMALL, clock()).unwrap();
        let (beginning, rest) = (vec![b'x'; MEGABYTE as usize], b"rest\n");
        file.write_all(&beginning).unwrap();
        file.write_all(&[rest.as_slice(), b"next\n"].concat()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "next\n");
        let rotated = folder.path().join("audit-2026-01-02T03-04-05.000.log");
        assert!(fs::read(rotated).unwrap().ends_with(b"xrest\n"));
    }

    #[test]
    fn line_after_a_fragment_begins_a_new_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        fs::write(&path, "one\nfrag").unwrap();
        let mut file = LogFile::open(&path, SMALL, clock()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\nfrag", "only a write changes the file");
        file.write_all(b"two\n").unwrap();
        file.write_all(b"part").unwrap();
        file.reopen().unwrap();
        file.write_all(b"three\n").unwrap();
        file.reopen().unwrap();
        file.write_all(b"four\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\nfrag\ntwo\npart\nthree\nfour\n");
        assert_eq!(file.bytes, fs::metadata(&path).unwrap().len());
    }

    #[test]
    fn rotated_audit_logs_of_the_future_are_not_too_old() {
        let folder = tempfile::tempdir().unwrap();
        let name = "audit-2026-03-01T00-00-00.000.log";
        fs::write(folder.path().join(name), "line\n").unwrap();
        let rotation = Rotation { max_days: 2, ..Rotation::default() };
        clean_up(&folder.path().join("audit.log"), rotation, clock().now());
        assert_eq!(names(folder.path()), [name]);
    }

    #[test]
    fn rotated_audit_log_stays_when_it_cannot_be_compressed() {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = ("audit-2026-01-01T00-00-00.000.log", "audit-2026-01-02T00-00-00.000.log");
        for name in [first, second] {
            fs::write(folder.path().join(name), "line\n").unwrap();
        }
        let obstacle = format!("{second}.gz.new");
        fs::create_dir(folder.path().join(&obstacle)).unwrap();
        let rotation = Rotation { is_compressed: true, ..Rotation::default() };
        clean_up(&folder.path().join("audit.log"), rotation, clock().now());
        assert_eq!(names(folder.path()), [format!("{first}.gz"), second.to_owned(), obstacle]);
    }
}
