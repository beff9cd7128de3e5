//! A buffer of encoded events that are delivered in batches, outside the request path.
//!
//! # Contract
//!
//! [`BatchQueue::push`] never waits. A batch is delivered when it has the maximum number of events, or the maximum time
//! after its first event. The throttle delays batches.
//!
//! # Invariants
//!
//! INVARIANT (bounded memory): the buffer and the batches in delivery have at most [`MAX_BYTES`]. An event that does not
//! fit is lost and counted.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

use crate::counts::{Counts, Plugin};

/// Maximum total size of the events of a queue, in bytes.
const MAX_BYTES: usize = 64 << 20;
/// Memory of an event besides its bytes.
const ENTRY_BYTES: usize = 64;

/// The settings by which events are collected into batches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Batching {
    /// Maximum number of buffered events; at least 1.
    pub buffer_size: usize,
    /// Maximum number of events in a batch; at least 1.
    pub max_size: usize,
    /// Maximum time from the first event of a batch to its delivery.
    pub max_wait: Duration,
    /// Limit of the rate of batches; None means no limit.
    pub throttle: Option<Throttle>,
}

/// Limit of a rate: a token bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Throttle {
    /// Batches per second on average; above 0.
    pub qps: f64,
    /// Maximum number of batches at once; at least 1.
    pub burst: usize,
}

/// A result of a delivery, without a name for its type.
pub(crate) type DeliveryFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Delivers a batch. The delivery reports its own failures.
pub(crate) type Deliver = Arc<dyn Fn(Vec<Vec<u8>>) -> DeliveryFuture + Send + Sync>;

/// A buffered event; the event counts until it is dropped.
struct Entry {
    event: Vec<u8>,
    counted: Counted,
}

/// The number and the size of the events in the buffer and in delivery.
#[derive(Default)]
struct Totals {
    events: AtomicUsize,
    bytes: AtomicUsize,
}

/// A share of the totals.
struct Counted {
    totals: Arc<Totals>,
    bytes: usize,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.totals.events.fetch_sub(1, Ordering::Relaxed);
        self.totals.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The buffer, and the task that collects and delivers batches.
pub(crate) struct BatchQueue {
    sender: Mutex<Option<mpsc::Sender<Entry>>>,
    task: Mutex<Option<JoinHandle<()>>>,
    totals: Arc<Totals>,
    counts: Arc<Counts>,
}

impl BatchQueue {
    /// Starts the task. Must be called within a runtime. `max_deliveries`: the maximum number of batches in delivery.
    pub(crate) fn start(
        batching: Batching,
        max_deliveries: usize,
        counts: Arc<Counts>,
        deliver: Deliver,
    ) -> Self {
        let (sender, receiver) = mpsc::channel(batching.buffer_size.max(1));
        let task = tokio::spawn(run(batching, max_deliveries.max(1), receiver, deliver));
        BatchQueue {
            sender: Mutex::new(Some(sender)),
            task: Mutex::new(Some(task)),
            totals: Arc::default(),
            counts,
        }
    }

    /// Adds an event. Returns false if the event is lost.
    pub(crate) fn push(&self, event: Vec<u8>) -> bool {
        let size = event.len() + ENTRY_BYTES;
        self.totals.events.fetch_add(1, Ordering::Relaxed);
        let total = self.totals.bytes.fetch_add(size, Ordering::Relaxed).saturating_add(size);
        let entry = Entry { event, counted: Counted { totals: Arc::clone(&self.totals), bytes: size } };
        let reason = match self.sender.lock().as_ref() {
            None => "the audit log is closed",
            Some(_) if total > MAX_BYTES => "the buffered audit events have too many bytes",
            Some(sender) => match sender.try_send(entry) {
                Ok(()) => return true,
                Err(_) => "the buffer of audit events is full",
            },
        };
        self.counts.lose(Plugin::Buffer, 1, &reason);
        false
    }

    /// Delivers the buffered events and ends the task, within a time limit. The events that remain are lost and counted.
    pub(crate) async fn finish(&self, within: Duration) {
        drop(self.sender.lock().take());
        let Some(mut task) = self.task.lock().take() else { return };
        if tokio::time::timeout(within, &mut task).await.is_err() {
            let remaining = self.totals.events.load(Ordering::Relaxed);
            task.abort();
            let remaining = u64::try_from(remaining).unwrap_or(u64::MAX);
            self.counts.lose(Plugin::Buffer, remaining, &"the events could not be delivered before the end");
        }
    }
}

async fn run(
    batching: Batching,
    max_deliveries: usize,
    mut entries: mpsc::Receiver<Entry>,
    deliver: Deliver,
) {
    let mut bucket = batching.throttle.map(TokenBucket::new);
    let mut deliveries = JoinSet::new();
    while let Some(batch) = next_batch(&mut entries, batching).await {
        if let Some(bucket) = &mut bucket {
            bucket.take().await;
        }
        while deliveries.len() >= max_deliveries {
            let _ = deliveries.join_next().await;
        }
        while deliveries.try_join_next().is_some() {}
        let deliver = Arc::clone(&deliver);
        deliveries.spawn(async move {
            let (events, counted): (Vec<_>, Vec<_>) =
                batch.into_iter().map(|entry| (entry.event, entry.counted)).unzip();
            deliver(events).await;
            drop(counted);
        });
    }
    while deliveries.join_next().await.is_some() {}
}

/// Returns the next batch; None after the last event.
async fn next_batch(entries: &mut mpsc::Receiver<Entry>, batching: Batching) -> Option<Vec<Entry>> {
    let mut batch = vec![entries.recv().await?];
    let end = Instant::now() + batching.max_wait;
    while batch.len() < batching.max_size {
        match tokio::time::timeout_at(end, entries.recv()).await {
            Ok(Some(entry)) => batch.push(entry),
            Ok(None) | Err(_) => break,
        }
    }
    Some(batch)
}

/// Tokens that refill with time.
struct TokenBucket {
    throttle: Throttle,
    tokens: f64,
    refilled_at: Instant,
}

impl TokenBucket {
    fn new(throttle: Throttle) -> Self {
        TokenBucket { throttle, tokens: burst(throttle), refilled_at: Instant::now() }
    }

    /// Takes a token; waits until there is one.
    async fn take(&mut self) {
        let now = Instant::now();
        let refill = now.duration_since(self.refilled_at).as_secs_f64() * self.throttle.qps;
        self.tokens = (self.tokens + refill).min(burst(self.throttle));
        self.refilled_at = now;
        if self.tokens < 1.0 {
            let missing = (1.0 - self.tokens) / self.throttle.qps;
            let pause = Duration::try_from_secs_f64(missing).unwrap_or(Duration::MAX);
            tokio::time::sleep(pause).await;
            self.refilled_at = Instant::now();
            self.tokens = 1.0;
        }
        self.tokens -= 1.0;
    }
}

#[expect(clippy::cast_precision_loss, reason = "a burst is a small number")]
fn burst(throttle: Throttle) -> f64 {
    throttle.burst.max(1) as f64
}

#[cfg(test)]
mod tests {
    use apimachinery::clock::SystemClock;

    use super::*;

    fn batching(buffer_size: usize, max_size: usize, max_wait: Duration) -> Batching {
        Batching { buffer_size, max_size, max_wait, throttle: None }
    }

    /// The time and the size of each batch.
    type Record = Arc<Mutex<Vec<(Duration, usize)>>>;

    /// A queue whose batches are recorded, and the record.
    fn recorded(batching: Batching, pause: Duration) -> (BatchQueue, Record) {
        let record: Record = Arc::default();
        let (record_of_task, start) = (Arc::clone(&record), Instant::now());
        let deliver: Deliver = Arc::new(move |batch| {
            let record = Arc::clone(&record_of_task);
            Box::pin(async move {
                record.lock().push((start.elapsed(), batch.len()));
                tokio::time::sleep(pause).await;
            })
        });
        let counts = Arc::new(Counts::new(Arc::new(SystemClock::new())));
        (BatchQueue::start(batching, 1, counts, deliver), record)
    }

    fn sizes(record: &Mutex<Vec<(Duration, usize)>>) -> Vec<usize> {
        record.lock().iter().map(|(_, size)| *size).collect()
    }

    #[tokio::test]
    async fn batch_is_delivered_when_full_or_after_the_maximum_wait() {
        let wait = Duration::from_millis(300);
        let (queue, record) = recorded(batching(100, 3, wait), Duration::ZERO);
        for _ in 0..4 {
            assert!(queue.push(vec![b'x']));
        }
        tokio::time::sleep(wait / 3).await;
        assert_eq!(sizes(&record), [3]);
        tokio::time::sleep(2 * wait).await;
        assert_eq!(sizes(&record), [3, 1]);
        queue.push(vec![b'x']);
        queue.finish(10 * wait).await;
        assert_eq!(sizes(&record), [3, 1, 1]);
        assert!(!queue.push(vec![b'x']), "the queue is closed");
        assert_eq!(queue.counts.lost(), 1);
    }

    #[tokio::test]
    async fn events_beyond_buffer_are_lost_and_counted() {
        let (queue, record) = recorded(batching(10, 5, Duration::ZERO), Duration::from_millis(50));
        // The task does not run meanwhile, because the test does not wait.
        let kept = (0..20_000).filter(|_| queue.push(vec![b'x'; 100])).count();
        assert_eq!(kept, 10);
        assert_eq!(queue.counts.lost(), 19_990);
        queue.finish(Duration::from_secs(10)).await;
        assert_eq!(sizes(&record).iter().sum::<usize>(), 10);
        assert_eq!(queue.totals.bytes.load(Ordering::Relaxed), 0);
        assert_eq!(queue.counts.lost(), 19_990, "the delivered events are not lost");
    }

    #[tokio::test]
    async fn large_events_are_limited_by_their_bytes() {
        let (queue, _) = recorded(batching(10_000, 1, Duration::ZERO), Duration::from_secs(60));
        let kept = (0..200).filter(|_| queue.push(vec![b'x'; 1 << 20])).count();
        assert_eq!(kept, MAX_BYTES / ((1 << 20) + ENTRY_BYTES));
        queue.finish(Duration::ZERO).await;
    }

    #[tokio::test]
    async fn events_that_remain_at_the_end_are_lost_and_counted() {
        let (queue, record) = recorded(batching(100, 3, Duration::ZERO), Duration::from_secs(60));
        (0..7).for_each(|_| assert!(queue.push(vec![b'x'])));
        queue.finish(Duration::from_millis(50)).await;
        assert_eq!(sizes(&record), [3], "one batch is in delivery");
        assert_eq!(queue.counts.lost(), 7);
    }

    #[tokio::test]
    async fn throttle_limits_rate_of_batches_after_a_burst() {
        let throttle = Some(Throttle { qps: 10.0, burst: 3 });
        let (queue, record) =
            recorded(Batching { throttle, ..batching(100, 1, Duration::ZERO) }, Duration::ZERO);
        for _ in 0..7 {
            queue.push(vec![b'x']);
        }
        queue.finish(Duration::from_secs(60)).await;
        let times: Vec<Duration> = record.lock().iter().map(|(at, _)| *at).collect();
        assert_eq!(times.len(), 7);
        assert!(times[2] < Duration::from_millis(100) && times[6] >= Duration::from_millis(390), "{times:?}");
    }
}
