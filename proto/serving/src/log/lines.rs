//! One line for each event in text logs, also when a value contains line breaks, such as an error of an expression.

use std::borrow::Cow;
use std::io::{self, Write};

/// Writes log events to standard error, with escaped line breaks in their values.
#[derive(Debug, Default)]
pub(super) struct LineWriter;

impl Write for LineWriter {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        io::stderr().write_all(&single_line(event))?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Escapes all line breaks but the last byte.
fn single_line(event: &[u8]) -> Cow<'_, [u8]> {
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
    fn event_with_line_breaks_is_one_line() {
        let line = |event: &str| String::from_utf8(single_line(event.as_bytes()).into_owned()).unwrap();
        assert_eq!(line("an event a=1\n"), "an event a=1\n");
        assert_eq!(
            line("invalid error=ERROR: <input>:1:3\n | a +\r\n | ..^\n"),
            "invalid error=ERROR: <input>:1:3\\n | a +\\r\\n | ..^\n"
        );
    }
}
