//! Writes the lines of the audit log on a separate thread, outside the request path.
//!
//! # Contract
//!
//! [`LogWriter::reopen`] and lines go through one queue, so a line queued before a reopening goes to the old file. A line
//! of [`LogWriter::write_confirmed`] is confirmed when the system has accepted it.
//!
//! # Errors
//!
//! Lines that cannot be written wait in a bounded buffer and are written, each once and whole, when the file
//! accepts bytes again. A line for which the buffer has no room is lost and counted. A line after the end of the log,
//! and a line whose request ends while the queue is full, are lost and counted too.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use apimachinery::clock::Clock;
use parking_lot::Mutex;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::rotation::{LogFile, Rotation};
use crate::counts::{Counts, LogLimit, Plugin};

/// Maximum number of queued lines. While the queue is full, requests wait.
const QUEUE: usize = 4096;
/// Size in bytes of a line above which the line also waits for a share of [`LARGE_LINES`].
const LARGE_LINE: usize = 16 * 1024;
/// Maximum total size in bytes of queued large lines. A longer line waits until no other large line is queued.
const LARGE_LINES: usize = 64 << 20;

/// The queue of the lines of the audit log, and the thread that writes them.
pub(crate) struct LogWriter {
    queue: Mutex<Option<mpsc::Sender<Command>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    large_lines: Arc<Semaphore>,
    counts: Arc<Counts>,
}

/// A line, and what depends on its end.
struct Line {
    bytes: Vec<u8>,
    /// Receives whether the line is written.
    confirmation: Option<oneshot::Sender<bool>>,
    _share: Option<OwnedSemaphorePermit>,
}

/// A line that waits for the queue. If the request no longer waits, the line is queued at once, or lost and counted.
struct UnqueuedLine<'w> {
    writer: &'w LogWriter,
    /// Empty after the line is queued.
    bytes: Vec<u8>,
}

impl Drop for UnqueuedLine<'_> {
    fn drop(&mut self) {
        if !self.bytes.is_empty() {
            self.writer.write_now(std::mem::take(&mut self.bytes));
        }
    }
}

/// The share of [`LARGE_LINES`] of a line with this size; None for a small line.
fn share_of(size: usize) -> Option<u32> {
    (size > LARGE_LINE).then(|| u32::try_from(size.min(LARGE_LINES)).unwrap_or(u32::MAX))
}

/// A command to the audit thread.
enum Command {
    /// Write a line.
    Line(Line),
    /// Open the file again, after the lines before this command.
    Reopen,
}

/// A destination of lines that can be opened again.
trait Sink: Write + Send + 'static {
    fn reopen(&mut self) -> io::Result<()>;
}

impl Sink for io::Stdout {
    fn reopen(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sink for LogFile {
    fn reopen(&mut self) -> io::Result<()> {
        LogFile::reopen(self)
    }
}

impl LogWriter {
    /// Opens a log in a file, created with mode 0600; `-` is the standard output, which is never rotated.
    ///
    /// # Errors
    ///
    /// The file cannot be opened.
    pub(crate) fn open(
        path: &str,
        rotation: Rotation,
        clock: Arc<dyn Clock>,
        counts: Arc<Counts>,
    ) -> io::Result<Self> {
        match path {
            "-" => Self::start(io::stdout(), counts),
            path => Self::start(LogFile::open(Path::new(path), rotation, clock)?, counts),
        }
    }

    fn start(sink: impl Sink, counts: Arc<Counts>) -> io::Result<Self> {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let counts_of_thread = Arc::clone(&counts);
        let thread = std::thread::Builder::new()
            .name("audit".to_owned())
            .spawn(move || write_queued_lines(receiver, sink, &counts_of_thread))?;
        Ok(LogWriter {
            queue: Mutex::new(Some(sender)),
            thread: Mutex::new(Some(thread)),
            large_lines: Arc::new(Semaphore::new(LARGE_LINES)),
            counts,
        })
    }

    /// Queues a line; waits while the queue is full.
    pub(crate) async fn write(&self, bytes: Vec<u8>) {
        self.queue_line(bytes, None).await;
    }

    /// Queues a line and waits until it is written. Returns false if it cannot be written now.
    pub(crate) async fn write_confirmed(&self, bytes: Vec<u8>) -> bool {
        let (confirmation, confirmed) = oneshot::channel();
        self.queue_line(bytes, Some(confirmation)).await;
        confirmed.await.unwrap_or(false)
    }

    async fn queue_line(&self, bytes: Vec<u8>, confirmation: Option<oneshot::Sender<bool>>) {
        let mut line = UnqueuedLine { writer: self, bytes };
        let Some(queue) = self.queue.lock().clone() else { return };
        let share = match share_of(line.bytes.len()) {
            None => None,
            Some(share) => Arc::clone(&self.large_lines).acquire_many_owned(share).await.ok(),
        };
        if let Ok(place) = queue.reserve().await {
            let bytes = std::mem::take(&mut line.bytes);
            place.send(Command::Line(Line { bytes, confirmation, _share: share }));
        }
    }

    /// Queues a line without waiting, for code that cannot wait. If the queue has no room, the line is lost and
    /// counted.
    pub(crate) fn write_now(&self, bytes: Vec<u8>) {
        if let Err(reason) = self.try_queue(bytes) {
            self.counts.lose(Plugin::Log, 1, &reason);
        }
    }

    fn try_queue(&self, bytes: Vec<u8>) -> Result<(), &'static str> {
        let queue = self.queue.lock().clone().ok_or("the audit log is closed")?;
        let share = match share_of(bytes.len()) {
            None => None,
            Some(share) => {
                let share = Arc::clone(&self.large_lines).try_acquire_many_owned(share);
                Some(share.map_err(|_| "the queued lines of the audit log have too many bytes")?)
            }
        };
        let line = Command::Line(Line { bytes, confirmation: None, _share: share });
        queue.try_send(line).map_err(|error| match error {
            TrySendError::Full(_) => "the queue of the audit log is full",
            TrySendError::Closed(_) => "the audit thread has ended",
        })
    }

    /// Opens the file again after the queued lines, because another program may have renamed it.
    pub(crate) async fn reopen(&self) {
        let Some(queue) = self.queue.lock().clone() else { return };
        // A closed queue means that the log ends.
        let _ = queue.send(Command::Reopen).await;
    }

    /// Writes the queued lines and ends the thread. Blocks.
    pub(crate) fn close(&self) {
        drop(self.queue.lock().take());
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("audit thread panicked; queued lines are lost");
        }
    }
}

/// Size in bytes of the buffered lines above which the thread writes them, even while more lines are queued.
const BUFFER: usize = 64 * 1024;
/// Maximum size in bytes of the buffered lines while the file accepts no bytes; further lines are lost.
const MAX_PENDING: usize = 1024 * 1024;
/// Pause after a write. A busy server writes the lines of a pause together, and its I/O threads need not wake the
/// audit thread for each line.
const WRITE_PAUSE: Duration = Duration::from_millis(1);

/// Lines that are not completely written yet, and their destination.
struct LineBuffer<S> {
    sink: S,
    /// Whole lines; the first one may be written in part.
    pending: Vec<u8>,
    /// Number of bytes of the first pending line that are written already.
    written: usize,
}

impl<S: Sink> LineBuffer<S> {
    fn new(sink: S) -> Self {
        LineBuffer { sink, pending: Vec::with_capacity(BUFFER), written: 0 }
    }

    /// Adds a line. Writes the buffered lines first if the line would make them larger than [`BUFFER`].
    ///
    /// # Errors
    ///
    /// The buffered lines cannot be written, and the line would exceed [`MAX_PENDING`]: the line is lost.
    fn add(&mut self, line: &[u8]) -> io::Result<()> {
        if self.pending.len().saturating_add(line.len()) > BUFFER {
            let result = self.flush();
            let is_full = self.pending.len().saturating_add(line.len()) > MAX_PENDING;
            if is_full && !self.pending.is_empty() {
                return result;
            }
        }
        self.pending.extend_from_slice(line);
        Ok(())
    }

    /// Writes all lines. After an error the lines that are not completely written stay.
    fn flush(&mut self) -> io::Result<()> {
        while let Some(rest) = self.pending.get(self.written..).filter(|rest| !rest.is_empty()) {
            let written = match self.sink.write(rest) {
                Ok(0) => Err(io::ErrorKind::WriteZero.into()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                result => result,
            };
            self.written = self.written.saturating_add(written?);
            let complete = self.pending.get(..self.written).unwrap_or_default();
            if let Some(end) = complete.iter().rposition(|byte| *byte == b'\n') {
                self.pending.drain(..=end);
                self.written = self.written.saturating_sub(end + 1);
            }
        }
        self.pending.clear();
        self.written = 0;
        self.sink.flush()
    }

    /// Writes the lines and opens the file again. Lines that the previous file does not accept go to the new one.
    fn reopen(&mut self) -> io::Result<()> {
        let flushed = self.flush();
        self.sink.reopen()?;
        if let Err(error) = flushed {
            tracing::warn!(%error, "the previous audit log accepts no lines; the new one receives them");
            self.written = 0;
        }
        Ok(())
    }

    fn pending_lines(&self) -> usize {
        self.pending.iter().filter(|byte| **byte == b'\n').count()
    }
}

/// Executes the queued commands until all senders are dropped. Flushes and pauses whenever the queue is empty.
fn write_queued_lines(mut queue: mpsc::Receiver<Command>, sink: impl Sink, counts: &Counts) {
    let mut lines = LineBuffer::new(sink);
    let mut failures = LogLimit::default();
    let mut flush = |lines: &mut LineBuffer<_>| {
        let flushed = lines.flush();
        if let Err(error) = &flushed
            && failures.allows(counts.monotonic())
        {
            let lines = lines.pending_lines();
            tracing::error!(%error, lines, "audit write failed; the lines stay in the buffer");
        }
        flushed.is_ok()
    };
    while let Some(command) = queue.blocking_recv() {
        match command {
            Command::Line(Line { bytes, confirmation, .. }) => {
                let added = lines.add(&bytes);
                if let Err(error) = &added {
                    counts.lose(Plugin::Log, 1, error);
                }
                if let Some(confirmation) = confirmation {
                    // The request waits, so the line is written at once. A request that ended no longer waits.
                    let _ = confirmation.send(added.is_ok() && flush(&mut lines));
                    continue;
                }
            }
            Command::Reopen => match lines.reopen() {
                Ok(()) => tracing::info!("audit log reopened"),
                Err(error) => {
                    tracing::error!(%error, "audit log cannot be reopened; using the previous file")
                }
            },
        }
        if queue.is_empty() {
            flush(&mut lines);
            std::thread::sleep(WRITE_PAUSE);
        }
    }
    if let Err(error) = lines.flush() {
        let lost = lines.pending_lines();
        counts.lose(Plugin::Log, u64::try_from(lost).unwrap_or(u64::MAX), &error);
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::clock::SystemClock;

    use super::*;

    fn counts() -> Arc<Counts> {
        Arc::new(Counts::new(Arc::new(SystemClock::new())))
    }

    fn open(path: &Path) -> LogWriter {
        let clock = Arc::new(SystemClock::new());
        LogWriter::open(path.to_str().unwrap(), Rotation::default(), clock, counts()).unwrap()
    }

    #[tokio::test]
    async fn reopened_audit_log_writes_to_new_file() {
        let dir = tempfile::tempdir().unwrap();
        let (path, renamed) = (dir.path().join("audit.log"), dir.path().join("audit.log.1"));
        let log = open(&path);
        log.write(b"one\n".to_vec()).await;
        std::fs::rename(&path, &renamed).unwrap();
        log.reopen().await;
        log.write(b"two\n".to_vec()).await;
        log.close();
        assert_eq!(std::fs::read_to_string(&renamed).unwrap(), "one\n");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "two\n");
    }

    #[tokio::test]
    async fn audit_log_close_writes_all_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let log = open(&path);
        for i in 0..3 * QUEUE {
            log.write(format!("{i}\n").into_bytes()).await;
        }
        log.close();
        assert_eq!(log.counts.lost(), 0);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.lines().enumerate().all(|(i, line)| line == i.to_string()));
        assert_eq!(text.lines().count(), 3 * QUEUE);
    }

    /// A destination with space for a number of bytes.
    #[derive(Clone, Default)]
    struct Disk(Arc<Mutex<DiskState>>);

    #[derive(Default)]
    struct DiskState {
        space: usize,
        files: Vec<Vec<u8>>,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut disk = self.0.lock();
            let length = bytes.len().min(disk.space);
            if length == 0 {
                return Err(io::Error::other("no space left"));
            }
            disk.space -= length;
            disk.files.last_mut().unwrap().extend_from_slice(&bytes[..length]);
            Ok(length)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Sink for Disk {
        fn reopen(&mut self) -> io::Result<()> {
            self.0.lock().files.push(Vec::new());
            Ok(())
        }
    }

    fn disk(space: usize) -> Disk {
        Disk(Arc::new(Mutex::new(DiskState { space, files: vec![Vec::new()] })))
    }

    #[tokio::test]
    async fn audit_write_failure_counts_each_lost_line_once() {
        let log = LogWriter::start(disk(0), counts()).unwrap();
        for _ in 0..3 {
            log.write(b"line\n".to_vec()).await;
        }
        log.close();
        assert_eq!(log.counts.lost(), 3);
        let log = LogWriter::start(disk(0), counts()).unwrap();
        let long = [vec![b'x'; MAX_PENDING], b"\n".to_vec()].concat();
        log.write(long.clone()).await;
        log.write(long).await;
        log.close();
        assert_eq!(log.counts.lost(), 2, "one exceeds the buffer, one waits at the end");
    }

    #[test]
    fn audit_lines_are_whole_and_unique_after_a_partial_write() {
        let disk = disk(7);
        let mut lines = LineBuffer::new(disk.clone());
        lines.add(b"one\ntwo\n").unwrap();
        lines.add(&[vec![b'x'; 2 * BUFFER], b"\n".to_vec()].concat()).unwrap();
        assert!(lines.flush().is_err());
        disk.0.lock().space = usize::MAX;
        lines.add(b"four\n").unwrap();
        lines.flush().unwrap();
        let text = String::from_utf8(disk.0.lock().files.concat()).unwrap();
        assert_eq!(text, format!("one\ntwo\n{}\nfour\n", "x".repeat(2 * BUFFER)));
    }

    #[test]
    fn audit_lines_of_a_full_file_go_whole_to_the_reopened_file() {
        let disk = disk(6);
        let mut lines = LineBuffer::new(disk.clone());
        lines.add(b"one\ntwo\n").unwrap();
        assert!(lines.flush().is_err());
        lines.reopen().unwrap();
        disk.0.lock().space = usize::MAX;
        lines.flush().unwrap();
        assert_eq!(disk.0.lock().files, [b"one\ntw".to_vec(), b"two\n".to_vec()]);
    }

    #[tokio::test]
    async fn confirmed_line_reports_a_full_disk_and_free_space_again() {
        let disk = disk(8);
        let log = LogWriter::start(disk.clone(), counts()).unwrap();
        assert!(log.write_confirmed(b"one\n".to_vec()).await);
        assert!(!log.write_confirmed(b"too long\n".to_vec()).await);
        disk.0.lock().space = usize::MAX;
        assert!(log.write_confirmed(b"two\n".to_vec()).await);
        log.close();
        assert_eq!(disk.0.lock().files.concat(), b"one\ntoo long\ntwo\n");
        assert_eq!(log.counts.lost(), 0);
        assert!(!log.write_confirmed(b"three\n".to_vec()).await, "the log is closed");
        log.write(b"four\n".to_vec()).await;
        log.write_now(b"five\n".to_vec());
        assert_eq!(log.counts.lost(), 3);
    }

    #[tokio::test]
    async fn line_of_a_request_that_no_longer_waits_is_queued_or_counted() {
        let disk = disk(usize::MAX);
        let log = LogWriter::start(disk.clone(), counts()).unwrap();
        let line = [vec![b'x'; LARGE_LINE], b"\n".to_vec()].concat();
        let all = Arc::clone(&log.large_lines).try_acquire_many_owned(LARGE_LINES as u32).unwrap();
        let wait = Duration::from_millis(20);
        assert!(tokio::time::timeout(wait, log.write(line.clone())).await.is_err());
        assert_eq!(log.counts.lost(), 1, "the other lines have too many bytes");
        log.write_now(line.clone());
        assert_eq!(log.counts.lost(), 2, "the limit applies to lines that do not wait");
        {
            let mut waiting = std::pin::pin!(log.write(line.clone()));
            assert!(tokio::time::timeout(wait, &mut waiting).await.is_err());
            drop(all);
        }
        log.close();
        assert_eq!((log.counts.lost(), disk.0.lock().files.concat()), (2, line));
    }

    #[tokio::test]
    async fn large_lines_are_written_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let log = open(&path);
        let line = [vec![b'x'; 4 * LARGE_LINE], b"\n".to_vec()].concat();
        for _ in 0..20 {
            log.write(line.clone()).await;
        }
        log.close();
        assert_eq!(std::fs::read(&path).unwrap(), line.repeat(20));
    }
}
