//! A connection and everything it runs, as one task.
//!
//! # Contract
//!
//! [`together`] makes one future of a main one and of all that is given to its [`Spawner`], which is hyper's executor. It
//! ends with the main one; what else runs is dropped then. A panic in one of them is a panic of all.
//!
//! # Why
//!
//! hyper runs each stream of HTTP/2 as a task of its own. Where a process asks another a short question, one message then
//! goes through three tasks, that wake each other and, while they do, wake idle threads to take tasks from them that are
//! done sooner than the thread is there: most of the time of such an exchange. As one task they are polled in turn, by
//! the thread that the message woke.
//!
//! So this is for connections whose streams have little to compute. What takes long is spawned on the runtime.
//!
//! # Invariants
//!
//! INVARIANT (no lost wake): a wake that comes while the futures are polled polls them again; one that comes later wakes
//! the task. None comes in between: see [`Bell`].

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::stream::{FuturesUnordered, Stream};
use futures_util::task::AtomicWaker;
use parking_lot::Mutex;

type Spawned = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs futures beside the main one, in its task.
#[derive(Clone, Default)]
pub struct Spawner {
    /// Not yet polled.
    fresh: Arc<Mutex<Vec<Spawned>>>,
}

impl std::fmt::Debug for Spawner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Spawner").finish_non_exhaustive()
    }
}

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Spawner {
    /// To be called while one of the futures is polled, as hyper does: nothing else would begin with the new one.
    fn execute(&self, future: F) {
        self.fresh.lock().push(Box::pin(future));
    }
}

/// The main future, made with the spawner that it is to use, and all that it spawns.
pub async fn together<F: Future>(main: impl FnOnce(Spawner) -> F) -> F::Output {
    let spawner = Spawner::default();
    let main = Box::pin(main(spawner.clone()));
    Together { main, spawner, spawned: FuturesUnordered::new(), bell: Arc::default() }.await
}

struct Together<F> {
    main: Pin<Box<F>>,
    spawner: Spawner,
    spawned: FuturesUnordered<Spawned>,
    bell: Arc<Bell>,
}

/// What the futures wake.
///
/// Whoever wakes first rings, then looks whether they are being polled; whoever polls them first says that it no longer
/// does, then looks whether it has rung. So one of the two sees the other.
#[derive(Default)]
struct Bell {
    rung: AtomicBool,
    polling: AtomicBool,
    task: AtomicWaker,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.rung.store(true, Ordering::SeqCst);
        if !self.polling.load(Ordering::SeqCst) {
            self.task.wake();
        }
    }
}

impl<F: Future> Future for Together<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Together { main, spawner, spawned, bell } = &mut *self;
        bell.task.register(context.waker());
        let waker = Waker::from(Arc::clone(bell));
        let mut within = Context::from_waker(&waker);
        bell.polling.store(true, Ordering::SeqCst);
        loop {
            // Reads what it overwrites: what whoever rang has written is seen by the polls that follow.
            bell.rung.swap(false, Ordering::SeqCst);
            if let Poll::Ready(output) = main.as_mut().poll(&mut within) {
                // A future that was spawned and not polled may hold the spawner, which holds it.
                let unpolled = std::mem::take(&mut *spawner.fresh.lock());
                drop(unpolled);
                return Poll::Ready(output);
            }
            let fresh = std::mem::take(&mut *spawner.fresh.lock());
            spawned.extend(fresh);
            while let Poll::Ready(Some(())) = Pin::new(&mut *spawned).poll_next(&mut within) {}
            if !tokio::task::coop::has_budget_remaining() {
                // Others of the runtime have their turn; then it goes on.
                bell.polling.store(false, Ordering::SeqCst);
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            if bell.rung.load(Ordering::SeqCst) || !spawner.fresh.lock().is_empty() {
                continue;
            }
            bell.polling.store(false, Ordering::SeqCst);
            if !bell.rung.load(Ordering::SeqCst) {
                return Poll::Pending;
            }
            bell.polling.store(true, Ordering::SeqCst);
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
    async fn what_is_spawned_runs_until_the_main_future_ends() {
        let (done, mut told) = mpsc::unbounded_channel();
        let dropped = done.clone();
        let output = together(|spawner| async move {
            let again = spawner.clone();
            spawner.execute(async move {
                tokio::task::yield_now().await;
                again.execute(async move { done.send("second").unwrap() });
            });
            spawner.execute(async move {
                let _held = dropped;
                std::future::pending::<()>().await;
            });
            let first = told.recv().await;
            (first, told)
        });
        let (first, mut told) = output.await;
        assert_eq!(first, Some("second"));
        assert_eq!(told.recv().await, None, "what still ran is gone");
    }

    /// Messages through a chain of futures of one task, fed by other threads: each wake must lead to a poll.
    #[tokio::test(flavor = "multi_thread", worker_threads = 3)]
    async fn no_wake_is_lost() {
        const MESSAGES: usize = 50_000;
        let (send, mut inbox) = mpsc::channel::<usize>(1);
        let (forward, mut middle) = mpsc::channel::<usize>(1);
        let (back, mut answers) = mpsc::channel::<usize>(1);
        let task = tokio::spawn(together(|spawner| async move {
            spawner.execute(async move {
                while let Some(message) = middle.recv().await {
                    back.send(message + 1).await.unwrap();
                }
            });
            while let Some(message) = inbox.recv().await {
                forward.send(message).await.unwrap();
            }
            drop(forward);
            // The other one has until its last answer is taken.
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
        tokio::time::timeout(Duration::from_secs(60), all).await.expect("each message leads to an answer");
        feeding.await.unwrap();
        task.abort();
    }

    /// A future that is always ready to go on leaves the thread to others.
    #[tokio::test]
    async fn whoever_never_waits_lets_others_run() {
        let turns = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&turns);
        let busy = tokio::spawn(together(|_| async move {
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
