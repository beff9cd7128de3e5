//! Standard error of both processes in a file.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Size in bytes above which a start moves the log of earlier starts to `apid.log.1`.
const MAX_BYTES: u64 = 64 << 20;
/// Number of log lines that a failure shows.
const SHOWN_LINES: usize = 15;

/// The redirected standard error.
pub(super) struct LogFile {
    file: File,
    /// The size of the file before the start.
    begin: u64,
    console: File,
}

impl LogFile {
    /// Appends standard error of this process, and of its children, to a file of mode 0600.
    pub(super) fn redirect(path: &Path) -> io::Result<Self> {
        if fs::metadata(path).is_ok_and(|file| file.len() > MAX_BYTES) {
            fs::rename(path, path.with_added_extension("1"))?;
        }
        let file = fs::OpenOptions::new().create(true).append(true).read(true).mode(0o600).open(path)?;
        let begin = file.metadata()?.len();
        let console = File::from(io::stderr().as_fd().try_clone_to_owned()?);
        rustix::stdio::dup2_stderr(&file)?;
        Ok(LogFile { file, begin, console })
    }

    /// Prints the last log lines of this start on the standard error of the caller.
    pub(super) fn report_failure(mut self, path: &Path) {
        let mut text = String::new();
        let read =
            self.file.seek(SeekFrom::Start(self.begin)).and_then(|_| self.file.read_to_string(&mut text));
        let mut lines: Vec<&str> = text.lines().rev().take(SHOWN_LINES).collect();
        lines.reverse();
        let reason = match read {
            Ok(_) => lines.join("\n"),
            Err(error) => error.to_string(),
        };
        let _ = writeln!(self.console, "{reason}\napid up: the server ended; log: {}", path.display());
    }
}
