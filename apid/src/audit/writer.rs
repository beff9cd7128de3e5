//! Writes audit lines on a separate thread, outside the request path.
//!
//! # Contract
//!
//! [`AuditLog::reopen`] and the lines go through one queue, so that a line queued before it is in the old file.

use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use apimachinery::clock::Clock;
use parking_lot::Mutex;
use serving::metrics::{Counter, Counters, Definition, Metrics, Stability};
use tokio::sync::mpsc;

use super::rotation::{LogFile, Rotation};

/// Limit of the queued lines; further requests wait.
const QUEUE: usize = 4096;

/// The destination of audit lines.
pub struct AuditLog {
    queue: Mutex<Option<mpsc::Sender<Command>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    lost_lines: Arc<LostLines>,
    metrics: OnceLock<AuditMetrics>,
}

/// Work of the thread.
enum Command {
    /// Write a line.
    Line(Vec<u8>),
    /// Open the file again.
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

/// The number of lost lines.
#[derive(Default)]
struct LostLines {
    lines: AtomicU64,
    metric: OnceLock<Counter>,
}

impl LostLines {
    fn add(&self) {
        self.lines.fetch_add(1, Ordering::Relaxed);
        if let Some(metric) = self.metric.get() {
            metric.inc();
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

/// Metrics of an enabled or disabled log.
struct AuditMetrics {
    events: Counter,
    metadata_level: Counter,
}

impl AuditLog {
    /// A disabled log.
    pub fn off() -> Self {
        AuditLog {
            queue: Mutex::new(None),
            thread: Mutex::new(None),
            lost_lines: Arc::default(),
            metrics: OnceLock::new(),
        }
    }

    /// Appends to a file, created with mode 0600; `-` is the standard output, which is never rotated.
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
        let counted = Arc::clone(&log.lost_lines);
        let thread = std::thread::Builder::new()
            .name("audit".to_owned())
            .spawn(move || write(receiver, sink, &counted))?;
        *log.thread.lock() = Some(thread);
        Ok(log)
    }

    /// Whether the log is enabled; callers skip the construction of lines otherwise.
    pub fn is_on(&self) -> bool {
        self.queue.lock().is_some()
    }

    /// Counts a request that is audited.
    pub fn count_request(&self) {
        if let Some(metrics) = self.metrics.get() {
            metrics.metadata_level.inc();
        }
    }

    /// Queues a line; waits while the queue is full.
    pub async fn write(&self, line: Vec<u8>) {
        let Some(queue) = self.queue.lock().clone() else { return };
        self.count_event();
        if queue.send(Command::Line(line)).await.is_err() {
            self.lost_lines.add();
        }
    }

    /// Queues a line without waiting, at the end of a stream. With a full queue the line is lost and
    /// counted.
    pub fn write_now(&self, line: Vec<u8>) {
        let Some(queue) = self.queue.lock().clone() else { return };
        self.count_event();
        if queue.try_send(Command::Line(line)).is_err() {
            self.lost_lines.add();
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
        self.lost_lines.lines.load(Ordering::Relaxed)
    }

    /// Registers the metrics.
    pub fn register_metrics(&self, metrics: &Metrics) {
        let errors: Counters<[(&'static str, &'static str); 1]> = metrics.counter(&ERRORS);
        let lost = errors.get_or_create(&[("plugin", "log")]).clone();
        lost.inc_by(self.lost_lines());
        metrics.single_counter(&REJECTED);
        let levels: Counters<[(&'static str, &'static str); 1]> = metrics.counter(&LEVELS);
        let metadata_level = levels.get_or_create(&[("level", "Metadata")]).clone();
        let registered = AuditMetrics { events: metrics.single_counter(&EVENTS), metadata_level };
        // A second call would count in unregistered series.
        drop((self.lost_lines.metric.set(lost), self.metrics.set(registered)));
    }

    fn count_event(&self) {
        if let Some(metrics) = self.metrics.get() {
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

/// Collects lines of one file in memory, so that a write has several lines.
const BUFFER: usize = 64 * 1024;

/// Writes whole lines until all senders are dropped; flushes whenever the queue is empty.
fn write(mut queue: mpsc::Receiver<Command>, sink: impl Sink, lost_lines: &LostLines) {
    let mut sink = BufWriter::with_capacity(BUFFER, sink);
    while let Some(command) = queue.blocking_recv() {
        let mut result = match &command {
            Command::Line(line) => sink.write_all(line),
            Command::Reopen => sink.flush().and_then(|()| sink.get_mut().reopen()),
        };
        if queue.is_empty() && result.is_ok() {
            result = sink.flush();
        }
        match (result, command) {
            (Ok(()), Command::Line(_)) => {}
            (Ok(()), Command::Reopen) => tracing::info!("audit log reopened"),
            (Err(error), Command::Line(_)) => {
                lost_lines.add();
                tracing::error!(%error, "audit write failed; the line is lost");
            }
            (Err(error), Command::Reopen) => {
                tracing::error!(%error, "audit log cannot be reopened; using the previous file");
            }
        }
    }
    if let Err(error) = sink.flush() {
        lost_lines.add();
        tracing::error!(%error, "audit flush failed; lines are lost");
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

    struct Full;

    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::Error::other("no space left"))
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Sink for Full {
        fn reopen(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn audit_write_failure_counts_lost_lines() {
        let log = AuditLog::start(Full).unwrap();
        log.write(vec![b'x'; 100 * 1024]).await;
        log.close();
        assert!(log.lost_lines() > 0);
    }
}
