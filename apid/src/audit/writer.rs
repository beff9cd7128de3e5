//! Writes audit lines on a separate thread, outside the request path.

use std::fs::OpenOptions;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use serving::metrics::{Counter, Definition, Metrics, Stability};
use tokio::sync::mpsc;

/// Limit of the queued lines; further requests wait.
const QUEUE: usize = 4096;

/// The destination of audit lines.
pub struct AuditLog {
    queue: Mutex<Option<mpsc::Sender<Vec<u8>>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    lost_lines: Arc<LostLines>,
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
    "Number of audit events that could not be written",
);

impl AuditLog {
    /// A disabled log.
    pub fn off() -> Self {
        AuditLog { queue: Mutex::new(None), thread: Mutex::new(None), lost_lines: Arc::default() }
    }

    /// Appends to a file, created with mode 0600; `-` is the standard output.
    ///
    /// # Errors
    ///
    /// The file cannot be opened.
    pub fn open(path: &str) -> io::Result<Self> {
        if path == "-" { Self::start(io::stdout()) } else { Self::start(append(Path::new(path))?) }
    }

    fn start(sink: impl Write + Send + 'static) -> io::Result<Self> {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let lost_lines = Arc::<LostLines>::default();
        let counted = Arc::clone(&lost_lines);
        let thread = std::thread::Builder::new()
            .name("audit".to_owned())
            .spawn(move || write(receiver, sink, &counted))?;
        Ok(AuditLog { queue: Mutex::new(Some(sender)), thread: Mutex::new(Some(thread)), lost_lines })
    }

    /// Whether the log is enabled; callers skip the construction of lines otherwise.
    pub fn is_on(&self) -> bool {
        self.queue.lock().is_some()
    }

    /// Queues a line; waits while the queue is full.
    pub async fn write(&self, line: Vec<u8>) {
        let Some(queue) = self.queue.lock().clone() else { return };
        if queue.send(line).await.is_err() {
            self.lost_lines.add();
        }
    }

    /// Queues a line without waiting, at the end of a stream. With a full queue the line is lost and
    /// counted.
    pub fn write_now(&self, line: Vec<u8>) {
        let Some(queue) = self.queue.lock().clone() else { return };
        if queue.try_send(line).is_err() {
            self.lost_lines.add();
            tracing::error!("audit queue full; the line is lost");
        }
    }

    /// The number of lost lines.
    pub fn lost_lines(&self) -> u64 {
        self.lost_lines.lines.load(Ordering::Relaxed)
    }

    /// Registers the metric of lost lines.
    pub fn register_metrics(&self, metrics: &Metrics) {
        let metric = metrics.single_counter(&ERRORS);
        metric.inc_by(self.lost_lines());
        // A second call would count in an unregistered series.
        drop(self.lost_lines.metric.set(metric));
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

fn append(path: &Path) -> io::Result<std::fs::File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

/// Writes whole lines until all senders are dropped; flushes whenever the queue is empty.
fn write(mut queue: mpsc::Receiver<Vec<u8>>, sink: impl Write, lost_lines: &LostLines) {
    let mut sink = BufWriter::with_capacity(64 * 1024, sink);
    while let Some(line) = queue.blocking_recv() {
        let mut result = sink.write_all(&line);
        if queue.is_empty() && result.is_ok() {
            result = sink.flush();
        }
        if let Err(error) = result {
            lost_lines.add();
            tracing::error!(%error, "audit write failed; the line is lost");
        }
    }
    if let Err(error) = sink.flush() {
        lost_lines.add();
        tracing::error!(%error, "audit flush failed; lines are lost");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn audit_log_close_writes_all_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let log = AuditLog::open(path.to_str().unwrap()).unwrap();
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

    #[tokio::test]
    async fn audit_write_failure_counts_lost_lines() {
        let log = AuditLog::start(Full).unwrap();
        log.write(vec![b'x'; 100 * 1024]).await;
        log.close();
        assert!(log.lost_lines() > 0);
    }
}
