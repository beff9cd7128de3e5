//! Runs a connection and all its spawned futures as one task.
//!
//! # Contract
//!
//! [`run_as_single_task`] combines a main future and all futures given to its [`Spawner`], which is hyper's
//! executor, into one future. When the main future has ended, the combined future drops the others and ends. A
//! panic of a spawned future ends this future alone, as in a separate task.
//!
//! The task polls its futures in turns. A turn ends when no future can continue, when the futures have used up tokio's
//! budget of the task, or at the first return of a poll after [`MAX_TURN`]. The other tasks of the runtime run before
//! the next turn. A turn has passes: first the spawned futures that can continue are polled, in the order of their
//! wakes, then the main future. The budget does not limit the main future if the spawned futures have used it up, so
//! the main future must end its reads with the turn ([`crate::fair_stream`]).
//!
//! # Why
//!
//! hyper runs each HTTP/2 stream as its own task.
//!
//! - Fairness (`docs/performance.md`): 100 requests at once on each of 16 connections put 1,600 tasks into the run
//!   queue. A request of another connection waits for them three times: when it is read, when its handler runs, and
//!   when its response is written. With one task for each connection the queue is short, and a request without a
//!   wait passes through it once.
//! - Cost (`docs/decisions/0016-local-stream.md`): a short request passes through three tasks of hyper. They wake each
//!   other and idle threads, which try to steal work that is done before they run. In one task, the thread that the
//!   message woke polls all futures one after the other.
//!
//! The futures of a connection never run at the same time. Spawn long work on the runtime.
//!
//! # Invariants
//!
//! INVARIANT (no lost wake): a wake during polling causes a further poll of the futures; a later wake wakes the
//! task. No wake falls in between: see [`SharedWaker`].

use std::future::{Future, poll_fn};
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::stream::{FuturesUnordered, Stream};
use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::task::coop;
use tokio::time::Instant;

/// Duration of a turn after which the task lets other tasks run.
pub(crate) const MAX_TURN: Duration = Duration::from_micros(100);

/// A spawned future, which the task polls only during a turn.
struct SpawnedFuture {
    future: Pin<Box<dyn Future<Output = ()> + Send>>,
    turn: Arc<Turn>,
}

impl Future for SpawnedFuture {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.turn.is_over() {
            self.turn.postpone(context);
            return Poll::Pending;
        }
        self.future.as_mut().poll(context)
    }
}

/// The current turn of a task.
pub(crate) struct Turn {
    start: Mutex<Instant>,
    /// Wakers of the futures that the next pass polls, in order. None when the task has ended.
    ///
    /// A future that woke itself would end the pass of [`FuturesUnordered`] and get behind futures that were woken
    /// later.
    postponed_wakers: Mutex<Option<Vec<Waker>>>,
}

impl Turn {
    /// Begins the first turn.
    pub(crate) fn begin() -> Self {
        Turn { start: Mutex::new(Instant::now()), postponed_wakers: Mutex::new(Some(Vec::new())) }
    }

    /// Begins the next turn.
    pub(crate) fn begin_next(&self) {
        *self.start.lock() = Instant::now();
    }

    /// Returns the start of the turn.
    pub(crate) fn start(&self) -> Instant {
        *self.start.lock()
    }

    /// Whether the task lets other tasks run before it continues.
    pub(crate) fn is_over(&self) -> bool {
        self.start().elapsed() >= MAX_TURN || !coop::has_budget_remaining()
    }

    /// Wakes the calling future for the next pass, or at once if the task has ended.
    pub(crate) fn postpone(&self, context: &Context<'_>) {
        match &mut *self.postponed_wakers.lock() {
            Some(wakers) => wakers.push(context.waker().clone()),
            None => context.waker().wake_by_ref(),
        }
    }

    /// Waits for the next pass.
    pub(crate) async fn wait_for_next_pass(&self) {
        let mut is_postponed = false;
        let wait = poll_fn(|context| {
            if is_postponed {
                return Poll::Ready(());
            }
            is_postponed = true;
            self.postpone(context);
            Poll::Pending
        });
        wait.await;
    }

    fn wake_postponed_futures(&self) {
        let wakers = self.postponed_wakers.lock().as_mut().map(std::mem::take);
        wakers.into_iter().flatten().for_each(Waker::wake);
    }

    /// Whether the task has ended, so that no further turn begins.
    pub(crate) fn is_last(&self) -> bool {
        self.postponed_wakers.lock().is_none()
    }

    /// Ends the task. Postponed streams that outlive it continue without turns.
    fn end_task(&self) {
        let wakers = self.postponed_wakers.lock().take();
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}

/// Spawns futures that run in the task of the main future.
#[derive(Clone)]
pub struct Spawner {
    /// Futures that have not been polled yet.
    new_futures: Arc<Mutex<Vec<SpawnedFuture>>>,
    turn: Arc<Turn>,
}

impl Spawner {
    /// Returns the turn of the task, for streams that the main future reads.
    pub(crate) fn turn(&self) -> Arc<Turn> {
        Arc::clone(&self.turn)
    }
}

impl std::fmt::Debug for Spawner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Spawner").finish_non_exhaustive()
    }
}

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Spawner {
    /// Adds a future to the task.
    ///
    /// Call this only while a future of the task is polled, as hyper does: otherwise nothing polls the new
    /// future.
    fn execute(&self, future: F) {
        // `map` drops the future within `catch_unwind`: its destructors can panic, too.
        let future = AssertUnwindSafe(future.map(|()| ()));
        // The panic hook has logged the panic. The future is dropped, so nothing sees its unfinished state.
        let future = future.catch_unwind().map(drop);
        let spawned = SpawnedFuture { future: Box::pin(future), turn: Arc::clone(&self.turn) };
        self.new_futures.lock().push(spawned);
    }
}

/// Runs the main future, created with a spawner, and all futures that it spawns.
pub async fn run_as_single_task<F: Future>(main: impl FnOnce(Spawner) -> F) -> F::Output {
    let spawner = Spawner { new_futures: Arc::default(), turn: Arc::new(Turn::begin()) };
    let main = Box::pin(main(spawner.clone()));
    let spawned = FuturesUnordered::new();
    let mut task = SingleTask { main, spawner, spawned, shared_waker: Arc::default() };
    let output = poll_fn(|context| task.poll(context)).await;
    task.drop_spawned_futures().await;
    output
}

struct SingleTask<F> {
    main: Pin<Box<F>>,
    spawner: Spawner,
    spawned: FuturesUnordered<SpawnedFuture>,
    shared_waker: Arc<SharedWaker>,
}

/// Waker of the combined futures.
///
/// A waker first sets `is_woken`, then checks `is_polling`. The polling task first clears `is_polling`, then
/// checks `is_woken`. So the waker or the polling task sees the change of the other, and no wake is lost.
#[derive(Default)]
struct SharedWaker {
    is_woken: AtomicBool,
    is_polling: AtomicBool,
    task: AtomicWaker,
}

impl Wake for SharedWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_woken.store(true, Ordering::SeqCst);
        if !self.is_polling.load(Ordering::SeqCst) {
            self.task.wake();
        }
    }
}

impl<F: Future> SingleTask<F> {
    /// Takes one turn. The result is ready when the main future has ended.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<F::Output> {
        let SingleTask { main, spawner, spawned, shared_waker } = self;
        shared_waker.task.register(context.waker());
        let waker = Waker::from(Arc::clone(shared_waker));
        let mut shared_context = Context::from_waker(&waker);
        shared_waker.is_polling.store(true, Ordering::SeqCst);
        let turn = &spawner.turn;
        turn.begin_next();
        loop {
            // `swap` reads the overwritten value: data written before the wake is visible to the polls that
            // follow.
            shared_waker.is_woken.swap(false, Ordering::SeqCst);
            // The check saves the poll for an HTTP/1.1 connection, which spawns no futures.
            while !spawned.is_empty() && Pin::new(&mut *spawned).poll_next(&mut shared_context).is_ready() {}
            let main_poll = if coop::has_budget_remaining() {
                main.as_mut().poll(&mut shared_context)
            } else {
                // The main future makes progress although the spawned futures have used up the budget.
                pin!(coop::unconstrained(main.as_mut())).poll(&mut shared_context)
            };
            if let Poll::Ready(output) = main_poll {
                return Poll::Ready(output);
            }
            turn.wake_postponed_futures();
            let new_futures = std::mem::take(&mut *spawner.new_futures.lock());
            let has_woken_futures = !new_futures.is_empty() || shared_waker.is_woken.load(Ordering::SeqCst);
            spawned.extend(new_futures);
            if has_woken_futures && !turn.is_over() {
                continue;
            }
            shared_waker.is_polling.store(false, Ordering::SeqCst);
            if has_woken_futures || shared_waker.is_woken.load(Ordering::SeqCst) {
                // The task continues after other tasks of the runtime.
                context.waker().wake_by_ref();
            }
            return Poll::Pending;
        }
    }

    /// Drops the spawned futures, in turns: a handler of a broken connection may have much to release.
    async fn drop_spawned_futures(mut self) {
        let unpolled = std::mem::take(&mut *self.spawner.new_futures.lock());
        let turn = self.spawner.turn();
        turn.begin_next();
        for future in std::mem::take(&mut self.spawned).into_iter().chain(unpolled) {
            drop(future);
            if turn.is_over() {
                tokio::task::yield_now().await;
                turn.begin_next();
            }
        }
    }
}

impl<F> Drop for SingleTask<F> {
    fn drop(&mut self) {
        // A future that was never polled may own the spawner, which owns the future. Taking it breaks the cycle.
        drop(std::mem::take(&mut *self.spawner.new_futures.lock()));
        self.spawner.turn.end_task();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::rt::Executor;
    use std::sync::atomic::AtomicUsize;
    use tokio::sync::mpsc;

    #[tokio::test]
    async fn panic_of_spawned_future_ends_it_alone() {
        let (done, mut finished) = mpsc::unbounded_channel();
        let output = run_as_single_task(|spawner| async move {
            spawner.execute(async { panic!("one stream") });
            spawner.execute(async move { done.send("the other stream").unwrap() });
            finished.recv().await
        });
        assert_eq!(output.await, Some("the other stream"));
    }

    #[tokio::test]
    async fn spawned_futures_run_until_main_future_ends() {
        let (done, mut finished) = mpsc::unbounded_channel();
        let dropped = done.clone();
        let output = run_as_single_task(|spawner| async move {
            let again = spawner.clone();
            spawner.execute(async move {
                tokio::task::yield_now().await;
                again.execute(async move { done.send("second").unwrap() });
            });
            spawner.execute(async move {
                let _held = dropped;
                std::future::pending::<()>().await;
            });
            let first = finished.recv().await;
            (first, finished)
        });
        let (first, mut finished) = output.await;
        assert_eq!(first, Some("second"));
        assert_eq!(finished.recv().await, None, "running futures are dropped");
    }

    /// Passes messages through a chain of futures of one task, fed by other threads: each wake must lead to a
    /// poll.
    #[tokio::test(flavor = "multi_thread", worker_threads = 3)]
    async fn wake_from_another_thread_is_never_lost() {
        const MESSAGES: usize = 50_000;
        let (send, mut inbox) = mpsc::channel::<usize>(1);
        let (forward, mut middle) = mpsc::channel::<usize>(1);
        let (back, mut answers) = mpsc::channel::<usize>(1);
        let task = tokio::spawn(run_as_single_task(|spawner| async move {
            spawner.execute(async move {
                while let Some(message) = middle.recv().await {
                    back.send(message + 1).await.unwrap();
                }
            });
            while let Some(message) = inbox.recv().await {
                forward.send(message).await.unwrap();
            }
            drop(forward);
            // The main future stays, so that the spawned future can pass on the last messages.
            std::future::pending::<()>().await;
        }));
        let feeding = tokio::spawn(async move {
            for message in 0..MESSAGES {
                send.send(message).await.unwrap();
            }
        });
        let all = async {
            for message in 0..MESSAGES {
                assert_eq!(answers.recv().await, Some(message + 1));
            }
        };
        tokio::time::timeout(Duration::from_secs(60), all).await.expect("each message leads to a response");
        feeding.await.unwrap();
        task.abort();
    }

    /// Events in their order.
    type Events = Arc<Mutex<Vec<&'static str>>>;

    /// A value whose drop takes a whole turn.
    struct SlowDrop(Events);

    impl Drop for SlowDrop {
        fn drop(&mut self) {
            std::thread::sleep(MAX_TURN);
            self.0.lock().push("stream");
        }
    }

    /// Runs a connection with two streams beside another task, which records an event once. The connection ends
    /// after `main_polls` further polls.
    async fn run_beside_other_task(
        main_polls: usize,
        create_stream: impl Fn(SlowDrop) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + 'static,
    ) -> Events {
        let events = Events::default();
        let (stream_events, other_events) = (Arc::clone(&events), Arc::clone(&events));
        let task = tokio::spawn(run_as_single_task(move |spawner| async move {
            for _ in 0..2 {
                spawner.execute(create_stream(SlowDrop(Arc::clone(&stream_events))));
            }
            for _ in 0..main_polls {
                tokio::task::yield_now().await;
            }
        }));
        let other = tokio::spawn(async move { other_events.lock().push("other task") });
        other.await.unwrap();
        task.await.unwrap();
        events
    }

    #[tokio::test]
    async fn long_streams_yield_to_other_tasks() {
        let events = run_beside_other_task(4, |value| Box::pin(async { drop(value) })).await;
        assert_ne!(events.lock().last(), Some(&"other task"));
    }

    #[tokio::test]
    async fn long_polls_of_waiting_streams_yield_to_other_tasks() {
        let events = run_beside_other_task(4, |value| {
            Box::pin(async {
                drop(value);
                tokio::task::yield_now().await;
            })
        });
        assert_ne!(events.await.lock().last(), Some(&"other task"));
    }

    #[tokio::test]
    async fn long_drops_of_streams_yield_to_other_tasks() {
        let events = run_beside_other_task(1, |value| {
            Box::pin(async {
                let _value = value;
                std::future::pending().await
            })
        });
        assert_ne!(events.await.lock().last(), Some(&"other task"));
    }

    #[tokio::test]
    async fn stream_that_uses_up_the_budget_continues() {
        let (send, mut receive) = mpsc::unbounded_channel();
        (0..1_000).for_each(|message| send.send(message).unwrap());
        drop(send);
        let (done_sender, done_receiver) = tokio::sync::oneshot::channel();
        let task = run_as_single_task(|spawner| async move {
            spawner.execute(async move {
                while receive.recv().await.is_some() {}
                done_sender.send(()).unwrap();
            });
            tokio::select! { received = done_receiver => received }
        });
        let result = tokio::time::timeout(Duration::from_secs(30), tokio::spawn(task)).await;
        assert!(result.expect("no wake is lost").unwrap().is_ok());
    }

    #[tokio::test]
    async fn main_future_continues_beside_stream_that_uses_up_the_budget() {
        let task = tokio::spawn(run_as_single_task(|spawner| async move {
            spawner.execute(poll_fn(|context| {
                while coop::has_budget_remaining() {
                    let _ = pin!(coop::consume_budget()).poll(context);
                }
                context.waker().wake_by_ref();
                Poll::Pending
            }));
            for _ in 0..10 {
                coop::consume_budget().await;
                tokio::task::yield_now().await;
            }
        }));
        tokio::time::timeout(Duration::from_secs(30), task).await.expect("the main future ends").unwrap();
    }

    /// Returns a future of several polls that each take a whole turn.
    async fn fill_turns(count: usize) {
        for _ in 0..count {
            std::thread::sleep(MAX_TURN);
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn short_streams_run_while_other_streams_fill_each_turn() {
        let events = Events::default();
        let event_log = Arc::clone(&events);
        let record = move |name| {
            let events = Arc::clone(&event_log);
            async move { events.lock().push(name) }
        };
        run_as_single_task(|spawner| async move {
            let (first, last) = (record("long"), record("long"));
            spawner.execute(async { (fill_turns(20).await, first.await).1 });
            spawner.execute(record("short"));
            spawner.execute(record("short"));
            spawner.execute(async { (fill_turns(20).await, last.await).1 });
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        assert_eq!(*events.lock(), ["short", "short", "long", "long"]);
    }

    #[tokio::test]
    async fn panic_of_destructor_ends_its_future_alone() {
        struct PanicOnDrop;
        impl Drop for PanicOnDrop {
            fn drop(&mut self) {
                panic!("a destructor");
            }
        }
        let output = run_as_single_task(|spawner| async move {
            spawner.execute(std::future::poll_fn({
                let panics = PanicOnDrop;
                move |_| {
                    let _ = &panics;
                    Poll::Ready(())
                }
            }));
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
            "the main future continues"
        });
        assert_eq!(output.await, "the main future continues");
    }

    #[tokio::test]
    async fn futures_that_were_never_polled_are_dropped() {
        let value = Arc::new(());
        let weak_value = Arc::downgrade(&value);
        run_as_single_task(|spawner| async move {
            let cloned_spawner = spawner.clone();
            spawner.execute(async move {
                let _captures = (cloned_spawner, value);
            });
        })
        .await;
        assert!(weak_value.upgrade().is_none());
    }

    /// A future that is always ready yields to other tasks.
    #[tokio::test]
    async fn always_ready_future_yields_to_other_tasks() {
        let turns = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&turns);
        let busy = tokio::spawn(run_as_single_task(|_| async move {
            let (send, mut receive) = mpsc::channel(1);
            loop {
                send.send(()).await.unwrap();
                receive.recv().await.unwrap();
                counted.fetch_add(1, Ordering::Relaxed);
            }
        }));
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        busy.abort();
        assert!(busy.await.unwrap_err().is_cancelled());
        assert!(turns.load(Ordering::Relaxed) > 1);
    }
}
