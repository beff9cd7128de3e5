//! Shared reads of the newest revision of a store to which other processes write.
//!
//! # Contract
//!
//! [`NewestReads::catch_up`] returns after this process has published every write that ended before the call, including
//! those of other processes. Reads and decisions that follow are then at least as new as the call. A store without other
//! writers needs no reads, because its published revision is the newest one: [`NewestReads::of`] returns None.
//!
//! The *age* of the store is the time since the start of the newest read that succeeded: every write that ended before this
//! start is published. [`NewestReads::run`] reads from time to time, so that the age stays small without callers.
//!
//! # Invariants
//!
//! INVARIANT (later read): the read for a call begins after the call. A call never joins the running read, which the store
//! may have answered before the call.
//! INVARIANT (single-flight): at most one read runs, and all calls that arrive during it wait for the same next read.
//!
//! # Concurrency
//!
//! A task reads for one group of callers after the other, and ends when no caller waits. A cancelled caller does not cancel
//! a read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::{Error, Result, Store};

/// Time limit of a read, and of a call. Longer than etcd needs for a new leader, or the engine for another watch.
const LIMIT: Duration = Duration::from_secs(6);
/// Pause between two reads of [`NewestReads::run`].
const INTERVAL: Duration = Duration::from_secs(1);

/// A read that ended, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewestRead {
    /// The duration of the read.
    pub took: Duration,
    /// The number of calls that shared the read.
    pub calls: u64,
    /// Whether the read succeeded.
    pub is_ok: bool,
}

/// The shared reads of a store; see the module documentation.
pub struct NewestReads {
    store: Arc<dyn Store>,
    /// The name of the store in logs.
    cluster: &'static str,
    limit: Duration,
    on_read: Box<dyn Fn(NewestRead) + Send + Sync>,
    queue: Mutex<Queue>,
    /// The start of the newest read that succeeded.
    current_at: Mutex<Option<Instant>>,
    is_failing: AtomicBool,
}

/// The calls that wait for the next read.
#[derive(Default)]
struct Queue {
    /// Whether a task reads.
    is_reading: bool,
    next: Option<Group>,
}

/// The calls that share a read.
struct Group {
    outcome: watch::Sender<Option<Result<()>>>,
    calls: u64,
}

impl NewestReads {
    /// The reads of a store; None if no other process writes to the store. `cluster` names the store in logs. `on_read` is
    /// called after each read.
    pub fn of(
        store: &Arc<dyn Store>,
        cluster: &'static str,
        on_read: impl Fn(NewestRead) + Send + Sync + 'static,
    ) -> Option<Arc<Self>> {
        store.is_shared().then(|| Arc::new(Self::with_limit(store, cluster, LIMIT, on_read)))
    }

    fn with_limit(
        store: &Arc<dyn Store>,
        cluster: &'static str,
        limit: Duration,
        on_read: impl Fn(NewestRead) + Send + Sync + 'static,
    ) -> Self {
        NewestReads {
            store: Arc::clone(store),
            cluster,
            limit,
            on_read: Box::new(on_read),
            queue: Mutex::default(),
            current_at: Mutex::default(),
            is_failing: AtomicBool::new(false),
        }
    }

    /// Waits until every write that ended before the call is published here. Cancel-safe.
    ///
    /// # Errors
    ///
    /// `Unavailable`: the store did not tell its newest revision, or did not deliver the changes up to it, in time.
    pub async fn catch_up(self: &Arc<Self>) -> Result<()> {
        let mut outcome = self.join_next_read();
        let wait = outcome.wait_for(Option::is_some);
        match tokio::time::timeout(self.limit, wait).await {
            Ok(Ok(outcome)) => outcome.clone().unwrap_or_else(|| Err(Error::closed())),
            Ok(Err(_)) => Err(Error::closed()),
            Err(_) => Err(self.late()),
        }
    }

    /// The time since the start of the newest read that succeeded; None before the first one.
    pub fn age(&self) -> Option<Duration> {
        self.current_at.lock().map(|at| at.elapsed())
    }

    /// Reads in intervals until the process ends.
    pub async fn run(self: Arc<Self>) {
        loop {
            // A failure is logged by the read, and seen by the age.
            let _ = self.catch_up().await;
            tokio::time::sleep(INTERVAL).await;
        }
    }

    fn late(&self) -> Error {
        let seconds = self.limit.as_secs_f32();
        Error::Unavailable(format!(
            "the newest revision of the store was not known and published within {seconds} s"
        ))
    }

    /// Joins the calls that share the next read, and starts it unless a read runs.
    fn join_next_read(self: &Arc<Self>) -> watch::Receiver<Option<Result<()>>> {
        let mut queue = self.queue.lock();
        let group = queue.next.get_or_insert_with(|| Group { outcome: watch::Sender::new(None), calls: 0 });
        group.calls += 1;
        let outcome = group.outcome.subscribe();
        if !queue.is_reading {
            queue.is_reading = true;
            tokio::spawn(Arc::clone(self).serve_calls());
        }
        outcome
    }

    /// Reads for one group after the other, until no call waits.
    async fn serve_calls(self: Arc<Self>) {
        while let Some(group) = self.next_group() {
            let reads = Arc::clone(&self);
            // A task of its own: a panic of the store must not end the reads.
            let read = tokio::spawn(async move { reads.read(group.calls).await });
            let result = read.await.unwrap_or_else(|_| Err(Error::closed()));
            group.outcome.send_replace(Some(result));
        }
    }

    fn next_group(&self) -> Option<Group> {
        let mut queue = self.queue.lock();
        let group = queue.next.take();
        queue.is_reading = group.is_some();
        group
    }

    async fn read(&self, calls: u64) -> Result<()> {
        let begin = Instant::now();
        let read = tokio::time::timeout(self.limit, self.store.newest_revision()).await;
        let result = read.unwrap_or_else(|_| Err(self.late())).map(drop);
        (self.on_read)(NewestRead { took: begin.elapsed(), calls, is_ok: result.is_ok() });
        let cluster = self.cluster;
        let was_failing = self.is_failing.swap(result.is_err(), Ordering::Relaxed);
        match &result {
            Ok(()) => {
                // Reads do not overlap, so this start is the newest one.
                *self.current_at.lock() = Some(begin);
                if was_failing {
                    tracing::info!(cluster, "the newest revision of the store is known again");
                }
            }
            Err(error) if !was_failing => {
                tracing::warn!(cluster, %error, "the newest revision of the store is not known; requests may get 503");
            }
            Err(error) => tracing::debug!(cluster, %error, "the newest revision of the store is not known"),
        }
        result
    }
}

impl std::fmt::Debug for NewestReads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewestReads").field("age", &self.age()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
