//! What is to be done: each thing once, by one worker at a time, again after a pause when it failed.
//!
//! # Contract
//!
//! What is added while it waits is not added twice; what is added while it is being done is done once more afterwards.
//! [`Queue::room`] makes whoever adds by the stream wait while much is ready, so that the queue stays small beside the
//! objects that it is about. Failures double the pause, from a tenth of a second to five minutes; a success forgets them.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::Clock;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Things that may be ready before [`Queue::room`] waits.
const ROOM: usize = 50_000;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// See the module.
pub(super) struct Queue<W> {
    state: Mutex<State<W>>,
    clock: Arc<dyn Clock>,
    added: Notify,
    taken: Notify,
}

struct State<W> {
    ready: VecDeque<W>,
    /// By time; the number keeps the order of equal times.
    later: BinaryHeap<Reverse<(Duration, u64)>>,
    paused: HashMap<u64, W>,
    number: u64,
    known: HashMap<W, Stage>,
    failures: HashMap<W, u32>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Ready,
    Running,
    /// Running, and wanted again.
    Again,
}

impl<W: Clone + Eq + Hash> Queue<W> {
    /// An empty one.
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        let state = State {
            ready: VecDeque::new(),
            later: BinaryHeap::new(),
            paused: HashMap::new(),
            number: 0,
            known: HashMap::new(),
            failures: HashMap::new(),
        };
        Queue { state: Mutex::new(state), clock, added: Notify::new(), taken: Notify::new() }
    }

    /// To be done as soon as possible.
    pub(super) fn add(&self, work: W) {
        if self.state.lock().add(work) {
            self.added.notify_one();
        }
    }

    /// To be done after a pause.
    pub(super) fn add_after(&self, work: W, pause: Duration) {
        let at = self.clock.monotonic() + pause;
        let mut state = self.state.lock();
        state.number += 1;
        let number = state.number;
        state.later.push(Reverse((at, number)));
        state.paused.insert(number, work);
        drop(state);
        // Whoever sleeps may sleep for longer than this.
        self.added.notify_one();
    }

    /// Waits while very much is ready.
    pub(super) async fn room(&self) {
        loop {
            let taken = self.taken.notified();
            if self.state.lock().ready.len() < ROOM {
                return;
            }
            taken.await;
        }
    }

    /// The next thing to do; waits for it. To be followed by [`Queue::done`] or [`Queue::failed`]. Cancel-safe.
    pub(super) async fn take(&self) -> W {
        loop {
            let added = self.added.notified();
            let now = self.clock.monotonic();
            let (taken, next) = self.state.lock().take(now);
            if let Some((work, more)) = taken {
                if more {
                    self.added.notify_one();
                }
                self.taken.notify_one();
                return work;
            }
            match next {
                Some(at) => drop(tokio::time::timeout(at.saturating_sub(now), added).await),
                None => added.await,
            }
        }
    }

    /// It is done.
    pub(super) fn done(&self, work: &W) {
        let mut state = self.state.lock();
        state.failures.remove(work);
        if state.finish(work) {
            self.added.notify_one();
        }
    }

    /// It is not, and is to be tried again.
    pub(super) fn failed(&self, work: &W) {
        let mut state = self.state.lock();
        let failures = state.failures.entry(work.clone()).or_default();
        let pause = FIRST_PAUSE.saturating_mul(1 << (*failures).min(16)).min(LONGEST_PAUSE);
        *failures += 1;
        let again = state.finish(work);
        drop(state);
        if again {
            self.added.notify_one();
        } else {
            self.add_after(work.clone(), pause);
        }
    }

    /// Whether nothing is to be done now or later.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.known.is_empty() && state.paused.is_empty()
    }
}

impl<W: Clone + Eq + Hash> State<W> {
    /// Whether somebody has to be woken.
    fn add(&mut self, work: W) -> bool {
        match self.known.get_mut(&work) {
            Some(Stage::Ready | Stage::Again) => false,
            Some(running) => {
                *running = Stage::Again;
                false
            }
            None => {
                self.known.insert(work.clone(), Stage::Ready);
                self.ready.push_back(work);
                true
            }
        }
    }

    /// What is ready, and whether there is more; else when something will be.
    fn take(&mut self, now: Duration) -> (Option<(W, bool)>, Option<Duration>) {
        while let Some(&Reverse((at, number))) = self.later.peek() {
            if at > now {
                break;
            }
            self.later.pop();
            if let Some(work) = self.paused.remove(&number) {
                self.add(work);
            }
        }
        let Some(work) = self.ready.pop_front() else {
            return (None, self.later.peek().map(|Reverse((at, _))| *at));
        };
        self.known.insert(work.clone(), Stage::Running);
        (Some((work, !self.ready.is_empty())), None)
    }

    /// Whether it is wanted again.
    fn finish(&mut self, work: &W) -> bool {
        match self.known.remove(work) {
            Some(Stage::Again) => self.add(work.clone()),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::clock::ManualClock;
    use apimachinery::time;

    use super::*;

    fn queue() -> (Queue<u32>, Arc<ManualClock>) {
        let clock = Arc::new(ManualClock::at(time::parse("2026-01-01T00:00:00Z").unwrap()));
        (Queue::new(clock.clone()), clock)
    }

    /// What is ready now.
    fn ready(queue: &Queue<u32>) -> Option<u32> {
        let now = queue.clock.monotonic();
        queue.state.lock().take(now).0.map(|(work, _)| work)
    }

    #[test]
    fn a_thing_is_done_once_and_by_one() {
        let (queue, _) = queue();
        for work in [1, 2, 1, 1] {
            queue.add(work);
        }
        assert_eq!((ready(&queue), ready(&queue), ready(&queue)), (Some(1), Some(2), None));
        queue.add(1);
        queue.add(1);
        assert_eq!(ready(&queue), None, "it is being done");
        queue.done(&1);
        assert_eq!(ready(&queue), Some(1), "once more");
        queue.done(&1);
        queue.done(&2);
        assert!(queue.is_idle());
    }

    #[test]
    fn failures_pause_longer_and_longer() {
        let (queue, clock) = queue();
        queue.add(7);
        let mut pause = Duration::from_millis(100);
        for _ in 0..20 {
            assert_eq!(ready(&queue), Some(7));
            queue.failed(&7);
            assert_eq!(ready(&queue), None);
            clock.advance(pause - Duration::from_millis(1));
            assert_eq!(ready(&queue), None, "{pause:?}");
            clock.advance(Duration::from_millis(1));
            pause = (pause * 2).min(Duration::from_secs(300));
        }
        assert_eq!(ready(&queue), Some(7));
        queue.done(&7);
        queue.add(7);
        assert_eq!(ready(&queue), Some(7));
        queue.failed(&7);
        clock.advance(Duration::from_millis(100));
        assert_eq!(ready(&queue), Some(7), "a success forgets failures");
    }

    #[test]
    fn pauses_are_kept_and_new_things_do_not_wait_for_them() {
        let (queue, clock) = queue();
        queue.add_after(1, Duration::from_secs(5));
        queue.add_after(2, Duration::from_secs(1));
        queue.add(3);
        assert_eq!((ready(&queue), ready(&queue)), (Some(3), None));
        clock.advance(Duration::from_secs(5));
        assert_eq!((ready(&queue), ready(&queue), ready(&queue)), (Some(2), Some(1), None));
    }

    #[tokio::test]
    async fn who_waits_is_woken() {
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
