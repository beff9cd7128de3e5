//! Writes audit lines on a separate thread, outside the request path.
//!
//! # Contract
//!
//! [`AuditLog::reopen`] and lines go through one queue, so a line queued before a reopening goes to the old file.
//!
//! # Errors
//!
//! Lines that cannot be written wait in a bounded buffer and are written, each once and whole, when the file
//! accepts bytes again. A line for which the buffer has no room is lost and counted.

use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use apimachinery::clock::Clock;
use parking_lot::Mutex;
use serving::metrics::{Counter, Counters, Definition, Metrics, Stability};
use tokio::sync::mpsc;

use super::rotation::{LogFile, Rotation};

/// Maximum number of queued lines. While the queue is full, requests wait.
const QUEUE: usize = 4096;

/// The audit log: the queue of its lines, and the thread that writes them.
pub struct AuditLog {
    queue: Mutex<Option<mpsc::Sender<Command>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    counts: Arc<Counts>,
}

/// A command to the audit thread.
enum Command {
    /// Write a line.
    Line(Vec<u8>),
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

/// The counter of lost lines, and the metrics after their registration.
#[derive(Default)]
struct Counts {
    lost_lines: AtomicU64,
    metrics: OnceLock<AuditMetrics>,
}

impl Counts {
    fn add_lost(&self, lines: u64) {
        self.lost_lines.fetch_add(lines, Ordering::Relaxed);
        if let Some(metrics) = self.metrics.get() {
            metrics.lost_lines.inc_by(lines);
        }
    }
}

const ERRORS: Definition = Definition::new(
    "apiserver_audit_error_total",
    Stability::Alpha,
    "Number of audit events that could not be written, by backend",
);
const EVENTS: Definition =
    Definition::new("apiserver_audit_event_total", Stability::Alpha, "Number of audit events");
const LEVELS: Definition = Definition::new(
    "apiserver_audit_level_total",
    Stability::Alpha,
    "Number of audited requests, by the level of the audit policy",
);
const REJECTED: Definition = Definition::new(
    "apiserver_audit_requests_rejected_total",
    Stability::Alpha,
    "Number of requests rejected because of an audit error; apid rejects none, so that it stays 0",
);

/// The counters of lost lines, of audit events and of audited requests.
struct AuditMetrics {
    lost_lines: Counter,
    events: Counter,
    metadata_level: Counter,
}

impl AuditLog {
    /// Returns a disabled log, which drops all lines.
    pub fn off() -> Self {
        AuditLog { queue: Mutex::new(None), thread: Mutex::new(None), counts: Arc::default() }
    }

    /// Opens a log in a file, created with mode 0600; `-` is the standard output, which is never rotated.
    ///
    /// # Errors
    ///
    /// The file cannot be opened.
    pub fn open(path: &str, rotation: Rotation, clock: Arc<dyn Clock>) -> io::Result<Self> {
        match path {
            "-" => Self::start(io::stdout()),
            path => Self::start(LogFile::open(Path::new(path), rotation, clock)?),
        }
    }

    fn start(sink: impl Sink) -> io::Result<Self> {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let log = AuditLog { queue: Mutex::new(Some(sender)), ..AuditLog::off() };
        let counts = Arc::clone(&log.counts);
        let thread = std::thread::Builder::new()
            .name("audit".to_owned())
            .spawn(move || write_queued_lines(receiver, sink, &counts))?;
        *log.thread.lock() = Some(thread);
        Ok(log)
    }

    /// Whether the log is enabled. If the log is disabled, callers construct no lines.
    pub fn is_on(&self) -> bool {
        self.queue.lock().is_some()
    }

    /// Counts a request that is audited.
    pub fn count_request(&self) {
        if let Some(metrics) = self.counts.metrics.get() {
            metrics.metadata_level.inc();
        }
    }

    /// Queues a line; waits while the queue is full.
    pub async fn write(&self, line: Vec<u8>) {
        let Some(queue) = self.queue.lock().clone() else { return };
        self.count_event();
        if queue.send(Command::Line(line)).await.is_err() {
            self.counts.add_lost(1);
        }
    }

    /// Queues a line without waiting, for code that cannot wait. If the queue is full, the line is lost and
    /// counted.
    pub fn write_now(&self, line: Vec<u8>) {
        let Some(queue) = self.queue.lock().clone() else { return };
        self.count_event();
        if queue.try_send(Command::Line(line)).is_err() {
            self.counts.add_lost(1);
            tracing::error!("audit queue full; the line is lost");
        }
    }

    /// Opens the file again after the queued lines, because another program may have renamed it.
    pub async fn reopen(&self) {
        let Some(queue) = self.queue.lock().clone() else { return };
        // A closed queue means that the log ends.
        let _ = queue.send(Command::Reopen).await;
    }

    /// The number of lost lines.
    pub fn lost_lines(&self) -> u64 {
        self.counts.lost_lines.load(Ordering::Relaxed)
    }

    /// Registers the metrics.
    pub fn register_metrics(&self, metrics: &Metrics) {
        let errors: Counters<[(&'static str, &'static str); 1]> = metrics.counter(&ERRORS);
        let lost_lines = errors.get_or_create(&[("plugin", "log")]).clone();
        lost_lines.inc_by(self.lost_lines());
        metrics.single_counter(&REJECTED);
        let levels: Counters<[(&'static str, &'static str); 1]> = metrics.counter(&LEVELS);
        let metadata_level = levels.get_or_create(&[("level", "Metadata")]).clone();
        let events = metrics.single_counter(&EVENTS);
        // A second call changes nothing: the series of the first call stay.
        drop(self.counts.metrics.set(AuditMetrics { lost_lines, events, metadata_level }));
    }

    fn count_event(&self) {
        if let Some(metrics) = self.counts.metrics.get() {
            metrics.events.inc();
        }
    }

    /// Writes the queued lines and ends the thread. Blocks.
    pub fn close(&self) {
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
    while let Some(command) = queue.blocking_recv() {
        match command {
            Command::Line(line) => {
                if let Err(error) = lines.add(&line) {
                    counts.add_lost(1);
                    tracing::error!(%error, "audit write failed; the line is lost");
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
            if let Err(error) = lines.flush() {
                tracing::error!(
                    %error,
                    lines = lines.pending_lines(),
                    "audit write failed; the lines stay in the buffer"
                );
            }
            std::thread::sleep(WRITE_PAUSE);
        }
    }
    if let Err(error) = lines.flush() {
        let lost = lines.pending_lines();
        counts.add_lost(u64::try_from(lost).unwrap_or(u64::MAX));
        tracing::error!(%error, lines = lost, "audit flush failed; lines are lost");
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::clock::SystemClock;

    use super::*;

    fn open(path: &Path) -> AuditLog {
        let clock = Arc::new(SystemClock::new());
        AuditLog::open(path.to_str().unwrap(), Rotation::default(), clock).unwrap()
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
        assert!(log.is_on());
        for i in 0..3 * QUEUE {
            log.write(format!("{i}\n").into_bytes()).await;
        }
        log.close();
        assert!(!log.is_on());
        assert_eq!(log.lost_lines(), 0);
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
        let log = AuditLog::start(disk(0)).unwrap();
        for _ in 0..3 {
            log.write(b"line\n".to_vec()).await;
        }
        log.close();
        assert_eq!(log.lost_lines(), 3);
        let log = AuditLog::start(disk(0)).unwrap();
        let long = [vec![b'x'; MAX_PENDING], b"\n".to_vec()].concat();
        log.write(long.clone()).await;
        log.write(long).await;
        log.close();
        assert_eq!(log.lost_lines(), 2, "one exceeds the buffer, one waits at the end");
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
}
