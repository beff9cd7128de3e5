//! Reads the lines of an audit log, which a server may still write and rotate.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::inspect::InspectError;

/// The lines of a log.
pub(super) struct LogLines {
    path: PathBuf,
    reader: BufReader<Box<dyn Read>>,
    /// Device and inode of the open file; None for standard input.
    id: Option<(u64, u64)>,
    /// A line whose end is not written yet.
    partial: Vec<u8>,
    line_number: usize,
}

impl LogLines {
    /// Opens a log; `-` is standard input.
    pub(super) fn open(path: &Path) -> Result<Self, InspectError> {
        let (input, id): (Box<dyn Read>, _) = if path == Path::new("-") {
            (Box::new(std::io::stdin()), None)
        } else {
            let open = || {
                let file = File::open(path)?;
                let metadata = file.metadata()?;
                Ok::<_, std::io::Error>((file, (metadata.dev(), metadata.ino())))
            };
            let (file, id) = open().map_err(|error| failure(path, &error))?;
            (Box::new(file), Some(id))
        };
        let reader = BufReader::with_capacity(256 * 1024, input);
        Ok(LogLines { path: path.to_owned(), reader, id, partial: Vec::new(), line_number: 0 })
    }

    /// The name of the log in messages.
    pub(super) fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// The number of the last line, from 1.
    pub(super) fn line_number(&self) -> usize {
        self.line_number
    }

    /// Returns the next complete line; None at the present end of the log. The last line of a file counts as complete
    /// if it is a JSON object.
    pub(super) fn next_line(&mut self) -> Result<Option<String>, InspectError> {
        self.reader.read_until(b'\n', &mut self.partial).map_err(|error| failure(&self.path, &error))?;
        let is_complete = self.partial.last() == Some(&b'\n')
            || serde_json::from_slice::<serde::de::IgnoredAny>(&self.partial).is_ok();
        if !is_complete {
            return Ok(None);
        }
        self.line_number += 1;
        let line = std::mem::take(&mut self.partial);
        Ok(Some(String::from_utf8_lossy(&line).into_owned()))
    }

    /// Opens the path again if it names another file, because the server has rotated the log. The caller has read the
    /// open file to its end.
    pub(super) fn reopen_if_replaced(&mut self) -> Result<(), InspectError> {
        let Some(id) = self.id else { return Ok(()) };
        // Without the path the server is about to create the file.
        let Ok(metadata) = std::fs::metadata(&self.path) else { return Ok(()) };
        if (metadata.dev(), metadata.ino()) == id {
            return Ok(());
        }
        // Lines that were written between the last read and the rotation.
        let mut rest = std::mem::take(&mut self.partial);
        self.reader.read_to_end(&mut rest).map_err(|error| failure(&self.path, &error))?;
        if rest.last().is_some_and(|byte| *byte != b'\n') {
            // The next line belongs to the new file.
            rest.push(b'\n');
        }
        let LogLines { path, reader, id, .. } = LogLines::open(&self.path)?;
        let unread = std::io::Cursor::new(rest);
        let reader: BufReader<Box<dyn Read>> = BufReader::new(Box::new(unread.chain(reader)));
        *self = LogLines { path, reader, id, partial: Vec::new(), line_number: 0 };
        Ok(())
    }
}

fn failure(path: &Path, error: &std::io::Error) -> InspectError {
    InspectError::new(format!("audit log `{}`: {error}", path.display()))
}
