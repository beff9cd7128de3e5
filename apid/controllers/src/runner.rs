//! The runner of the controllers: one loop, one queue and one set of timings.
//!
//! # Contract
//!
//! A controller implements [`Reconcile`] and runs in a [`Runner`]. Sources add keys to the queue of the runner:
//! [`Runner::watch`] for the objects of a collection, [`Runner::watch_files`] for files, and
//! [`Runner::source`] for anything else. A worker takes a key, and `reconcile` brings the state behind this
//! key into its desired form, whatever the cause was.
//!
//! - One worker reconciles a key at a time. A key that is added meanwhile is reconciled once more.
//! - Ready keys are reconciled in the order of their additions, so no key starves.
//! - Keys of sources wait for [`Runner::debounce`], so changes within this time cause one reconciliation.
//! - An error is logged, and the key is reconciled again after its back-off: from 50 ms, doubled after each
//!   failure, at most 60 s. A new change ends the back-off. A race with another writer and the end of
//!   the term are not logged.
//! - [`Requeue`] says when a key without an error is reconciled again.
//! - The queue of each runner has series in the families `workqueue_*`.
//!
//! Sources begin with the existing objects, so a restart loses no work.
//!
//! # Other tasks
//!
//! Four tasks of this crate do not use the runner. `expiry` deletes rows in batches, ordered by time. `history` writes
//! one row at an interval. `unenforced` runs once. `leadership` renews a Lease before a deadline.
//! The re-authorization of watches, the supervision of authd, health checks and the reload of files belong
//! to no object either; they are in their own crates.

use std::fmt::Debug;
use std::hash::Hash;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::status::Status;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, join_all};
use serving::reload::{Snapshot, Watch};
use tokio::task::JoinSet;

use super::actor::is_normal;
use super::queue::{MAX_BACKOFF, Queue};
use super::reflector::{ObjectEvent, reflect, reflect_named};
use super::state::ControllerState;
use verbs::Items;

/// Longest pause between two reconciliations of a key that polls.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(2);

/// A key of a controller.
pub(super) trait Key: Clone + Eq + Hash + Debug + Send + Sync + 'static {}

impl<K: Clone + Eq + Hash + Debug + Send + Sync + 'static> Key for K {}

/// A controller.
pub(super) trait Reconcile: Send + Sync + 'static {
    /// The key of a unit of work, for example the name of an object.
    type Key: Key;

    /// Brings the state behind a key into its desired form. Repeated calls must be harmless.
    ///
    /// # Errors
    ///
    /// The work failed and is repeated after the back-off of the key.
    fn reconcile(&self, key: &Self::Key) -> impl Future<Output = Result<Requeue, Status>> + Send;
}

/// The time at which a key is reconciled again, if no source adds the key earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Requeue {
    /// Only when a source adds the key.
    No,
    /// After this time.
    After(Duration),
    /// After the back-off, but at most 2 s: the key waits for another component.
    Poll,
    /// After the back-off, without a log line: the controller handled the failure.
    Backoff,
    /// As [`Requeue::Backoff`], but at most after this time.
    BackoffUpTo(Duration),
}

/// The queue, the sources and the workers of a controller.
pub(super) struct Runner<K> {
    queue: Arc<Queue<K>>,
    debounce: Duration,
    workers: usize,
    sources: Vec<BoxFuture<'static, ()>>,
    /// Ends the watches of files when the runner ends.
    file_watches: Vec<Watch>,
}

impl<K: Key> Runner<K> {
    /// Creates a runner with one worker. `name` is the name of its queue in logs and metrics, as in
    /// Kubernetes.
    pub(super) fn new(state: &ControllerState, name: &'static str) -> Self {
        Runner::with_queue(Queue::new(state, name))
    }

    /// Creates a runner with one worker for an existing queue.
    pub(super) fn with_queue(queue: Arc<Queue<K>>) -> Self {
        Runner { queue, debounce: Duration::ZERO, workers: 1, sources: Vec::new(), file_watches: Vec::new() }
    }

    /// Returns the queue, to which a controller can add keys itself.
    pub(super) fn queue(&self) -> Arc<Queue<K>> {
        Arc::clone(&self.queue)
    }

    /// Sets the number of keys that are reconciled concurrently.
    pub(super) fn workers(self, workers: usize) -> Self {
        Runner { workers, ..self }
    }

    /// Sets the time for which the keys of the sources that are added later wait.
    pub(super) fn debounce(self, debounce: Duration) -> Self {
        Runner { debounce, ..self }
    }

    /// Adds a key at the start.
    pub(super) fn start_with(self, key: K) -> Self {
        self.queue.add(key);
        self
    }

    /// Adds the keys that `keys` returns for each existing object and each change of a collection.
    pub(super) fn watch<I: IntoIterator<Item = K>>(
        self,
        items: &Arc<Items>,
        mut keys: impl FnMut(ObjectEvent<'_>) -> I + Send + 'static,
    ) -> Self {
        let add = self.adder();
        let reflector = reflect(Arc::clone(items), move |event| keys(event).into_iter().for_each(&add));
        self.source(reflector)
    }

    /// Adds keys as [`Runner::watch`] does, but only for the objects with this name, in all namespaces.
    pub(super) fn watch_named<I: IntoIterator<Item = K>>(
        self,
        items: &Arc<Items>,
        name: &'static str,
        mut keys: impl FnMut(ObjectEvent<'_>) -> I + Send + 'static,
    ) -> Self {
        let add = self.adder();
        let observe = move |event: ObjectEvent<'_>| keys(event).into_iter().for_each(&add);
        self.source(reflect_named(Arc::clone(items), name, observe))
    }

    /// Adds a key after each change of one of the files.
    pub(super) fn watch_files(mut self, files: Vec<PathBuf>, key: K) -> Self {
        let add = self.adder();
        self.file_watches.push(Snapshot::new(files).watch(move || {
            add(key.clone());
            true
        }));
        self
    }

    /// Adds the keys that `keys` returns when this apid begins to lead.
    pub(super) fn watch_terms<I: IntoIterator<Item = K>>(
        self,
        state: &ControllerState,
        keys: impl Fn() -> I + Send + 'static,
    ) -> Self {
        let (mut terms, queue) = (state.leadership.terms(), Arc::clone(&self.queue));
        self.source(async move {
            let mut last = 0;
            loop {
                let begin = terms.wait_for(|term| term.leads && term.number != last).await;
                let Ok(number) = begin.map(|term| term.number) else { return };
                last = number;
                keys().into_iter().for_each(|key| queue.add(key));
            }
        })
    }

    /// Runs a task that adds keys to [`Runner::queue`].
    pub(super) fn source(mut self, source: impl Future<Output = ()> + Send + 'static) -> Self {
        self.sources.push(Box::pin(source));
        self
    }

    fn adder(&self) -> impl Fn(K) + Send + Sync + 'static + use<K> {
        let (queue, debounce) = (Arc::clone(&self.queue), self.debounce);
        move |key| match debounce {
            Duration::ZERO => queue.add(key),
            debounce => queue.add_after(key, debounce),
        }
    }

    /// Runs the sources and the workers until the process ends.
    pub(super) async fn run<C: Reconcile<Key = K>>(self, controller: Arc<C>) {
        let mut workers = JoinSet::new();
        for _ in 0..self.workers {
            let (queue, controller) = (Arc::clone(&self.queue), Arc::clone(&controller));
            workers.spawn(async move {
                loop {
                    reconcile_next(&queue, &*controller).await;
                }
            });
        }
        tokio::join!(join_all(self.sources), async { while workers.join_next().await.is_some() {} });
    }
}

/// Waits for the next key, reconciles the key, and tells the queue when the key is due again.
async fn reconcile_next<C: Reconcile>(queue: &Queue<C::Key>, controller: &C) {
    let key = queue.take().await;
    // A panic must not end the worker, which serves other keys too.
    let Ok(result) = AssertUnwindSafe(controller.reconcile(&key)).catch_unwind().await else {
        tracing::error!(controller = queue.name(), ?key, "reconciliation panicked; retrying");
        return queue.mark_failed(&key, MAX_BACKOFF);
    };
    match result {
        Ok(Requeue::No) => queue.mark_done(&key),
        Ok(Requeue::After(pause)) => {
            queue.mark_done(&key);
            queue.add_after(key, pause);
        }
        Ok(Requeue::Poll) => queue.mark_failed(&key, MAX_POLL_INTERVAL),
        Ok(Requeue::Backoff) => queue.mark_failed(&key, MAX_BACKOFF),
        Ok(Requeue::BackoffUpTo(max)) => queue.mark_failed(&key, max),
        Err(status) => {
            if !is_normal(&status) {
                tracing::warn!(controller = queue.name(), ?key, reason = %status, "reconciliation failed; retrying");
            }
            queue.mark_failed(&key, MAX_BACKOFF);
        }
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::super::queue::MIN_BACKOFF;
    use super::super::queue::tests::queue;
    use super::*;

    /// Returns the prepared results in turn, and records the keys.
    struct Prepared {
        results: Mutex<Vec<Result<Requeue, Status>>>,
        keys: Mutex<Vec<&'static str>>,
    }

    impl Reconcile for Prepared {
        type Key = &'static str;

        async fn reconcile(&self, key: &&'static str) -> Result<Requeue, Status> {
            self.keys.lock().push(*key);
            self.results.lock().pop().unwrap_or(Ok(Requeue::No))
        }
    }

    fn prepared(results: impl IntoIterator<Item = Result<Requeue, Status>>) -> Prepared {
        let mut results: Vec<_> = results.into_iter().collect();
        results.reverse();
        Prepared { results: Mutex::new(results), keys: Mutex::default() }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn keys_are_reconciled_in_order_and_once_for_each_addition() {
        let (queue, ..) = queue();
        let controller = prepared([]);
        for key in ["a", "b", "a", "c"] {
            queue.add(key);
        }
        while reconcile_next(&queue, &controller).now_or_never().is_some() {}
        assert_eq!(*controller.keys.lock(), ["a", "b", "c"]);
        queue.add("a");
        reconcile_next(&queue, &controller).now_or_never().unwrap();
        assert_eq!(*controller.keys.lock(), ["a", "b", "c", "a"]);
        assert!(queue.is_idle());
    }

    /// Each result, with the pauses before the next two reconciliations that have the same result.
    #[tokio::test]
    async fn result_decides_when_the_key_is_reconciled_again() {
        let failure = || Err(Status::internal("expected"));
        let race = || Err(Status::unknown_resource());
        let milli = Duration::from_millis(1);
        for (result, pauses) in [
            (Ok(Requeue::After(SECOND * 30)), [SECOND * 30, SECOND * 30, SECOND * 30]),
            (Ok(Requeue::Poll), [MIN_BACKOFF, MIN_BACKOFF * 2, MIN_BACKOFF * 4]),
            (Ok(Requeue::Backoff), [MIN_BACKOFF, MIN_BACKOFF * 2, MIN_BACKOFF * 4]),
            (Ok(Requeue::BackoffUpTo(MIN_BACKOFF * 2)), [MIN_BACKOFF, MIN_BACKOFF * 2, MIN_BACKOFF * 2]),
            (failure(), [MIN_BACKOFF, MIN_BACKOFF * 2, MIN_BACKOFF * 4]),
            (race(), [MIN_BACKOFF, MIN_BACKOFF * 2, MIN_BACKOFF * 4]),
        ] {
            let (queue, clock, _) = queue();
            let controller = prepared(std::iter::repeat_n(result.clone(), 4));
            queue.add("a");
            for pause in pauses {
                reconcile_next(&queue, &controller).now_or_never().unwrap();
                clock.advance(pause - milli);
                assert!(is_waiting(&queue), "{result:?} after {pause:?}");
                clock.advance(milli);
            }
            reconcile_next(&queue, &controller).now_or_never().unwrap();
            assert_eq!(controller.keys.lock().len(), 4, "{result:?}");
        }
    }

    #[test]
    fn lasting_failure_is_retried_every_minute_and_poll_every_two_seconds() {
        for (result, pause) in
            [(Err(Status::internal("expected")), MAX_BACKOFF), (Ok(Requeue::Poll), MAX_POLL_INTERVAL)]
        {
            let (queue, clock, _) = queue();
            let controller = prepared(std::iter::repeat_n(result, 40));
            queue.add("a");
            for _ in 0..40 {
                reconcile_next(&queue, &controller).now_or_never().unwrap();
                clock.advance(pause);
            }
            assert_eq!(controller.keys.lock().len(), 40);
        }
    }

    #[test]
    fn new_change_ends_the_backoff_and_success_resets_it() {
        let (queue, clock, _) = queue();
        let failure = || Err(Status::internal("expected"));
        let controller = prepared([failure(), failure(), failure(), Ok(Requeue::No), failure()]);
        for _ in 0..4 {
            queue.add("a");
            reconcile_next(&queue, &controller).now_or_never().unwrap();
        }
        assert!(queue.is_idle(), "the success ends the retries");
        queue.add("a");
        reconcile_next(&queue, &controller).now_or_never().unwrap();
        clock.advance(MIN_BACKOFF);
        reconcile_next(&queue, &controller).now_or_never().unwrap();
        assert_eq!(controller.keys.lock().len(), 6);
    }

    #[tokio::test]
    async fn runner_reconciles_keys_of_its_sources_after_the_debounce() {
        let (queue, clock, _) = queue();
        let controller = Arc::new(prepared([]));
        let runner = Runner::with_queue(Arc::new(queue)).workers(2).start_with("start").debounce(SECOND);
        let (queue, add) = (runner.queue(), runner.adder());
        let runner = runner.source(async move {
            add("a");
            add("a");
        });
        let run = tokio::spawn(runner.run(Arc::clone(&controller)));
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        assert_eq!(*controller.keys.lock(), ["start"]);
        clock.advance(SECOND);
        queue.add("b");
        while controller.keys.lock().len() < 3 {
            tokio::task::yield_now().await;
        }
        let mut keys = controller.keys.lock().clone();
        keys.sort_unstable();
        assert_eq!(keys, ["a", "b", "start"]);
        run.abort();
    }

    fn is_waiting(queue: &Queue<&'static str>) -> bool {
        queue.take().now_or_never().is_none()
    }
}
