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
/// Number of bytes at the end of the log that are searched for these lines.
const SHOWN_BYTES: u64 = 64 << 10;

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
        let reason = last_lines(&mut self.file, self.begin).unwrap_or_else(|error| error.to_string());
        let _ = writeln!(self.console, "{reason}\napid up: the server ended; log: {}", path.display());
    }
}

/// Returns the last lines of a log after the byte `begin`. Bytes that are not UTF-8 are replaced.
fn last_lines(file: &mut File, begin: u64) -> io::Result<String> {
    let end = file.metadata()?.len();
    file.seek(SeekFrom::Start(begin.max(end.saturating_sub(SHOWN_BYTES))))?;
    let mut bytes = Vec::new();
    file.take(SHOWN_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let mut lines: Vec<&str> = text.lines().rev().take(SHOWN_LINES).collect();
    lines.reverse();
    Ok(lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_shows_last_lines_of_log_with_invalid_utf8() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"of an earlier start\n").unwrap();
        let begin = file.metadata().unwrap().len();
        assert_eq!(last_lines(&mut file, begin).unwrap(), "");
        file.write_all(b"one \xff\ntwo\n").unwrap();
        assert_eq!(last_lines(&mut file, begin).unwrap(), "one \u{fffd}\ntwo");
        for number in 0..20_000 {
            writeln!(file, "line {number}").unwrap();
        }
        let expected: Vec<String> = (19_985..20_000).map(|number| format!("line {number}")).collect();
        assert_eq!(last_lines(&mut file, begin).unwrap(), expected.join("\n"));
        file.write_all(&[b'x'; 200_000]).unwrap();
        let shown = last_lines(&mut file, begin).unwrap();
        assert!(shown.len() as u64 <= SHOWN_BYTES, "{}", shown.len());
    }
}
