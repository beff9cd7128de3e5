//! Runs a connection and all its spawned futures as one task.
//!
//! # Contract
//!
//! [`run_as_single_task`] combines a main future and all futures given to its [`Spawner`], which is hyper's
//! executor, into one future. The combined future ends with the main future and then drops the others. A panic
//! of a spawned future ends this future alone, as in a separate task.
//!
//! # Why
//!
//! hyper runs each HTTP/2 stream as its own task. A short request between processes then passes through three
//! tasks. The tasks wake each other and also idle threads, which try to steal work that is done before they
//! run. These wake-ups take most of the time of such an exchange. In one task, the thread that the message
//! woke polls all futures one after the other.
//!
//! `docs/decisions/0016-local-stream.md` has the figures. Use [`run_as_single_task`] for connections whose
//! streams compute little. Spawn long work on the runtime.
//!
//! # Invariants
//!
//! INVARIANT (no lost wake): a wake during polling causes a further poll of the futures; a later wake wakes the
//! task. No wake falls in between: see [`SharedWaker`].

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::FutureExt as _;
use futures_util::stream::{FuturesUnordered, Stream};
use futures_util::task::AtomicWaker;
use parking_lot::Mutex;

type SpawnedFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Spawns futures that run in the task of the main future.
#[derive(Clone, Default)]
pub struct Spawner {
    /// Futures that have not been polled yet.
    new_futures: Arc<Mutex<Vec<SpawnedFuture>>>,
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
        // The panic hook has logged the panic. The future is dropped, so nothing sees its unfinished state.
        let future = AssertUnwindSafe(future).catch_unwind().map(drop);
        self.new_futures.lock().push(Box::pin(future));
    }
}

/// Runs the main future, created with a spawner, and all futures that it spawns.
pub async fn run_as_single_task<F: Future>(main: impl FnOnce(Spawner) -> F) -> F::Output {
    let spawner = Spawner::default();
    let main = Box::pin(main(spawner.clone()));
    SingleTask { main, spawner, spawned: FuturesUnordered::new(), shared_waker: Arc::default() }.await
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

impl<F: Future> Future for SingleTask<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let SingleTask { main, spawner, spawned, shared_waker } = &mut *self;
        shared_waker.task.register(context.waker());
        let waker = Waker::from(Arc::clone(shared_waker));
        let mut shared_context = Context::from_waker(&waker);
        shared_waker.is_polling.store(true, Ordering::SeqCst);
        loop {
            // `swap` reads the overwritten value: data written before the wake is visible to the polls that
            // follow.
            shared_waker.is_woken.swap(false, Ordering::SeqCst);
            if let Poll::Ready(output) = main.as_mut().poll(&mut shared_context) {
                // A spawned future that was never polled may own the spawner, which owns the future: break
                // the cycle.
                let unpolled = std::mem::take(&mut *spawner.new_futures.lock());
                drop(unpolled);
                return Poll::Ready(output);
            }
            let new_futures = std::mem::take(&mut *spawner.new_futures.lock());
            spawned.extend(new_futures);
            while let Poll::Ready(Some(())) = Pin::new(&mut *spawned).poll_next(&mut shared_context) {}
            if !tokio::task::coop::has_budget_remaining() {
                // Yields to other tasks of the runtime, then continues.
                shared_waker.is_polling.store(false, Ordering::SeqCst);
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            if shared_waker.is_woken.load(Ordering::SeqCst) || !spawner.new_futures.lock().is_empty() {
                continue;
            }
            shared_waker.is_polling.store(false, Ordering::SeqCst);
            if !shared_waker.is_woken.load(Ordering::SeqCst) {
                return Poll::Pending;
            }
            shared_waker.is_polling.store(true, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::rt::Executor;
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;
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
