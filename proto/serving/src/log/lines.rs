//! Lines of the log on standard error: one for each event, with its priority if the journal of systemd reads them.

use std::borrow::Cow;
use std::io::{self, Write};

use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

/// Makes the writer of each event.
pub(super) struct Lines {
    /// Converts a formatted event to the line that is written.
    form: fn(&[u8]) -> Cow<'_, [u8]>,
    /// Whether standard error is the journal.
    is_journal: bool,
}

impl Lines {
    /// Lines on the standard error of this process.
    pub(super) fn new(form: fn(&[u8]) -> Cow<'_, [u8]>) -> Self {
        Lines { form, is_journal: is_journal(std::env::var("JOURNAL_STREAM").ok().as_deref(), io::stderr()) }
    }
}

impl MakeWriter<'_> for Lines {
    type Writer = LineWriter;

    fn make_writer(&self) -> LineWriter {
        LineWriter { form: self.form, priority: "" }
    }

    fn make_writer_for(&self, event: &Metadata<'_>) -> LineWriter {
        let priority = if self.is_journal { priority(*event.level()) } else { "" };
        LineWriter { form: self.form, priority }
    }
}

/// Whether a stream is the one that `JOURNAL_STREAM` names by device and inode. systemd sets the variable for a process
/// whose output the journal reads; a child may write to another stream.
fn is_journal(named: Option<&str>, stream: impl std::os::fd::AsFd) -> bool {
    named.is_some_and(|named| {
        rustix::fs::fstat(stream).is_ok_and(|stream| named == format!("{}:{}", stream.st_dev, stream.st_ino))
    })
}

/// The prefix of a line from which the journal takes its priority: see sd-daemon(3).
fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        Level::DEBUG | Level::TRACE => "<7>",
    }
}

/// Writes one event to standard error.
pub(super) struct LineWriter {
    form: fn(&[u8]) -> Cow<'_, [u8]>,
    priority: &'static str,
}

impl Write for LineWriter {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let line = (self.form)(event);
        match self.priority {
            "" => io::stderr().write_all(&line)?,
            // One write, so that lines of two processes do not mix.
            priority => io::stderr().write_all(&[priority.as_bytes(), &*line].concat())?,
        }
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// The form of text: escapes all line breaks of an event, such as those of an expression, but the last byte.
pub(super) fn single_line(event: &[u8]) -> Cow<'_, [u8]> {
    let text = event.strip_suffix(b"\n").unwrap_or(event);
    if !text.iter().any(|byte| matches!(byte, b'\n' | b'\r')) {
        return Cow::Borrowed(event);
    }
    let mut line = Vec::with_capacity(event.len() + 8);
    for byte in text {
        match byte {
            b'\n' => line.extend_from_slice(b"\\n"),
            b'\r' => line.extend_from_slice(b"\\r"),
            other => line.push(*other),
        }
    }
    line.push(b'\n');
    Cow::Owned(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_priorities_only_in_the_journal_that_is_named() {
        let file = tempfile::tempfile().unwrap();
        let stat = rustix::fs::fstat(&file).unwrap();
        let named = format!("{}:{}", stat.st_dev, stat.st_ino);
        assert!(is_journal(Some(&named), &file));
        assert!(!is_journal(Some(&format!("{named}0")), &file) && !is_journal(None, &file));
        let levels = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE];
        assert_eq!(levels.map(priority), ["<3>", "<4>", "<6>", "<7>", "<7>"]);
    }

    #[test]
    fn event_with_line_breaks_is_one_line() {
        let line = |event: &str| String::from_utf8(single_line(event.as_bytes()).into_owned()).unwrap();
        assert_eq!(line("an event a=1\n"), "an event a=1\n");
        assert_eq!(
            line("invalid error=ERROR: <input>:1:3\n | a +\r\n | ..^\n"),
            "invalid error=ERROR: <input>:1:3\\n | a +\\r\\n | ..^\n"
        );
    }
}
