//! Worker threads for the heavy steps of requests, with a queue for each flow.
//!
//! # Contract
//!
//! [`WorkPool::run`] polls work on the worker threads and returns its output. I/O threads do the rest: TLS, health
//! checks, watches, small requests, and copies of stored bytes.
//!
//! The threads serve flows in turns, one poll after the other. A flow occupies at most [`THREADS_OF_FLOW`] threads, and
//! there are more threads than that. Work that waits, for example for a webhook or for authd, occupies no thread.
//!
//! A heavy request also takes a [`Slot`] of its flow before it takes a seat and memory: [`WorkPool::take_slot`]. The
//! requests that wait for a slot hold neither, so that one flow does not fill its priority level with waiting work.
//! [`QueueFull`] rejects a request when [`MAX_WAITING`] requests of its flow wait.
//!
//! A request gives its slot back while it waits for another process ([`serving::waits`]): a webhook can depend on a heavy
//! request of the same flow. After the wait the request takes a free slot, and continues without one if none is free. A
//! wait for a slot could be a deadlock: the request has a seat, for which the holders of the slots may wait.
//!
//! Dropping the future that [`WorkPool::run`] returns cancels the work at its next poll.
//!
//! # Invariants
//!
//! INVARIANT (background priority): worker threads run at a lower scheduling priority than I/O threads, so that a busy
//! pool does not delay small requests.
//! INVARIANT (main runtime): tasks and timers that work starts belong to the runtime that created the pool, also when
//! the work is dropped. A task that outlives its request, such as the relay of a watch cache, never runs on a worker.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::hash::{BuildHasher as _, Hash};
use std::io;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Wake, Waker};

use futures_util::FutureExt as _;
use futures_util::future::{AbortHandle, abortable};
use parking_lot::{Condvar, Mutex, MutexGuard};
use serving::waits::HeldSlot;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// Niceness added to worker threads: an I/O thread gets about ten times their CPU share.
const NICENESS: i32 = 10;

/// Maximum number of threads that the work of one flow occupies, and of its requests with a slot.
pub(super) const THREADS_OF_FLOW: usize = 4;

/// Maximum number of requests of one flow that wait for a slot.
const MAX_WAITING: usize = 256;

/// Identifies a flow: the hash of what tells it apart ([`WorkPool::flow`]). Two flows with the same hash share their
/// slots.
pub(super) type Flow = u64;

/// Too many heavy requests of a flow wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many large requests of this user are queued")]
pub(super) struct QueueFull;

/// The pool and the process are shutting down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server is shutting down")]
pub(super) struct ShutDown;

/// The worker threads, the ready work and the slots of flows.
pub(super) struct WorkPool {
    shared: Arc<Shared>,
    slots: Mutex<HashMap<Flow, Weak<Slots>>>,
    hasher: RandomState,
}

struct Shared {
    lanes: Mutex<Lanes>,
    work_ready: Condvar,
    /// The runtime that created the pool.
    main: Handle,
    #[cfg(test)]
    statistics: measurement::Statistics,
}

/// The ready work of all flows.
#[derive(Default)]
struct Lanes {
    by_flow: HashMap<Flow, Lane>,
    /// Flows with ready work and a free thread of their own, each once. The first flow is next.
    order: VecDeque<Flow>,
    is_shut_down: bool,
}

#[derive(Default)]
struct Lane {
    ready: VecDeque<Arc<Task>>,
    /// Number of threads that poll tasks of the flow.
    running: usize,
}

/// Work that a thread polls when it is woken.
struct Task {
    flow: Flow,
    shared: Weak<Shared>,
    stage: Mutex<Stage>,
    /// None after the end of the work.
    work: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The work waits for its waker.
    Waiting,
    /// The work is in the lane of its flow.
    Ready,
    /// A thread polls the work.
    Polled,
    /// A thread polls the work, which was woken meanwhile.
    PolledAndWoken,
}

/// The slots of one flow.
struct Slots {
    /// Slots, and places of requests that wait for one.
    places: Arc<Semaphore>,
    free: Arc<Semaphore>,
}

/// The slot of a heavy request; dropping the value gives the slot to the next request of the flow.
pub(super) struct Slot {
    /// Whether the request waited for the slot.
    pub(super) waited: bool,
    request: Arc<RequestSlot>,
}

impl Slot {
    /// The slot for the waits of its request.
    pub(super) fn held(&self) -> Arc<dyn HeldSlot> {
        Arc::clone(&self.request) as Arc<dyn HeldSlot>
    }
}

/// The slot of a request between its waits for other processes.
struct RequestSlot {
    /// The slots of a flow exist as long as a request has or awaits one.
    slots: Arc<Slots>,
    state: Mutex<SlotState>,
}

struct SlotState {
    /// Number of waits of the request for other processes.
    waits: usize,
    /// None during a wait, and after it if no slot was free.
    permits: Option<SlotPermits>,
}

struct SlotPermits {
    _free: OwnedSemaphorePermit,
    _place: OwnedSemaphorePermit,
}

impl Slots {
    /// Takes a slot if one is free and no request waits for it.
    fn try_take(&self) -> Option<SlotPermits> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        let free = Arc::clone(&self.free).try_acquire_owned().ok()?;
        Some(SlotPermits { _free: free, _place: place })
    }
}

impl HeldSlot for RequestSlot {
    fn begin_wait(&self) {
        let mut state = self.state.lock();
        state.waits += 1;
        let permits = state.permits.take();
        drop(state);
        // Dropped without the lock, because the permits wake the next request.
        drop(permits);
    }

    fn end_wait(&self) {
        let mut state = self.state.lock();
        state.waits = state.waits.saturating_sub(1);
        if state.waits == 0 {
            state.permits = self.slots.try_take();
        }
    }
}

impl WorkPool {
    /// Starts the worker threads. Must be called within the main runtime.
    ///
    /// # Errors
    ///
    /// The system cannot start a thread.
    pub(super) fn start(threads: usize) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            lanes: Mutex::default(),
            work_ready: Condvar::new(),
            main: Handle::current(),
            #[cfg(test)]
            statistics: measurement::Statistics::default(),
        });
        let pool = WorkPool { shared, slots: Mutex::default(), hasher: RandomState::new() };
        for _ in 0..threads.max(1) {
            let shared = Arc::clone(&pool.shared);
            std::thread::Builder::new().name("worker".to_owned()).spawn(move || shared.work())?;
        }
        Ok(pool)
    }

    /// Returns the flow with these properties.
    pub(super) fn flow(&self, properties: impl Hash) -> Flow {
        self.hasher.hash_one(properties)
    }

    /// Waits for a slot of the flow. Requests of a flow take their slots in order.
    ///
    /// # Errors
    ///
    /// Too many requests of the flow wait.
    pub(super) async fn take_slot(&self, flow: Flow) -> Result<Slot, QueueFull> {
        let slots = self.slots_of(flow);
        let place = Arc::clone(&slots.places).try_acquire_owned().map_err(|_none_free| QueueFull)?;
        let waited = slots.free.available_permits() == 0;
        // The semaphore is never closed.
        let free = Arc::clone(&slots.free).acquire_owned().await.map_err(|_closed| QueueFull)?;
        let permits = Some(SlotPermits { _free: free, _place: place });
        let request = RequestSlot { slots, state: Mutex::new(SlotState { waits: 0, permits }) };
        Ok(Slot { waited, request: Arc::new(request) })
    }

    fn slots_of(&self, flow: Flow) -> Arc<Slots> {
        let mut slots = self.slots.lock();
        if let Some(known) = slots.get(&flow).and_then(Weak::upgrade) {
            return known;
        }
        slots.retain(|_, slots| slots.strong_count() > 0);
        let new = Arc::new(Slots {
            places: Arc::new(Semaphore::new(THREADS_OF_FLOW + MAX_WAITING)),
            free: Arc::new(Semaphore::new(THREADS_OF_FLOW)),
        });
        slots.insert(flow, Arc::downgrade(&new));
        new
    }

    /// Runs work of a flow.
    ///
    /// # Errors
    ///
    /// The pool is shutting down.
    ///
    /// # Panics
    ///
    /// Propagates a panic of the work.
    pub(super) async fn run<F>(&self, flow: Flow, work: F) -> Result<F::Output, ShutDown>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        #[cfg(test)]
        self.shared.statistics.count_start();
        let (sender, output) = oneshot::channel();
        let (work, abort) = abortable(AssertUnwindSafe(work).catch_unwind());
        let work = async move {
            if let Ok(output) = work.await {
                // The receiver is gone if the work was cancelled during its last poll.
                let _ = sender.send(output);
            }
        };
        let _abort = AbortOnDrop(abort);
        self.shared.schedule(Arc::new(Task {
            flow,
            shared: Arc::downgrade(&self.shared),
            stage: Mutex::new(Stage::Ready),
            work: Mutex::new(Some(Box::pin(work))),
        }));
        match output.await {
            Ok(Ok(output)) => Ok(output),
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(_dropped) => Err(ShutDown),
        }
    }
}

impl Drop for WorkPool {
    fn drop(&mut self) {
        let ended = {
            let mut lanes = self.shared.lanes.lock();
            std::mem::replace(&mut *lanes, Lanes { is_shut_down: true, ..Lanes::default() })
        };
        self.shared.work_ready.notify_all();
        // Dropped without the lock, because a task can wake others when it is dropped.
        drop(ended);
    }
}

/// Cancels work when it is dropped.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Lowers the priority of this thread to that of worker threads.
pub(super) fn lower_priority() {
    // Linux applies the niceness to the calling thread only. If the call fails, the pool still works.
    if let Err(error) = rustix::process::nice(NICENESS) {
        tracing::debug!(%error, "setting the niceness failed; worker threads keep the priority of I/O threads");
    }
}

impl Shared {
    /// Polls ready work until the shutdown.
    fn work(&self) {
        lower_priority();
        #[cfg(test)]
        self.statistics.record_thread();
        let _entered = self.main.enter();
        let mut lanes = self.lanes.lock();
        while !lanes.is_shut_down {
            let Some(task) = lanes.take() else {
                self.work_ready.wait(&mut lanes);
                continue;
            };
            let flow = task.flow;
            // A panic of work is part of its output; a panic of its drop must not end the thread.
            let poll = AssertUnwindSafe(|| task.poll());
            MutexGuard::unlocked(&mut lanes, || drop(std::panic::catch_unwind(poll)));
            lanes.release(flow);
        }
    }

    fn schedule(&self, task: Arc<Task>) {
        let mut lanes = self.lanes.lock();
        if lanes.is_shut_down {
            drop(lanes);
            // Ends the work: its caller gets an error.
            drop(task);
            return;
        }
        lanes.push(task);
        drop(lanes);
        self.work_ready.notify_one();
    }
}

impl Lanes {
    fn push(&mut self, task: Arc<Task>) {
        let flow = task.flow;
        let lane = self.by_flow.entry(flow).or_default();
        if lane.ready.is_empty() && lane.running < THREADS_OF_FLOW {
            self.order.push_back(flow);
        }
        lane.ready.push_back(task);
    }

    /// Takes a task of the next flow for a thread; None if no task is ready.
    fn take(&mut self) -> Option<Arc<Task>> {
        let flow = self.order.pop_front()?;
        let lane = self.by_flow.get_mut(&flow)?;
        let task = lane.ready.pop_front();
        lane.running += 1;
        if !lane.ready.is_empty() && lane.running < THREADS_OF_FLOW {
            self.order.push_back(flow);
        }
        task
    }

    /// Frees the thread that polled a task of the flow.
    fn release(&mut self, flow: Flow) {
        let Some(lane) = self.by_flow.get_mut(&flow) else { return };
        if lane.running == THREADS_OF_FLOW && !lane.ready.is_empty() {
            self.order.push_back(flow);
        }
        lane.running -= 1;
        if lane.running == 0 && lane.ready.is_empty() {
            self.by_flow.remove(&flow);
        }
    }
}

impl Task {
    fn poll(self: Arc<Self>) {
        *self.stage.lock() = Stage::Polled;
        let waker = Waker::from(Arc::clone(&self));
        let mut work = self.work.lock();
        let is_pending = work
            .as_mut()
            .is_some_and(|work| work.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        if !is_pending {
            // The stage stays `Polled`, so that a later wake has no effect.
            *work = None;
            return;
        }
        drop(work);
        let is_woken = {
            let mut stage = self.stage.lock();
            let is_woken = *stage == Stage::PolledAndWoken;
            *stage = if is_woken { Stage::Ready } else { Stage::Waiting };
            is_woken
        };
        if is_woken {
            self.schedule();
        }
    }

    fn schedule(self: Arc<Self>) {
        if let Some(shared) = self.shared.upgrade() {
            shared.schedule(self);
        }
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        let mut stage = self.stage.lock();
        match *stage {
            Stage::Waiting => {
                *stage = Stage::Ready;
                drop(stage);
                self.schedule();
            }
            Stage::Polled => *stage = Stage::PolledAndWoken,
            Stage::Ready | Stage::PolledAndWoken => {}
        }
    }
}

/// Measurement of the work of a pool.
#[cfg(test)]
mod measurement {
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use parking_lot::Mutex;

    use super::WorkPool;

    /// The started work, and the scheduler statistics of the threads.
    #[derive(Default)]
    pub(super) struct Statistics {
        started: AtomicUsize,
        threads: Mutex<Vec<PathBuf>>,
    }

    impl Statistics {
        pub(super) fn count_start(&self) {
            self.started.fetch_add(1, Ordering::Relaxed);
        }

        /// Records the calling thread.
        pub(super) fn record_thread(&self) {
            let thread = std::fs::canonicalize("/proc/thread-self").unwrap();
            self.threads.lock().push(thread.join("schedstat"));
        }
    }

    impl WorkPool {
        /// CPU time of the worker threads.
        pub(crate) fn cpu(&self) -> Duration {
            let threads = self.shared.statistics.threads.lock();
            let nanoseconds = threads.iter().map(|thread| {
                let statistics = std::fs::read_to_string(thread).unwrap();
                statistics.split_whitespace().next().unwrap().parse::<u64>().unwrap()
            });
            Duration::from_nanos(nanoseconds.sum())
        }

        /// Number of started pieces of work.
        pub(crate) fn started_tasks(&self) -> usize {
            self.shared.statistics.started.load(Ordering::Relaxed)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::mpsc;

    use super::*;

    fn start(threads: usize) -> Arc<WorkPool> {
        Arc::new(WorkPool::start(threads).unwrap())
    }

    #[tokio::test]
    async fn work_runs_on_worker_threads_and_returns_its_output() {
        let pool = start(1);
        let work = async { std::thread::current().name().map(str::to_owned) };
        assert_eq!(pool.run(1, work).await, Ok(Some("worker".to_owned())));
    }

    #[tokio::test]
    async fn task_started_by_work_runs_on_the_main_runtime() {
        let pool = start(1);
        let main = std::thread::current().id();
        let work = async { tokio::spawn(async { std::thread::current().id() }).await.unwrap() };
        assert_eq!(pool.run(1, work).await, Ok(main));
        assert_eq!(pool.run(1, tokio::task::yield_now()).await, Ok(()));
        let work = async { tokio::time::sleep(Duration::from_millis(1)).await };
        assert_eq!(pool.run(1, work).await, Ok(()));
    }

    /// Sends whether timers work at the place where the value is dropped.
    struct TimerCheck(mpsc::UnboundedSender<bool>);

    impl Drop for TimerCheck {
        fn drop(&mut self) {
            let timer = std::panic::catch_unwind(|| drop(tokio::time::sleep(Duration::from_millis(1))));
            self.0.send(timer.is_ok()).unwrap();
        }
    }

    #[tokio::test]
    async fn work_of_a_gone_caller_is_dropped_within_the_main_runtime() {
        let pool = start(1);
        let (sender, mut has_timers) = mpsc::unbounded_channel();
        let check = TimerCheck(sender);
        let work = async move {
            let _check = check;
            std::future::pending::<()>().await;
        };
        let wait = Duration::from_millis(50);
        assert!(tokio::time::timeout(wait, pool.run(1, work)).await.is_err());
        assert_eq!(has_timers.recv().await, Some(true));
        assert_eq!(pool.run(1, async { 5 }).await, Ok(5));
    }

    #[tokio::test]
    async fn panic_of_work_reaches_caller_and_frees_the_thread() {
        let pool = start(1);
        for _ in 0..3 {
            let pool = Arc::clone(&pool);
            let ran = tokio::spawn(async move { pool.run(1, async { panic!("expected") }).await });
            assert!(ran.await.unwrap_err().is_panic());
        }
        assert_eq!(pool.run(1, async { 5 }).await, Ok(5));
    }

    #[tokio::test]
    async fn work_after_the_shutdown_is_rejected() {
        let pool = start(1);
        let (_sender, forever) = oneshot::channel::<()>();
        let run = {
            let pool = Arc::clone(&pool);
            let work = async { forever.await.is_ok() };
            tokio::spawn(async move { pool.run(1, work).await })
        };
        tokio::task::yield_now().await;
        let shared = Arc::clone(&pool.shared);
        shared.lanes.lock().is_shut_down = true;
        assert_eq!(pool.run(1, async { 5 }).await, Err(ShutDown));
        run.abort();
    }

    /// Work that occupies a thread until the sender is dropped.
    fn blocking() -> (std::sync::mpsc::Sender<()>, impl Future<Output = ()> + Send + 'static) {
        let (release, wait) = std::sync::mpsc::channel::<()>();
        (release, async move {
            let _ = wait.recv();
        })
    }

    #[tokio::test]
    async fn busy_worker_does_not_block_the_main_runtime() {
        let pool = start(1);
        let (release, work) = blocking();
        let busy = {
            let pool = Arc::clone(&pool);
            tokio::spawn(async move { pool.run(1, work).await })
        };
        // The test runs on one thread, so it continues only if the worker is a separate thread.
        tokio::time::sleep(Duration::from_millis(5)).await;
        drop(release);
        assert_eq!(busy.await.unwrap(), Ok(()));
    }

    #[tokio::test]
    async fn flow_leaves_a_thread_to_other_flows() {
        let pool = start(THREADS_OF_FLOW + 1);
        let mut busy = Vec::new();
        for _ in 0..2 * THREADS_OF_FLOW {
            let ((release, work), pool) = (blocking(), Arc::clone(&pool));
            busy.push((release, tokio::spawn(async move { pool.run(1, work).await })));
        }
        let other = tokio::time::timeout(Duration::from_secs(5), pool.run(2, async { 5 })).await;
        assert_eq!(other.expect("a thread for another flow"), Ok(5));
        for (release, work) in busy {
            drop(release);
            assert_eq!(work.await.unwrap(), Ok(()));
        }
        assert!(pool.shared.lanes.lock().order.is_empty());
    }

    #[tokio::test]
    async fn work_that_waits_occupies_no_thread() {
        let pool = start(1);
        let (answer, wait) = oneshot::channel::<()>();
        let waiting = {
            let pool = Arc::clone(&pool);
            tokio::spawn(async move { pool.run(1, async { wait.await.is_ok() }).await })
        };
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert_eq!(pool.run(1, async { 5 }).await, Ok(5));
        answer.send(()).unwrap();
        assert_eq!(waiting.await.unwrap(), Ok(true));
    }

    #[tokio::test]
    async fn flows_are_served_in_turns() {
        let pool = start(1);
        let (release, work) = blocking();
        let busy = {
            let pool = Arc::clone(&pool);
            tokio::spawn(async move { pool.run(9, work).await })
        };
        tokio::time::sleep(Duration::from_millis(5)).await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut queued = Vec::new();
        for flow in [1, 1, 1, 2] {
            let (pool, order) = (Arc::clone(&pool), Arc::clone(&order));
            queued.push(tokio::spawn(
                async move { pool.run(flow, async move { order.lock().push(flow) }).await },
            ));
            tokio::task::yield_now().await;
        }
        drop(release);
        assert_eq!(busy.await.unwrap(), Ok(()));
        for work in queued {
            assert_eq!(work.await.unwrap(), Ok(()));
        }
        assert_eq!(*order.lock(), [1, 2, 1, 1]);
    }

    #[tokio::test]
    async fn requests_of_a_flow_wait_for_slots_and_a_full_queue_rejects() {
        let pool = start(1);
        let mut slots = Vec::new();
        for _ in 0..THREADS_OF_FLOW {
            slots.push(pool.take_slot(1).await.unwrap());
        }
        assert!(slots.iter().all(|slot| !slot.waited));
        assert!(!pool.take_slot(2).await.unwrap().waited, "another flow has its own slots");
        let waiting: Vec<_> = (0..MAX_WAITING)
            .map(|_| {
                let pool = Arc::clone(&pool);
                tokio::spawn(async move { pool.take_slot(1).await.map(|slot| slot.waited) })
            })
            .collect();
        while pool.slots_of(1).places.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(pool.take_slot(1).await.err(), Some(QueueFull));
        drop(slots);
        for slot in waiting {
            assert_eq!(slot.await.unwrap(), Ok(true));
        }
        assert!(!pool.take_slot(1).await.unwrap().waited);
        drop(pool.take_slot(3).await.unwrap());
        assert_eq!(pool.slots.lock().len(), 1, "flows without requests are forgotten");
    }

    #[tokio::test]
    async fn request_releases_slot_while_it_waits_for_another_process() {
        let pool = start(1);
        let (mut waiting, waits_begun) = (Vec::new(), Arc::new(tokio::sync::Notify::new()));
        for _ in 0..THREADS_OF_FLOW + 1 {
            let slot = tokio::time::timeout(Duration::from_secs(5), pool.take_slot(1)).await;
            let slot = slot.expect("the requests that wait have given their slots back").unwrap();
            let (answer, wait) = oneshot::channel::<()>();
            let (pool, held, begun) = (Arc::clone(&pool), slot.held(), Arc::clone(&waits_begun));
            let work = async move {
                let _slot = slot;
                let wait = async {
                    begun.notify_one();
                    wait.await.is_ok()
                };
                serving::waits::wait_for_process(wait).await
            };
            let run = tokio::spawn(async move { pool.run(1, serving::waits::with_slot(held, work)).await });
            // A request that holds its slot during the wait would leave none to the fifth one.
            waits_begun.notified().await;
            waiting.push((answer, run));
        }
        let backend = tokio::time::timeout(Duration::from_secs(5), pool.take_slot(1)).await;
        let backend = backend.expect("a slot for the backend of the webhook").unwrap();
        // A slot that is free at the end of a wait is taken again; otherwise the request continues without one.
        let others: Vec<_> =
            futures_util::future::join_all((0..THREADS_OF_FLOW - 1).map(|_| pool.take_slot(1))).await;
        for (answer, run) in waiting {
            answer.send(()).unwrap();
            assert_eq!(run.await.unwrap(), Ok(true));
        }
        assert_eq!(pool.slots_of(1).free.available_permits(), 0, "the requests with a slot keep it");
        drop((backend, others));
        assert_eq!(pool.slots_of(1).free.available_permits(), THREADS_OF_FLOW);
    }
}
