//! Deduplicating work queue with delays: one worker per item, and exponential back-off after failures.
//!
//! # Contract
//!
//! An item that is queued already is not added again. An item that is added while a worker processes it is
//! queued again afterwards. [`Queue::wait_for_capacity`] applies back-pressure to the reflector while many
//! items are ready, so the queue stays small compared to the number of objects. Each failure doubles the
//! back-off, from 100 ms to five minutes; a success resets it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::Clock;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::queue_metrics::QueueMetrics;

/// Number of ready items at which [`Queue::wait_for_capacity`] waits.
const READY_MAX: usize = 50_000;
const MIN_BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_secs(300);

/// A deduplicating work queue with delays.
pub(super) struct Queue<W> {
    state: Mutex<State<W>>,
    clock: Arc<dyn Clock>,
    item_added: Notify,
    item_taken: Notify,
    metrics: QueueMetrics,
}

struct State<W> {
    /// Ready items with the times of their additions.
    ready: VecDeque<(W, Duration)>,
    /// Items in process with the times at which their processing began.
    running: HashMap<W, Duration>,
    /// Delayed items by due time and number. Items with equal times are due in the order of their numbers.
    delayed: BTreeMap<(Duration, u64), W>,
    /// The number of the newest delayed item; numbers count up from 1.
    number: u64,
    /// The states of all items that are ready or in process.
    item_states: HashMap<W, ItemState>,
    /// Number of consecutive failures of each item.
    failures: HashMap<W, u32>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ItemState {
    Ready,
    Running,
    /// A worker processes the item, and the item was added again.
    RunningAndQueued,
}

impl<W: Clone + Eq + Hash> Queue<W> {
    /// Creates an empty queue.
    pub(super) fn new(clock: Arc<dyn Clock>, metrics: QueueMetrics) -> Self {
        let state = State {
            ready: VecDeque::new(),
            running: HashMap::new(),
            delayed: BTreeMap::new(),
            number: 0,
            item_states: HashMap::new(),
            failures: HashMap::new(),
        };
        Queue {
            state: Mutex::new(state),
            clock,
            item_added: Notify::new(),
            item_taken: Notify::new(),
            metrics,
        }
    }

    /// Adds an item without delay.
    pub(super) fn add(&self, work: W) {
        let now = self.clock.monotonic();
        let mut state = self.state.lock();
        let is_added = state.add(work, now);
        let depth = state.ready.len();
        drop(state);
        if is_added {
            self.metrics.record_add(depth);
            self.item_added.notify_one();
        }
    }

    /// Sets the gauges of the times for which the items in process have been processed.
    pub(super) fn update_metrics(&self) {
        let now = self.clock.monotonic();
        let running: Vec<_> =
            self.state.lock().running.values().map(|start| now.saturating_sub(*start)).collect();
        self.metrics.set_running(running.into_iter());
    }

    /// Adds an item with a delay.
    pub(super) fn add_after(&self, work: W, pause: Duration) {
        let at = self.clock.monotonic() + pause;
        let mut state = self.state.lock();
        state.number += 1;
        let key = (at, state.number);
        state.delayed.insert(key, work);
        drop(state);
        // Wake a worker: the timeouts of all sleeping workers may end after this item is due.
        self.item_added.notify_one();
    }

    /// Waits while [`READY_MAX`] or more items are ready.
    pub(super) async fn wait_for_capacity(&self) {
        loop {
            let taken_notification = self.item_taken.notified();
            if self.state.lock().ready.len() < READY_MAX {
                return;
            }
            taken_notification.await;
        }
    }

    /// Waits for the next item. The caller must then call [`Queue::mark_done`] or [`Queue::mark_failed`].
    ///
    /// Cancel-safe.
    pub(super) async fn take(&self) -> W {
        loop {
            let added_notification = self.item_added.notified();
            let now = self.clock.monotonic();
            let (ready_item, next_due, depth) = self.try_take(now);
            if let Some((work, waited)) = ready_item {
                self.metrics.record_start(waited, depth);
                if depth > 0 {
                    self.item_added.notify_one();
                }
                self.item_taken.notify_one();
                return work;
            }
            match next_due {
                Some(at) => drop(tokio::time::timeout(at.saturating_sub(now), added_notification).await),
                None => added_notification.await,
            }
        }
    }

    /// Takes a ready item: see [`State::take`]. Also returns the number of items that are still ready.
    fn try_take(&self, now: Duration) -> (Option<(W, Duration)>, Option<Duration>, usize) {
        let mut state = self.state.lock();
        let (ready_item, next_due) = state.take(now);
        (ready_item, next_due, state.ready.len())
    }

    /// Marks an item as completed, which resets its back-off.
    pub(super) fn mark_done(&self, work: &W) {
        let now = self.clock.monotonic();
        let mut state = self.state.lock();
        state.failures.remove(work);
        let (is_requeued, duration) = state.finish(work, now);
        drop(state);
        self.metrics.record_end(duration);
        if is_requeued {
            self.item_added.notify_one();
        }
    }

    /// Marks an item as failed and queues it again after the back-off.
    pub(super) fn mark_failed(&self, work: &W) {
        let now = self.clock.monotonic();
        let mut state = self.state.lock();
        let failures = state.failures.entry(work.clone()).or_default();
        let pause = MIN_BACKOFF.saturating_mul(1 << (*failures).min(16)).min(MAX_BACKOFF);
        *failures += 1;
        let (is_requeued, duration) = state.finish(work, now);
        drop(state);
        self.metrics.record_end(duration);
        self.metrics.record_retry();
        if is_requeued {
            self.item_added.notify_one();
        } else {
            self.add_after(work.clone(), pause);
        }
    }

    /// Whether the queue is empty and no item is delayed or in process.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.item_states.is_empty() && state.delayed.is_empty()
    }
}

impl<W: Clone + Eq + Hash> State<W> {
    /// Adds an item. Returns whether it became ready, so that a worker must be woken.
    fn add(&mut self, work: W, now: Duration) -> bool {
        match self.item_states.get_mut(&work) {
            Some(ItemState::Ready | ItemState::RunningAndQueued) => false,
            Some(running) => {
                *running = ItemState::RunningAndQueued;
                false
            }
            None => {
                self.item_states.insert(work.clone(), ItemState::Ready);
                self.ready.push_back((work, now));
                true
            }
        }
    }

    /// Takes a ready item. Returns the item and how long it waited; if no item is ready, the due time of the
    /// next delayed item.
    fn take(&mut self, now: Duration) -> (Option<(W, Duration)>, Option<Duration>) {
        while let Some(first) = self.delayed.first_entry()
            && first.key().0 <= now
        {
            let work = first.remove();
            self.add(work, now);
        }
        let Some((work, added)) = self.ready.pop_front() else {
            return (None, self.delayed.first_key_value().map(|((at, _), _)| *at));
        };
        self.item_states.insert(work.clone(), ItemState::Running);
        self.running.insert(work.clone(), now);
        (Some((work, now.saturating_sub(added))), None)
    }

    /// Ends the processing of an item. Returns whether the item was added again meanwhile and is ready now,
    /// and how long it was processed.
    fn finish(&mut self, work: &W, now: Duration) -> (bool, Duration) {
        let started_at = self.running.remove(work).unwrap_or(now);
        let is_requeued = match self.item_states.remove(work) {
            Some(ItemState::RunningAndQueued) => self.add(work.clone(), now),
            _ => false,
        };
        (is_requeued, now.saturating_sub(started_at))
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::clock::ManualClock;
    use apimachinery::time;

    use super::*;

    fn queue() -> (Queue<u32>, Arc<ManualClock>) {
        let clock = Arc::new(ManualClock::at(time::parse("2026-01-01T00:00:00Z").unwrap()));
        (Queue::new(clock.clone(), QueueMetrics::new(&serving::metrics::Metrics::new(), "test")), clock)
    }

    /// Takes an item that is ready now.
    fn ready(queue: &Queue<u32>) -> Option<u32> {
        let now = queue.clock.monotonic();
        queue.state.lock().take(now).0.map(|(work, _)| work)
    }

    #[test]
    fn queued_item_is_deduplicated_and_processed_by_one_worker() {
        let (queue, _) = queue();
        for work in [1, 2, 1, 1] {
            queue.add(work);
        }
        assert_eq!((ready(&queue), ready(&queue), ready(&queue)), (Some(1), Some(2), None));
        queue.add(1);
        queue.add(1);
        assert_eq!(ready(&queue), None, "a worker processes the item");
        queue.mark_done(&1);
        assert_eq!(ready(&queue), Some(1), "the item is queued again");
        queue.mark_done(&1);
        queue.mark_done(&2);
        assert!(queue.is_idle());
    }

    #[test]
    fn failed_item_is_retried_with_exponential_backoff() {
        let (queue, clock) = queue();
        queue.add(7);
        let mut pause = Duration::from_millis(100);
        for _ in 0..20 {
            assert_eq!(ready(&queue), Some(7));
            queue.mark_failed(&7);
            assert_eq!(ready(&queue), None);
            clock.advance(pause - Duration::from_millis(1));
            assert_eq!(ready(&queue), None, "{pause:?}");
            clock.advance(Duration::from_millis(1));
            pause = (pause * 2).min(Duration::from_secs(300));
        }
        assert_eq!(ready(&queue), Some(7));
        queue.mark_done(&7);
        queue.add(7);
        assert_eq!(ready(&queue), Some(7));
        queue.mark_failed(&7);
        clock.advance(Duration::from_millis(100));
        assert_eq!(ready(&queue), Some(7), "a success resets the back-off");
    }

    #[test]
    fn queue_metrics_count_adds_waits_and_retries() {
        let metrics = serving::metrics::Metrics::new();
        let clock = Arc::new(ManualClock::at(time::parse("2026-01-01T00:00:00Z").unwrap()));
        let queue = Queue::new(clock.clone(), QueueMetrics::new(&metrics, "test"));
        for work in [1, 2, 1] {
            queue.add(work);
        }
        clock.advance(Duration::from_secs(2));
        let work = futures_util::FutureExt::now_or_never(queue.take()).unwrap();
        clock.advance(Duration::from_secs(3));
        queue.update_metrics();
        let running = metrics.text();
        queue.mark_failed(&work);
        let text = running + &metrics.text();
        for line in [
            "workqueue_adds_total{name=\"test\"} 2",
            "workqueue_depth{name=\"test\"} 1",
            "workqueue_retries_total{name=\"test\"} 1",
            "workqueue_queue_duration_seconds_sum{name=\"test\"} 2.0",
            "workqueue_work_duration_seconds_sum{name=\"test\"} 3.0",
            "workqueue_unfinished_work_seconds{name=\"test\"} 3.0",
            "workqueue_longest_running_processor_seconds{name=\"test\"} 3.0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }

    #[test]
    fn delayed_items_do_not_block_ready_items() {
        let (queue, clock) = queue();
        queue.add_after(1, Duration::from_secs(5));
        queue.add_after(2, Duration::from_secs(1));
        queue.add(3);
        assert_eq!((ready(&queue), ready(&queue)), (Some(3), None));
        clock.advance(Duration::from_secs(5));
        assert_eq!((ready(&queue), ready(&queue), ready(&queue)), (Some(2), Some(1), None));
    }

    #[tokio::test]
    async fn waiting_workers_are_woken_by_added_items() {
        let (queue, _) = queue();
        let queue = Arc::new(queue);
        let workers: Vec<_> = (0..4)
            .map(|_| {
                tokio::spawn({
                    let queue = queue.clone();
                    async move { queue.take().await }
                })
            })
            .collect();
        tokio::task::yield_now().await;
        for work in 0..4 {
            queue.add(work);
        }
        let mut taken = Vec::new();
        for worker in workers {
            taken.push(worker.await.unwrap());
        }
        taken.sort_unstable();
        assert_eq!(taken, [0, 1, 2, 3]);
    }
}
