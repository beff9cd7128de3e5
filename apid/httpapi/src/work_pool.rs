//! Worker threads for requests whose CPU time grows with a body, an object or a list.
//!
//! # Contract
//!
//! [`WorkPool::run`] polls a future on the worker threads and returns its output. I/O threads serve TLS
//! handshakes, health checks, watches and small requests. A small request or a watch waits for the pool only in
//! these cases:
//!
//! - Its query is above 8 kB: the pool parses the query, and a client address counts as a user.
//! - A step before the response head, or a chunk of the response, is costly.
//! - An event of the watch is costly to encode.
//!
//! The pool serves users round-robin: a request waits for at most [`PoolLimits::tasks_per_user`] tasks of each
//! other user. A task has a cost in bytes, at most [`PoolLimits::bytes_per_user`]. The running tasks stay within
//! [`PoolLimits::bytes`]. [`WorkPool::run`] returns [`QueueFull`] if the queue of the user is full.
//! [`WorkPool::run_queued`] ignores this limit.
//!
//! A task that waits longer than [`PATIENCE`], for example for a webhook or for authd, releases its place in the pool
//! and takes a place again before it continues. Meanwhile the task counts for its user only, so that slow webhooks
//! of one user do not delay the requests of others.
//!
//! Dropping the future that [`WorkPool::run`] returns cancels the task: a waiting task at once, a running task at
//! its next await. A cancelled task blocks no other task.
//!
//! # Invariants
//!
//! INVARIANT (background priority): worker threads run at a lower scheduling priority than I/O threads, so
//! that a busy pool does not delay small requests.
//! INVARIANT (main runtime): tasks and timers that pooled work starts belong to the runtime that created the
//! pool. A task that outlives its request, such as the relay of a watch cache, never runs on a worker.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;

/// Niceness added to worker threads: an I/O thread gets about ten times their CPU share.
const NICENESS: i32 = 10;

/// Time for which a task that waits keeps its place in the pool: some times that of a durable commit.
const PATIENCE: Duration = Duration::from_millis(20);

/// The limits of the pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct PoolLimits {
    /// Maximum number of running tasks.
    pub(super) tasks: usize,
    /// Maximum number of running and suspended tasks of one user.
    pub(super) tasks_per_user: usize,
    /// Maximum number of waiting tasks of one user.
    pub(super) queue: usize,
    /// Maximum cost of all running tasks, in bytes.
    pub(super) bytes: usize,
    /// Maximum cost of one user's running and suspended tasks, in bytes.
    pub(super) bytes_per_user: usize,
    /// Maximum cost of all suspended tasks, in bytes. A task beyond the limit keeps its place while it waits.
    pub(super) suspended_bytes: usize,
}

impl PoolLimits {
    /// The limits of a server. It allows more tasks than threads, because tasks also wait for the store or
    /// authd.
    pub(super) const SERVER: PoolLimits = PoolLimits {
        tasks: 32,
        tasks_per_user: 4,
        queue: 256,
        bytes: 128 << 20,
        bytes_per_user: 64 << 20,
        suspended_bytes: 128 << 20,
    };
}

/// The queue of a user is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many large requests of this user are queued")]
pub(super) struct QueueFull;

/// The pool and the process are shutting down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server is shutting down")]
pub(super) struct ShutDown;

/// The reason why work did not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PoolError {
    /// The queue of the user is full.
    #[error(transparent)]
    QueueFull(#[from] QueueFull),
    /// The pool is shutting down.
    #[error(transparent)]
    ShutDown(#[from] ShutDown),
}

/// The worker threads and the task queues of users.
pub(super) struct WorkPool {
    /// None after shutdown.
    workers: Option<Runtime>,
    /// The runtime that created the pool.
    main: Handle,
    fair_queue: Arc<FairQueue>,
    #[cfg(test)]
    thread_statistics: measurement::Threads,
}

impl WorkPool {
    /// Starts the worker threads. Must be called within the main runtime.
    ///
    /// # Errors
    ///
    /// The system cannot start a thread.
    pub(super) fn start(threads: usize, limits: PoolLimits) -> io::Result<Self> {
        #[cfg(test)]
        let thread_statistics = measurement::Threads::default();
        #[cfg(test)]
        let record_thread = thread_statistics.recorder();
        let workers = Builder::new_multi_thread()
            .worker_threads(threads.max(1))
            .thread_name("worker")
            .on_thread_start(move || {
                lower_priority();
                #[cfg(test)]
                record_thread();
            })
            .build()?;
        Ok(WorkPool {
            workers: Some(workers),
            main: Handle::current(),
            fair_queue: Arc::new(FairQueue::new(limits)),
            #[cfg(test)]
            thread_statistics,
        })
    }

    /// Runs work of a user that costs about `bytes` of memory.
    ///
    /// # Errors
    ///
    /// The user's queue is full, or the pool is shutting down.
    ///
    /// # Panics
    ///
    /// Propagates a panic of the work.
    pub(super) async fn run<F>(&self, user: &Arc<str>, bytes: usize, work: F) -> Result<F::Output, PoolError>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let permit = self.fair_queue.acquire(user, bytes, self.fair_queue.limits.queue).await?;
        Ok(self.run_with_permit(permit, work).await?)
    }

    /// Like [`WorkPool::run`], but ignores the queue limit, for the remaining steps of work that has begun.
    ///
    /// # Errors
    ///
    /// The pool is shutting down.
    ///
    /// # Panics
    ///
    /// Propagates a panic of the work.
    pub(super) async fn run_queued<F>(
        &self,
        user: &Arc<str>,
        bytes: usize,
        work: F,
    ) -> Result<F::Output, ShutDown>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let permit = self.fair_queue.acquire(user, bytes, usize::MAX).await.map_err(|QueueFull| ShutDown)?;
        self.run_with_permit(permit, work).await
    }

    async fn run_with_permit<F>(&self, permit: WorkerPermit, work: F) -> Result<F::Output, ShutDown>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let workers = self.workers.as_ref().ok_or(ShutDown)?;
        let work = MainRuntimeFuture { main: self.main.clone(), work: Some(Box::pin(work)) };
        // A `JoinSet` aborts its task when it is dropped.
        let mut task = JoinSet::new();
        task.spawn_on(run_with_place(work, permit), workers.handle());
        match task.join_next().await {
            Some(Ok(output)) => Ok(output),
            Some(Err(error)) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(ShutDown),
            },
            None => Err(ShutDown),
        }
    }
}

impl Drop for WorkPool {
    fn drop(&mut self) {
        if let Some(workers) = self.workers.take() {
            workers.shutdown_background();
        }
    }
}

/// Lowers the priority of this thread to that of worker threads.
pub(super) fn lower_priority() {
    // Linux applies the niceness to the calling thread only. If the call fails, the pool still works.
    if let Err(error) = rustix::process::nice(NICENESS) {
        tracing::debug!(%error, "setting the niceness failed; worker threads keep the priority of I/O threads");
    }
}

/// Work that starts its tasks and timers on the main runtime, also when the work is dropped.
struct MainRuntimeFuture<F> {
    main: Handle,
    /// None only while the value is dropped.
    work: Option<Pin<Box<F>>>,
}

impl<F> Drop for MainRuntimeFuture<F> {
    fn drop(&mut self) {
        let _entered = self.main.enter();
        self.work = None;
    }
}

impl<F: Future> Future for MainRuntimeFuture<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let main = self.main.clone();
        let _entered = main.enter();
        match &mut self.work {
            Some(work) => work.as_mut().poll(context),
            None => Poll::Pending,
        }
    }
}

/// Runs work and releases its place in the pool while the work waits longer than [`PATIENCE`].
async fn run_with_place<F: Future>(mut work: MainRuntimeFuture<F>, permit: WorkerPermit) -> F::Output {
    let woken = Arc::new(WakeSignal::default());
    let waker = Waker::from(Arc::clone(&woken));
    loop {
        if let Poll::Ready(output) = Pin::new(&mut work).poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        let patience = {
            // The worker runtime has no timer.
            let _entered = work.main.enter();
            tokio::time::timeout(PATIENCE, woken.0.notified())
        };
        if patience.await.is_err() {
            permit.suspend();
            woken.0.notified().await;
            permit.resume().await;
        }
    }
}

/// Records that work can continue.
#[derive(Default)]
struct WakeSignal(Notify);

impl Wake for WakeSignal {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}

/// A semaphore that serves users round-robin.
struct FairQueue {
    limits: PoolLimits,
    state: Mutex<FairQueueState>,
}

#[derive(Default)]
struct FairQueueState {
    running: usize,
    bytes: usize,
    suspended_bytes: usize,
    /// Suspended tasks that can continue, in order. They start before new tasks.
    resuming: VecDeque<(usize, Arc<Suspension>)>,
    users: HashMap<Arc<str>, UserQueue>,
    /// Users whose queue is not empty, each once; the front user is next.
    order: VecDeque<Arc<str>>,
    #[cfg(test)]
    started: usize,
}

#[derive(Default)]
struct UserQueue {
    /// Number of running and suspended tasks.
    running: usize,
    /// Cost of these tasks.
    bytes: usize,
    waiting: VecDeque<QueuedTask>,
}

struct QueuedTask {
    bytes: usize,
    grant: oneshot::Sender<WorkerPermit>,
}

/// The wait of a task for its permit; dropping it before the grant starts the tasks that the task blocked.
struct GrantWait<'a> {
    fair_queue: &'a Arc<FairQueue>,
    granted: oneshot::Receiver<WorkerPermit>,
}

impl Drop for GrantWait<'_> {
    fn drop(&mut self) {
        if !self.granted.is_terminated() {
            // The queue skips a task whose receiver is closed.
            self.granted.close();
            self.fair_queue.grant_next();
        }
    }
}

/// A permit to run one task; dropping it starts the next task.
struct WorkerPermit {
    /// None after the permit was released without [`Drop`].
    fair_queue: Option<Arc<FairQueue>>,
    user: Arc<str>,
    bytes: usize,
    suspension: Arc<Suspension>,
}

/// The state of a permit that can be suspended. Changed under the lock of the queue.
#[derive(Default)]
struct Suspension {
    /// Whether the task has no place in the pool.
    is_suspended: AtomicBool,
    resumed: Notify,
}

impl WorkerPermit {
    fn new(fair_queue: &Arc<FairQueue>, user: Arc<str>, bytes: usize) -> Self {
        WorkerPermit { fair_queue: Some(Arc::clone(fair_queue)), user, bytes, suspension: Arc::default() }
    }

    /// Releases the place of the task, unless the suspended tasks have reached their limit.
    fn suspend(&self) {
        let Some(fair_queue) = &self.fair_queue else { return };
        {
            let state = &mut *fair_queue.state.lock();
            if state.suspended_bytes + self.bytes > fair_queue.limits.suspended_bytes {
                return;
            }
            state.running -= 1;
            state.bytes -= self.bytes;
            state.suspended_bytes += self.bytes;
            self.suspension.is_suspended.store(true, Ordering::Relaxed);
        }
        fair_queue.grant_next();
    }

    /// Waits for a place if the task is suspended.
    async fn resume(&self) {
        let Some(fair_queue) = &self.fair_queue else { return };
        if !self.suspension.is_suspended.load(Ordering::Relaxed) {
            return;
        }
        fair_queue.state.lock().resuming.push_back((self.bytes, Arc::clone(&self.suspension)));
        fair_queue.grant_next();
        self.suspension.resumed.notified().await;
    }
}

impl FairQueue {
    fn new(limits: PoolLimits) -> Self {
        FairQueue { limits, state: Mutex::default() }
    }

    async fn acquire(
        self: &Arc<Self>,
        user: &Arc<str>,
        bytes: usize,
        max_waiting: usize,
    ) -> Result<WorkerPermit, QueueFull> {
        let (grant, granted) = oneshot::channel();
        {
            let state = &mut *self.state.lock();
            let queue = &mut state.users.entry(Arc::clone(user)).or_default().waiting;
            // Cancelled tasks keep the user in the order.
            let is_in_order = !queue.is_empty();
            if queue.len() >= max_waiting {
                queue.retain(|task| !task.grant.is_closed());
            }
            if queue.len() >= max_waiting {
                return Err(QueueFull);
            }
            queue.push_back(QueuedTask { bytes: bytes.min(self.limits.bytes_per_user), grant });
            if !is_in_order {
                state.order.push_back(Arc::clone(user));
            }
        }
        let mut wait = GrantWait { fair_queue: self, granted };
        self.grant_next();
        // Never fails: the queue drops a sender only after it granted a permit or the receiver was closed.
        (&mut wait.granted).await.map_err(|_| QueueFull)
    }

    /// Grants permits while the limits have room.
    fn grant_next(self: &Arc<Self>) {
        loop {
            let next = {
                let state = &mut *self.state.lock();
                if !state.resume(&self.limits) {
                    return;
                }
                state.take_next(&self.limits)
            };
            let Some((user, QueuedTask { bytes, grant })) = next else { return };
            if let Err(mut permit) = grant.send(WorkerPermit::new(self, user, bytes)) {
                // The request was cancelled. Released here, so that the drop does not call this function
                // again.
                permit.fair_queue = None;
                self.state.lock().release(&permit);
            }
        }
    }
}

impl FairQueueState {
    /// Gives places to the suspended tasks that can continue. Returns whether all of them have a place.
    fn resume(&mut self, limits: &PoolLimits) -> bool {
        while let Some((bytes, _)) = self.resuming.front() {
            let exceeds_bytes = self.running > 0 && self.bytes + bytes > limits.bytes;
            if self.running >= limits.tasks || exceeds_bytes {
                return false;
            }
            let Some((bytes, suspension)) = self.resuming.pop_front() else { return true };
            self.running += 1;
            self.bytes += bytes;
            self.suspended_bytes -= bytes;
            suspension.is_suspended.store(false, Ordering::Relaxed);
            suspension.resumed.notify_one();
        }
        true
    }

    /// Takes the next task and counts it as running; None if no task may start.
    fn take_next(&mut self, limits: &PoolLimits) -> Option<(Arc<str>, QueuedTask)> {
        if self.running >= limits.tasks {
            return None;
        }
        for _ in 0..self.order.len() {
            let user = self.order.pop_front()?;
            let Some(user_queue) = self.users.get_mut(&user) else { continue };
            while user_queue.waiting.front().is_some_and(|task| task.grant.is_closed()) {
                user_queue.waiting.pop_front();
            }
            let Some(first) = user_queue.waiting.front() else {
                if user_queue.running == 0 {
                    self.users.remove(&user);
                }
                continue;
            };
            let exceeds_bytes = user_queue.bytes + first.bytes > limits.bytes_per_user;
            if user_queue.running >= limits.tasks_per_user || (user_queue.running > 0 && exceeds_bytes) {
                self.order.push_back(user);
                continue;
            }
            if self.running > 0 && self.bytes + first.bytes > limits.bytes {
                // The user stays in front, so that smaller tasks do not overtake the task forever.
                self.order.push_front(user);
                return None;
            }
            let task = user_queue.waiting.pop_front()?;
            user_queue.running += 1;
            user_queue.bytes += task.bytes;
            #[cfg(test)]
            {
                self.started += 1;
            }
            self.running += 1;
            self.bytes += task.bytes;
            if !user_queue.waiting.is_empty() {
                self.order.push_back(Arc::clone(&user));
            }
            return Some((user, task));
        }
        None
    }

    fn release(&mut self, permit: &WorkerPermit) {
        let WorkerPermit { user, bytes, suspension, .. } = permit;
        if suspension.is_suspended.load(Ordering::Relaxed) {
            self.suspended_bytes -= bytes;
            self.resuming.retain(|(_, other)| !Arc::ptr_eq(other, suspension));
        } else {
            self.running -= 1;
            self.bytes -= bytes;
        }
        let Some(user_queue) = self.users.get_mut(user) else { return };
        user_queue.running -= 1;
        user_queue.bytes -= bytes;
        if user_queue.running == 0 && user_queue.waiting.is_empty() {
            self.users.remove(user);
        }
    }
}

impl Drop for WorkerPermit {
    fn drop(&mut self) {
        if let Some(fair_queue) = self.fair_queue.take() {
            fair_queue.state.lock().release(self);
            fair_queue.grant_next();
        }
    }
}

/// Measurement of the work of a pool.
#[cfg(test)]
mod measurement {
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::time::Duration;

    use parking_lot::Mutex;

    use super::WorkPool;

    /// The scheduler statistics of the threads of a pool.
    #[derive(Default)]
    pub(super) struct Threads(Arc<Mutex<Vec<PathBuf>>>);

    impl Threads {
        /// Returns a function that records the calling thread.
        pub(super) fn recorder(&self) -> impl Fn() + Send + Sync + 'static {
            let threads = Arc::clone(&self.0);
            move || {
                let thread = std::fs::canonicalize("/proc/thread-self").unwrap();
                threads.lock().push(thread.join("schedstat"));
            }
        }
    }

    impl WorkPool {
        /// CPU time of the worker threads.
        pub(crate) fn cpu(&self) -> Duration {
            let threads = self.thread_statistics.0.lock();
            let nanoseconds = threads.iter().map(|thread| {
                let statistics = std::fs::read_to_string(thread).unwrap();
                statistics.split_whitespace().next().unwrap().parse::<u64>().unwrap()
            });
            Duration::from_nanos(nanoseconds.sum())
        }

        /// Number of started tasks.
        pub(crate) fn started_tasks(&self) -> usize {
            self.fair_queue.state.lock().started
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    const LIMITS: PoolLimits = PoolLimits {
        tasks: 2,
        tasks_per_user: 1,
        queue: 3,
        bytes: 100,
        bytes_per_user: 50,
        suspended_bytes: 100,
    };

    fn name(user: &str) -> Arc<str> {
        Arc::from(user)
    }

    #[tokio::test]
    async fn work_runs_on_worker_threads_and_returns_its_output() {
        let pool = WorkPool::start(1, LIMITS).unwrap();
        let work = async { std::thread::current().name().map(str::to_owned) };
        assert_eq!(pool.run(&name("a"), 1, work).await, Ok(Some("worker".to_owned())));
    }

    #[tokio::test]
    async fn task_started_by_work_runs_on_the_main_runtime() {
        let pool = WorkPool::start(1, LIMITS).unwrap();
        let main = std::thread::current().id();
        let work = async { tokio::spawn(async { std::thread::current().id() }).await.unwrap() };
        assert_eq!(pool.run(&name("a"), 1, work).await, Ok(main));
        let sleep = tokio::time::sleep(Duration::from_millis(1));
        assert_eq!(pool.run(&name("a"), 1, sleep).await, Ok(()));
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
    async fn work_of_a_gone_caller_is_dropped_on_the_main_runtime() {
        let pool = WorkPool::start(1, LIMITS).unwrap();
        let (sender, mut has_timers) = mpsc::unbounded_channel();
        let check = TimerCheck(sender);
        let work = async move {
            let _check = check;
            std::future::pending::<()>().await;
        };
        let wait = Duration::from_millis(50);
        assert!(tokio::time::timeout(wait, pool.run(&name("a"), 1, work)).await.is_err());
        assert_eq!(has_timers.recv().await, Some(true));
    }

    #[tokio::test]
    async fn panic_of_work_reaches_caller_and_releases_permit() {
        let pool = Arc::new(WorkPool::start(1, LIMITS).unwrap());
        for _ in 0..3 {
            let pool = Arc::clone(&pool);
            let ran =
                tokio::spawn(async move { pool.run(&name("a"), 1, async { panic!("expected") }).await });
            assert!(ran.await.unwrap_err().is_panic());
        }
        assert_eq!(pool.run(&name("a"), 1, async { 5 }).await, Ok(5));
    }

    #[tokio::test]
    async fn busy_worker_does_not_block_the_main_runtime() {
        let pool = Arc::new(WorkPool::start(1, LIMITS).unwrap());
        let (release, wait) = std::sync::mpsc::channel::<()>();
        let busy = tokio::spawn({
            let pool = Arc::clone(&pool);
            async move { pool.run(&name("a"), 1, async move { wait.recv().is_ok() }).await }
        });
        // The test runs on one thread, so it continues only if the worker is a separate thread.
        tokio::task::yield_now().await;
        tokio::time::sleep(Duration::from_millis(5)).await;
        release.send(()).unwrap();
        assert_eq!(busy.await.unwrap(), Ok(true));
    }

    /// Starts a task that waits for the returned sender, then returns 7.
    fn start_waiting(
        pool: &Arc<WorkPool>,
        user: &'static str,
        bytes: usize,
    ) -> (oneshot::Sender<()>, tokio::task::JoinHandle<Result<i32, PoolError>>) {
        let (answer, wait) = oneshot::channel::<()>();
        let pool = Arc::clone(pool);
        let work = async move { wait.await.map_or(0, |()| 7) };
        (answer, tokio::spawn(async move { pool.run(&name(user), bytes, work).await }))
    }

    #[tokio::test]
    async fn tasks_that_wait_leave_their_places_to_other_users() {
        let pool = Arc::new(WorkPool::start(1, LIMITS).unwrap());
        let (first_answer, first) = start_waiting(&pool, "a", 50);
        let (second_answer, second) = start_waiting(&pool, "b", 50);
        tokio::time::sleep(PATIENCE * 2).await;
        let other = name("c");
        let next = tokio::time::timeout(Duration::from_secs(5), pool.run(&other, 50, async { 5 }));
        assert_eq!(next.await.expect("a place for another user"), Ok(5));
        // The task still counts for its own user.
        let own = Arc::clone(&pool);
        let own = tokio::spawn(async move { own.run(&name("a"), 1, async { 6 }).await });
        tokio::time::sleep(PATIENCE * 2).await;
        assert!(!own.is_finished());
        first_answer.send(()).unwrap();
        assert_eq!((first.await.unwrap(), own.await.unwrap()), (Ok(7), Ok(6)));
        second.abort();
        assert!(second.await.unwrap_err().is_cancelled());
        drop(second_answer);
        tokio::time::sleep(PATIENCE).await;
        let state = pool.fair_queue.state.lock();
        assert_eq!((state.running, state.bytes, state.suspended_bytes, state.users.len()), (0, 0, 0, 0));
    }

    #[tokio::test]
    async fn task_that_continues_waits_for_a_place_before_new_tasks() {
        let pool = Arc::new(WorkPool::start(1, PoolLimits { tasks: 1, ..LIMITS }).unwrap());
        let (answer, resumed) = start_waiting(&pool, "a", 1);
        tokio::time::sleep(PATIENCE * 2).await;
        let place = pool.fair_queue.acquire(&name("b"), 1, 3).await.unwrap();
        let new = waiter(&pool.fair_queue, "c", 1);
        answer.send(()).unwrap();
        tokio::time::sleep(PATIENCE).await;
        assert!(!resumed.is_finished() && !new.is_finished());
        drop(place);
        assert_eq!(resumed.await.unwrap(), Ok(7));
        drop(new.await.unwrap().unwrap());
        assert_eq!(pool.fair_queue.state.lock().running, 0);
    }

    #[tokio::test]
    async fn suspended_tasks_stay_within_their_memory_limit() {
        let pool = Arc::new(WorkPool::start(1, PoolLimits { suspended_bytes: 50, ..LIMITS }).unwrap());
        let tasks = [start_waiting(&pool, "a", 50), start_waiting(&pool, "b", 50)];
        tokio::time::sleep(PATIENCE * 3).await;
        {
            let state = pool.fair_queue.state.lock();
            assert_eq!((state.running, state.bytes, state.suspended_bytes), (1, 50, 50));
        }
        for (answer, task) in tasks {
            answer.send(()).unwrap();
            assert_eq!(task.await.unwrap(), Ok(7));
        }
    }

    #[tokio::test]
    async fn full_user_queue_is_rejected_and_other_users_are_served() {
        let fair_queue = Arc::new(FairQueue::new(LIMITS));
        let running = fair_queue.acquire(&name("a"), 1, 3).await.unwrap();
        let waiting: Vec<_> = (0..3).map(|_| waiter(&fair_queue, "a", 1)).collect();
        settle().await;
        assert_eq!(fair_queue.acquire(&name("a"), 1, 3).await.err(), Some(QueueFull));
        assert!(fair_queue.acquire(&name("b"), 1, 3).await.is_ok());
        drop(running);
        for task in waiting {
            drop(task.await.unwrap().unwrap());
        }
        assert!(fair_queue.state.lock().users.is_empty());
    }

    #[tokio::test]
    async fn users_are_served_round_robin() {
        let fair_queue = Arc::new(FairQueue::new(PoolLimits { tasks: 1, ..LIMITS }));
        let running = fair_queue.acquire(&name("z"), 1, 3).await.unwrap();
        assert_eq!(serve(&fair_queue, running, ["a", "a", "a", "b"]).await, ["a", "b", "a", "a"]);
    }

    #[tokio::test]
    async fn user_with_cancelled_full_queue_has_one_turn_per_round() {
        let fair_queue = Arc::new(FairQueue::new(PoolLimits { tasks: 1, ..LIMITS }));
        let running = fair_queue.acquire(&name("z"), 1, 3).await.unwrap();
        let cancelled: Vec<_> = (0..3).map(|_| waiter(&fair_queue, "a", 1)).collect();
        settle().await;
        for task in cancelled {
            task.abort();
        }
        settle().await;
        assert_eq!(serve(&fair_queue, running, ["a", "a", "a", "b"]).await, ["a", "b", "a", "a"]);
    }

    /// Queues a task for each of `users`, then drops `running`. Returns the users in the order of their grants.
    async fn serve(
        fair_queue: &Arc<FairQueue>,
        running: WorkerPermit,
        users: [&'static str; 4],
    ) -> Vec<&'static str> {
        let (order, mut started_users) = mpsc::unbounded_channel();
        for user in users {
            let (fair_queue, order) = (Arc::clone(fair_queue), order.clone());
            tokio::spawn(async move {
                let permit = fair_queue.acquire(&name(user), 1, 3).await.unwrap();
                order.send(user).unwrap();
                drop(permit);
            });
        }
        settle().await;
        drop((running, order));
        let mut served = Vec::new();
        while let Some(user) = started_users.recv().await {
            served.push(user);
        }
        served
    }

    #[tokio::test]
    async fn task_above_free_memory_waits_and_is_not_overtaken() {
        let fair_queue = Arc::new(FairQueue::new(PoolLimits { tasks: 9, ..LIMITS }));
        let first = fair_queue.acquire(&name("a"), 40, 3).await.unwrap();
        let second = fair_queue.acquire(&name("b"), 40, 3).await.unwrap();
        // The cost counts as 50, the maximum of one user.
        let large = waiter(&fair_queue, "c", 1000);
        settle().await;
        let later = waiter(&fair_queue, "d", 10);
        settle().await;
        assert!(!large.is_finished() && !later.is_finished());
        drop(first);
        drop((large.await.unwrap().unwrap(), later.await.unwrap().unwrap(), second));
    }

    #[tokio::test]
    async fn cancelled_large_task_does_not_block_other_users() {
        let fair_queue = Arc::new(FairQueue::new(PoolLimits { tasks: 9, ..LIMITS }));
        let running = [
            fair_queue.acquire(&name("a"), 40, 3).await.unwrap(),
            fair_queue.acquire(&name("b"), 40, 3).await.unwrap(),
        ];
        let large = waiter(&fair_queue, "c", 50);
        settle().await;
        let small = waiter(&fair_queue, "d", 10);
        settle().await;
        assert!(!small.is_finished());
        large.abort();
        settle().await;
        assert!(small.is_finished(), "the cancellation starts the next task");
        drop(small.await.unwrap().unwrap());
        drop(running);
    }

    #[tokio::test]
    async fn tasks_of_user_stay_within_user_byte_limit() {
        let fair_queue = Arc::new(FairQueue::new(PoolLimits { tasks: 9, tasks_per_user: 9, ..LIMITS }));
        let running = fair_queue.acquire(&name("a"), 30, 3).await.unwrap();
        let waiting = waiter(&fair_queue, "a", 30);
        settle().await;
        assert!(!waiting.is_finished());
        drop(fair_queue.acquire(&name("b"), 30, 3).await.unwrap());
        drop(running);
        drop(waiting.await.unwrap().unwrap());
    }

    #[tokio::test]
    async fn user_without_tasks_is_removed_after_cancellation() {
        let fair_queue = Arc::new(FairQueue::new(PoolLimits { tasks: 1, ..LIMITS }));
        let running = fair_queue.acquire(&name("a"), 1, 3).await.unwrap();
        let cancelled = waiter(&fair_queue, "b", 1);
        settle().await;
        cancelled.abort();
        settle().await;
        drop(running);
        assert!(fair_queue.state.lock().users.is_empty());
    }

    #[tokio::test]
    async fn cancelled_waiter_passes_permit_to_next_task() {
        let fair_queue = Arc::new(FairQueue::new(LIMITS));
        let running = fair_queue.acquire(&name("a"), 1, 3).await.unwrap();
        let cancelled = waiter(&fair_queue, "a", 1);
        let next = waiter(&fair_queue, "a", 1);
        settle().await;
        cancelled.abort();
        settle().await;
        drop(running);
        drop(next.await.unwrap().unwrap());
        let state = fair_queue.state.lock();
        assert_eq!((state.running, state.bytes, state.users.len()), (0, 0, 0));
    }

    fn waiter(
        fair_queue: &Arc<FairQueue>,
        user: &'static str,
        bytes: usize,
    ) -> tokio::task::JoinHandle<Result<WorkerPermit, QueueFull>> {
        let fair_queue = Arc::clone(fair_queue);
        tokio::spawn(async move { fair_queue.acquire(&name(user), bytes, 3).await })
    }

    /// Yields until every task of the test waits.
    async fn settle() {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }
}
