//! Deduplicating work queue with delays: one worker for each key, and exponential back-off after failures.
//!
//! # Contract
//!
//! A key that is ready already is not added again. A key that is added while a worker processes it is ready
//! again afterwards. Ready keys are taken in the order of their additions. A key has at most one delay: the
//! earliest one counts, and taking the key ends the delay. [`Queue::wait_for_capacity`] applies back-pressure
//! to a reflector while many keys are ready, so the queue stays small compared to the number of objects.
//! Each failure doubles the back-off of a key, from [`MIN_BACKOFF`] to [`MAX_BACKOFF`]; a success resets it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Weak};
use std::time::Duration;

use apimachinery::clock::Clock;
use parking_lot::Mutex;
use serving::backoff::Backoff;
use tokio::sync::Notify;

use super::queue_metrics::QueueSeries;
use super::state::ControllerState;

/// Number of ready keys at which [`Queue::wait_for_capacity`] waits.
const READY_MAX: usize = 50_000;
/// Pause before the first retry of a key.
pub(super) const MIN_BACKOFF: Duration = Duration::from_millis(50);
/// Longest pause before a retry. A lasting failure of a key, such as a full store, causes one attempt a minute.
pub(super) const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// A deduplicating work queue with delays.
pub(super) struct Queue<W> {
    name: &'static str,
    state: Mutex<State<W>>,
    clock: Arc<dyn Clock>,
    item_added: Notify,
    item_taken: Notify,
    metrics: QueueSeries,
}

struct State<W> {
    /// Ready keys with the times of their additions.
    ready: VecDeque<(W, Duration)>,
    /// Keys in process with the times at which their processing began.
    running: HashMap<W, Duration>,
    /// Delayed keys by due time and number. Keys with equal times are due in the order of their numbers.
    delayed: BTreeMap<(Duration, u64), W>,
    /// Due time and number of each delayed key.
    delays: HashMap<W, (Duration, u64)>,
    /// The number of the newest delay; numbers count up from 1.
    number: u64,
    /// The states of all keys that are ready or in process.
    item_states: HashMap<W, ItemState>,
    /// Number of consecutive failures of each key.
    failures: HashMap<W, u32>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ItemState {
    Ready,
    Running,
    /// A worker processes the key, and the key was added again.
    RunningAndQueued,
}

impl<W: Clone + Eq + Hash> Queue<W> {
    /// Creates an empty queue. `name` is its name in logs and metrics.
    pub(super) fn new(state: &ControllerState, name: &'static str) -> Arc<Self>
    where
        W: Send + Sync + 'static,
    {
        let clock = Arc::clone(&state.api_state.clock);
        let queue = Arc::new(Queue::with_series(clock, name, state.queue_metrics().queue(name)));
        let weak_queue: Weak<Self> = Arc::downgrade(&queue);
        state.queue_metrics().collect_with(name, move || {
            if let Some(queue) = weak_queue.upgrade() {
                queue.update_metrics();
            }
        });
        queue
    }

    /// Creates an empty queue with the clock and the series of its metrics.
    fn with_series(clock: Arc<dyn Clock>, name: &'static str, metrics: QueueSeries) -> Self {
        let state = State {
            ready: VecDeque::new(),
            running: HashMap::new(),
            delayed: BTreeMap::new(),
            delays: HashMap::new(),
            number: 0,
            item_states: HashMap::new(),
            failures: HashMap::new(),
        };
        Queue {
            name,
            state: Mutex::new(state),
            clock,
            item_added: Notify::new(),
            item_taken: Notify::new(),
            metrics,
        }
    }

    /// Returns the name of the queue in logs and metrics.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Adds a key without delay.
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

    /// Sets the gauges of the times for which the keys in process have been processed.
    fn update_metrics(&self) {
        let now = self.clock.monotonic();
        let running: Vec<_> =
            self.state.lock().running.values().map(|start| now.saturating_sub(*start)).collect();
        self.metrics.set_running(running.into_iter());
    }

    /// Adds a key with a delay, unless the key is due earlier.
    pub(super) fn add_after(&self, work: W, pause: Duration) {
        self.state.lock().delay(work, self.clock.monotonic() + pause);
        // Wake a worker: the timeouts of all sleeping workers may end after this key is due.
        self.item_added.notify_one();
    }

    /// Waits while [`READY_MAX`] or more keys are ready.
    pub(super) async fn wait_for_capacity(&self) {
        loop {
            let taken_notification = self.item_taken.notified();
            if self.state.lock().ready.len() < READY_MAX {
                return;
            }
            taken_notification.await;
        }
    }

    /// Waits for the next key. The caller must then call [`Queue::mark_done`] or [`Queue::mark_failed`].
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

    /// Takes a ready key: see [`State::take`]. Also returns the number of keys that are still ready.
    fn try_take(&self, now: Duration) -> (Option<(W, Duration)>, Option<Duration>, usize) {
        let mut state = self.state.lock();
        for _ in 0..state.add_due(now) {
            self.metrics.record_add(state.ready.len());
        }
        let (ready_item, next_due) = state.take(now);
        (ready_item, next_due, state.ready.len())
    }

    /// Marks a key as completed, which resets its back-off.
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

    /// Marks a key as failed and queues it again after the back-off, at most after `max`.
    pub(super) fn mark_failed(&self, work: &W, max: Duration) {
        let now = self.clock.monotonic();
        let mut state = self.state.lock();
        let failures = state.failures.entry(work.clone()).or_default();
        let pause = Backoff { first: MIN_BACKOFF, longest: max }.pause(*failures);
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

    /// Whether the queue is empty and no key is delayed or in process.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.item_states.is_empty() && state.delayed.is_empty()
    }
}

impl<W> Drop for Queue<W> {
    /// Shows no more work of a controller that has ended.
    fn drop(&mut self) {
        self.metrics.clear();
    }
}

impl<W: Clone + Eq + Hash> State<W> {
    /// Delays a key until `at`, unless the key is due earlier.
    fn delay(&mut self, work: W, at: Duration) {
        if self.delays.get(&work).is_some_and(|(due, _)| *due <= at) {
            return;
        }
        self.end_delay(&work);
        self.number += 1;
        let due = (at, self.number);
        self.delayed.insert(due, work.clone());
        self.delays.insert(work, due);
    }

    /// Ends the delay of a key.
    fn end_delay(&mut self, work: &W) {
        if let Some(due) = self.delays.remove(work) {
            self.delayed.remove(&due);
        }
    }

    /// Adds a key. Returns whether it became ready, so that a worker must be woken.
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

    /// Adds the delayed keys that are due. Returns the number of keys that became ready.
    fn add_due(&mut self, now: Duration) -> usize {
        let mut count = 0;
        while let Some(first) = self.delayed.first_entry()
            && first.key().0 <= now
        {
            let work = first.remove();
            self.delays.remove(&work);
            count += usize::from(self.add(work, now));
        }
        count
    }

    /// Takes a ready key. Returns the key and how long it waited; if no key is ready, the due time of the
    /// next delayed key.
    fn take(&mut self, now: Duration) -> (Option<(W, Duration)>, Option<Duration>) {
        let Some((work, added)) = self.ready.pop_front() else {
            return (None, self.delayed.first_key_value().map(|((at, _), _)| *at));
        };
        self.end_delay(&work);
        self.item_states.insert(work.clone(), ItemState::Running);
        self.running.insert(work.clone(), now);
        (Some((work, now.saturating_sub(added))), None)
    }

    /// Ends the processing of a key. Returns whether the key was added again meanwhile and is ready now,
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
pub(super) mod tests {
    use apimachinery::clock::ManualClock;
    use apimachinery::time;
    use serving::metrics::Metrics;

    use super::super::queue_metrics::QueueMetrics;
    use super::*;

    /// Returns an empty queue, its clock, and the metrics with its series.
    pub(in super::super) fn queue<W: Clone + Eq + Hash>() -> (Queue<W>, Arc<ManualClock>, Metrics) {
        let clock = Arc::new(ManualClock::at(time::parse("2026-01-01T00:00:00Z").unwrap()));
        let metrics = Metrics::new();
        let series = QueueMetrics::new(&metrics).queue("test");
        (Queue::with_series(clock.clone(), "test", series), clock, metrics)
    }

    /// Takes an item that is ready now.
    fn ready(queue: &Queue<u32>) -> Option<u32> {
        let now = queue.clock.monotonic();
        queue.try_take(now).0.map(|(work, _)| work)
    }

    #[test]
    fn queued_item_is_deduplicated_and_processed_by_one_worker() {
        let (queue, ..) = queue::<u32>();
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
        let (queue, clock, _) = queue::<u32>();
        queue.add(7);
        let mut pause = MIN_BACKOFF;
        for _ in 0..20 {
            assert_eq!(ready(&queue), Some(7));
            queue.mark_failed(&7, MAX_BACKOFF);
            assert_eq!(ready(&queue), None);
            clock.advance(pause - Duration::from_millis(1));
            assert_eq!(ready(&queue), None, "{pause:?}");
            clock.advance(Duration::from_millis(1));
            pause = (pause * 2).min(MAX_BACKOFF);
        }
        assert_eq!(ready(&queue), Some(7));
        queue.mark_done(&7);
        queue.add(7);
        assert_eq!(ready(&queue), Some(7));
        queue.mark_failed(&7, MAX_BACKOFF);
        clock.advance(MIN_BACKOFF);
        assert_eq!(ready(&queue), Some(7), "a success resets the back-off");
    }

    #[test]
    fn queue_metrics_count_adds_waits_and_retries() {
        let (queue, clock, metrics) = queue::<u32>();
        for work in [1, 2, 1] {
            queue.add(work);
        }
        queue.add_after(3, Duration::from_secs(1));
        clock.advance(Duration::from_secs(2));
        let work = futures_util::FutureExt::now_or_never(queue.take()).unwrap();
        clock.advance(Duration::from_secs(3));
        queue.update_metrics();
        let running = metrics.text();
        queue.mark_failed(&work, MAX_BACKOFF);
        let text = running + &metrics.text();
        for line in [
            "workqueue_adds_total{name=\"test\"} 3",
            "workqueue_depth{name=\"test\"} 2",
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
    fn queue_that_ends_leaves_no_work_in_the_metrics() {
        let (queue, clock, metrics) = queue::<u32>();
        queue.add(1);
        queue.add(2);
        let _running = futures_util::FutureExt::now_or_never(queue.take()).unwrap();
        clock.advance(Duration::from_secs(3));
        queue.update_metrics();
        drop(queue);
        let text = metrics.text();
        for family in ["depth", "unfinished_work_seconds", "longest_running_processor_seconds"] {
            let series = format!("workqueue_{family}{{name=\"test\"}} 0");
            assert!(text.lines().any(|line| line.starts_with(&series)), "{series} in\n{text}");
        }
    }

    #[test]
    fn delayed_items_do_not_block_ready_items() {
        let (queue, clock, _) = queue::<u32>();
        queue.add_after(1, Duration::from_secs(5));
        queue.add_after(2, Duration::from_secs(1));
        queue.add(3);
        assert_eq!((ready(&queue), ready(&queue)), (Some(3), None));
        clock.advance(Duration::from_secs(5));
        assert_eq!((ready(&queue), ready(&queue), ready(&queue)), (Some(2), Some(1), None));
    }

    #[test]
    fn earliest_delay_of_a_key_counts_and_ends_when_the_key_is_taken() {
        let (queue, clock, _) = queue::<u32>();
        let second = Duration::from_secs(1);
        for pause in [3, 2, 5] {
            queue.add_after(1, second * pause);
        }
        clock.advance(second * 2);
        assert_eq!(ready(&queue), Some(1));
        queue.mark_done(&1);
        clock.advance(second * 5);
        assert_eq!(ready(&queue), None, "the other delays are gone");
        queue.add_after(1, second);
        queue.add(1);
        assert_eq!(ready(&queue), Some(1));
        queue.add_after(1, second);
        queue.mark_done(&1);
        clock.advance(second);
        assert_eq!(ready(&queue), Some(1), "a delay that begins while the key is in process stays");
        queue.mark_done(&1);
        assert!(queue.is_idle());
    }

    #[tokio::test]
    async fn waiting_workers_are_woken_by_added_items() {
        let (queue, ..) = queue::<u32>();
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
