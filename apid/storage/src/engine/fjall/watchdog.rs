//! The watchdog: detects a stalled store, which fjall does not report, and ends the process.
//!
//! # Contract
//!
//! A separate thread samples the database once a second. The thread calls `on_stall` once, with the reason,
//! in three cases:
//! - memtables wait for a flush, and no flush has ended within the time limit;
//! - the writer thread has not finished one step within the time limit;
//! - a memtable is four times as large as its limit.
//!
//! A restart replays the journals, so no acknowledged write is lost.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use apimachinery::clock::Clock;
use fjall::AbstractTree;

use super::state::SharedState;

/// Time between two samples.
const INTERVAL: Duration = Duration::from_secs(1);
/// A memtable above this multiple of its size limit is a stall.
const MAX_MEMTABLE_FACTOR: u64 = 4;

/// The callback for a stall, called with the reason.
pub(super) type OnStall = Arc<dyn Fn(&str) + Send + Sync>;

/// The watchdog thread; ends when this value is dropped.
pub(super) struct Watchdog {
    /// Ends the thread when it is dropped.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    pub(super) fn start(
        state: Arc<SharedState>,
        clock: Arc<dyn Clock>,
        mut detector: StallDetector,
        on_stall: OnStall,
    ) -> std::io::Result<Watchdog> {
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::Builder::new().name("store-watchdog".to_owned()).spawn(move || {
            while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                if let Some(reason) = detector.find_stall(&sample(&state, clock.monotonic())) {
                    on_stall(&reason);
                    return;
                }
            }
        })?;
        Ok(Watchdog { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The thread panics only if the callback panics, and then the process is ending.
            let _ = thread.join();
        }
    }
}

/// The values at one moment from which [`StallDetector`] detects a stall.
#[derive(Clone, Debug, Default)]
struct Sample {
    /// Clock time.
    now: Duration,
    /// Number of memtables that wait for a flush.
    waiting: usize,
    /// The value of [`Tables::flushed_seqnos`](super::database::Tables::flushed_seqnos).
    flushed_seqnos: [Option<u64>; 3],
    /// Size of the largest active memtable in bytes.
    largest: u64,
    /// Start of the current step of the writer thread; None while the thread waits.
    busy_since: Option<Duration>,
}

fn sample(state: &SharedState, now: Duration) -> Sample {
    let busy_since = match state.busy_since.load(Ordering::SeqCst) {
        0 => None,
        since => Some(Duration::from_millis(since - 1)),
    };
    let Some(tables) = state.tables_if_open() else {
        return Sample { now, busy_since, ..Sample::default() };
    };
    let sizes = tables.keyspaces().map(|keyspace| keyspace.tree.active_memtable().size());
    Sample {
        now,
        waiting: tables.database.outstanding_flushes() + tables.sealed_memtables(),
        flushed_seqnos: tables.flushed_seqnos(),
        largest: sizes.into_iter().max().unwrap_or_default(),
        busy_since,
    }
}

/// Detects memtable flushes without progress, a stalled writer thread, and memtables that grow beyond their
/// limit.
pub(super) struct StallDetector {
    stall_after: Duration,
    memtable: u64,
    /// Since when flushes wait without progress, and the value of [`Tables::flushed_seqnos`] at that time.
    ///
    /// [`Tables::flushed_seqnos`]: super::database::Tables::flushed_seqnos
    no_progress_since: Option<(Duration, [Option<u64>; 3])>,
}

impl StallDetector {
    /// `memtable` is the size at which a memtable is sealed.
    pub(super) fn new(stall_after: Duration, memtable: u64) -> Self {
        StallDetector { stall_after, memtable, no_progress_since: None }
    }

    /// The reason of a stall, if the sample shows one.
    fn find_stall(&mut self, sample: &Sample) -> Option<String> {
        let since = match self.no_progress_since {
            Some((since, seqnos)) if sample.waiting > 0 && seqnos == sample.flushed_seqnos => since,
            _ => sample.now,
        };
        self.no_progress_since = (sample.waiting > 0).then_some((since, sample.flushed_seqnos));
        let stall_after = self.stall_after.as_secs();
        if sample.now.saturating_sub(since) >= self.stall_after {
            let waiting = sample.waiting;
            return Some(format!(
                "{waiting} memtables wait for a flush, and no flush ended for {stall_after} s"
            ));
        }
        if sample.busy_since.is_some_and(|since| sample.now.saturating_sub(since) >= self.stall_after) {
            return Some(format!("the storage writer thread has made no progress for {stall_after} s"));
        }
        let limit = self.memtable.saturating_mul(MAX_MEMTABLE_FACTOR);
        (sample.largest > limit).then(|| {
            format!(
                "a memtable has {} bytes, more than {MAX_MEMTABLE_FACTOR} times its limit",
                sample.largest
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Sample {
        Sample { now: Duration::from_secs(seconds), ..Sample::default() }
    }

    fn detector() -> StallDetector {
        StallDetector::new(Duration::from_secs(10), 100)
    }

    #[test]
    fn watchdog_reports_stopped_flush_but_not_slow_flush() {
        let mut detector = detector();
        for second in 0..100 {
            let lagging = Sample { waiting: 3, flushed_seqnos: [Some(second / 5), None, None], ..at(second) };
            assert_eq!(detector.find_stall(&lagging), None, "at {second} s");
        }
        let stuck = |second| Sample { waiting: 1, flushed_seqnos: [Some(99), None, None], ..at(second) };
        assert_eq!(detector.find_stall(&stuck(100)), None);
        assert_eq!(detector.find_stall(&stuck(109)), None);
        let reason = detector.find_stall(&stuck(110)).unwrap();
        assert!(reason.contains("no flush ended for 10 s"), "{reason}");
    }

    #[test]
    fn watchdog_ignores_pauses_without_pending_flush() {
        let mut detector = detector();
        for second in 0..100 {
            let waiting = usize::from(second % 9 != 0);
            assert_eq!(detector.find_stall(&Sample { waiting, ..at(second) }), None, "at {second} s");
        }
    }

    #[test]
    fn watchdog_reports_stalled_writer_and_oversized_memtable() {
        let busy = |since| Sample { busy_since: Some(Duration::from_secs(since)), ..at(20) };
        assert_eq!(detector().find_stall(&busy(11)), None);
        assert!(
            detector()
                .find_stall(&busy(10))
                .unwrap()
                .contains("the storage writer thread has made no progress")
        );
        assert_eq!(detector().find_stall(&Sample { largest: 400, ..at(0) }), None);
        assert!(detector().find_stall(&Sample { largest: 401, ..at(0) }).unwrap().contains("401 bytes"));
    }
}
