//! Limit on the request handlers that one connection polls at a time.
//!
//! Handlers authenticate, authorize and often respond on the I/O threads. Without a limit, a client that sends 100
//! requests at once, or the bodies of 100 requests, puts 100 handlers into the run queue. The requests of all
//! other connections then wait behind them.
//!
//! # Contract
//!
//! A handler is polled only with a permit, and releases the permit after the poll. A connection has as many permits
//! as the runtime has I/O threads. A handler for which no permit is free when its request arrives waits for one
//! and then yields, so that handlers of other connections run first. So does a handler that is woken while its
//! connection has more handlers than permits. Waiting handlers get permits in the order in which they began to
//! wait. A handler that is dropped while it waits for its first poll does no work.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Permits of one connection to poll request handlers.
///
/// Each unfinished handler has one clone.
#[derive(Clone, Debug)]
pub(crate) struct HandlerPermits(Arc<Permits>);

#[derive(Debug)]
struct Permits {
    free: Arc<Semaphore>,
    count: usize,
}

impl HandlerPermits {
    /// Creates a permit for each I/O thread of the current runtime.
    pub(crate) fn for_runtime() -> Self {
        HandlerPermits::new(Handle::current().metrics().num_workers())
    }

    fn new(count: usize) -> Self {
        HandlerPermits(Arc::new(Permits { free: Arc::new(Semaphore::new(count)), count }))
    }

    /// Begins a handler for a request that has just arrived, with a permit if one is free.
    pub(crate) fn begin(&self) -> PermittedHandler {
        PermittedHandler { permits: self.clone(), permit: self.try_acquire() }
    }

    fn try_acquire(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0.free).try_acquire_owned().ok()
    }

    /// Waits for a permit and yields. The semaphore is never closed, so the result is never None.
    async fn acquire_and_yield(&self) -> Option<OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.0.free).acquire_owned().await.ok();
        yield_now().await;
        permit
    }

    /// Whether the connection has more handlers than permits.
    fn is_busy(&self) -> bool {
        // One reference is that of the connection.
        Arc::strong_count(&self.0) - 1 > self.0.count
    }
}

/// Handler of a request.
#[derive(Debug)]
pub(crate) struct PermittedHandler {
    permits: HandlerPermits,
    /// Permit for the first poll; None if none was free.
    permit: Option<OwnedSemaphorePermit>,
}

impl PermittedHandler {
    /// Waits for the permit of the first poll. The handler begins no work before.
    pub(crate) async fn wait(&mut self) {
        if self.permit.is_none() {
            self.permit = self.permits.acquire_and_yield().await;
        }
    }

    /// Runs the handler; each poll has a permit.
    pub(crate) async fn run<F: Future>(mut self, mut handler: Pin<&mut F>) -> F::Output {
        loop {
            self.wait().await;
            if let Poll::Ready(output) = poll_once(handler.as_mut()).await {
                return output;
            }
            self.permit = None;
            wait_for_wake().await;
            if !self.permits.is_busy() {
                self.permit = self.permits.try_acquire();
            }
        }
    }
}

/// Polls a future, which wakes the calling task if it is pending.
async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await
}

/// Returns when the task is woken.
async fn wait_for_wake() {
    let mut is_woken = false;
    poll_fn(|_| match std::mem::replace(&mut is_woken, true) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await
}

/// Moves the task to the end of the run queue.
///
/// `tokio::task::yield_now` would also wait until its worker thread is idle or polls the I/O driver.
async fn yield_now() {
    let mut has_yielded = false;
    poll_fn(|context| match std::mem::replace(&mut has_yielded, true) {
        true => Poll::Ready(()),
        false => {
            context.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::pin::pin;

    use parking_lot::Mutex;
    use tokio::sync::watch;
    use tokio::task::JoinSet;

    use super::*;

    /// Names of handlers in the order of their polls.
    type PolledNames = Arc<Mutex<Vec<&'static str>>>;

    /// Spawns handlers of one connection, in the order of `names`. Each waits for `body` and records its name before
    /// and after.
    fn spawn_handlers(
        tasks: &mut JoinSet<()>,
        permits: &HandlerPermits,
        names: &[&'static str],
        body: &watch::Sender<bool>,
        polled_names: &PolledNames,
    ) {
        for &name in names {
            let (mut permitted, polled_names) = (permits.begin(), Arc::clone(polled_names));
            let mut body = body.subscribe();
            tasks.spawn(async move {
                permitted.wait().await;
                let handler = async {
                    polled_names.lock().push(name);
                    if body.wait_for(|is_complete| *is_complete).await.is_ok() {
                        polled_names.lock().push(name);
                    }
                };
                permitted.run(pin!(handler)).await;
            });
        }
    }

    #[tokio::test]
    async fn handlers_of_other_connections_run_before_waiting_handlers() {
        let (busy, other) = (HandlerPermits::new(1), HandlerPermits::new(1));
        let (body, polled_names) = (watch::Sender::new(false), PolledNames::default());
        let mut tasks = JoinSet::new();
        spawn_handlers(&mut tasks, &busy, &["busy 1", "busy 2", "busy 3"], &body, &polled_names);
        spawn_handlers(&mut tasks, &other, &["other"], &body, &polled_names);
        while polled_names.lock().len() < 4 {
            tokio::task::yield_now().await;
        }
        assert_eq!(std::mem::take(&mut *polled_names.lock()), ["busy 1", "other", "busy 2", "busy 3"]);
        // One event wakes all handlers.
        body.send_replace(true);
        tasks.join_all().await;
        assert_eq!(polled_names.lock()[0], "other");
        assert_eq!(polled_names.lock().len(), 4);
    }

    #[test]
    fn connection_is_busy_with_more_handlers_than_permits() {
        let permits = HandlerPermits::new(2);
        let _handlers = [permits.begin(), permits.begin()];
        assert!(!permits.is_busy());
        let _third = permits.begin();
        assert!(permits.is_busy());
    }

    #[tokio::test]
    async fn pending_handler_has_no_permit() {
        let permits = HandlerPermits::new(1);
        let permitted = permits.begin();
        assert!(permits.begin().permit.is_none());
        let mut tasks = JoinSet::new();
        tasks.spawn(async { permitted.run(pin!(pending::<()>())).await });
        tokio::task::yield_now().await;
        assert!(permits.begin().permit.is_some());
    }

    #[tokio::test]
    async fn handler_dropped_while_waiting_is_not_polled_and_has_no_permit() {
        let permits = HandlerPermits::new(1);
        let first = permits.begin();
        let polled_names = PolledNames::default();
        let mut tasks = JoinSet::new();
        spawn_handlers(&mut tasks, &permits, &["dropped"], &watch::Sender::new(true), &polled_names);
        tokio::task::yield_now().await;
        tasks.shutdown().await;
        drop(first);
        assert!(permits.begin().permit.is_some());
        assert!(polled_names.lock().is_empty());
    }
}
