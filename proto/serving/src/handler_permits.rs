//! Limit on the request handlers that one connection starts at a time.
//!
//! A handler does most of its work in its first poll, on an I/O thread: it parses the URI, authenticates,
//! authorizes, and often responds. Without a limit, a client that sends 100 requests at once puts 100 handlers
//! into the run queue. The requests of all other connections then wait behind them.
//!
//! # Contract
//!
//! The first poll of a handler needs a permit. A connection has as many permits as the runtime has I/O threads. If
//! no permit is free when a request arrives, its handler waits for one and then yields, so that handlers of other
//! connections run first. Waiting handlers get permits in the order in which they began to wait. Later polls need
//! no permit. A handler that is dropped while it waits is never polled.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Permits of one connection to start request handlers.
#[derive(Debug)]
pub(crate) struct HandlerPermits(Arc<Semaphore>);

impl HandlerPermits {
    /// Creates a permit for each I/O thread of the current runtime.
    pub(crate) fn for_runtime() -> Self {
        HandlerPermits::new(Handle::current().metrics().num_workers())
    }

    fn new(count: usize) -> Self {
        HandlerPermits(Arc::new(Semaphore::new(count)))
    }

    /// Acquires a permit for the handler of a request that has just arrived, if one is free.
    pub(crate) fn try_acquire(&self) -> PermitRequest {
        match Arc::clone(&self.0).try_acquire_owned() {
            Ok(permit) => PermitRequest::Ready(HandlerPermit { _permit: Some(permit) }),
            Err(_) => PermitRequest::Pending(Arc::clone(&self.0)),
        }
    }
}

/// Result of [`HandlerPermits::try_acquire`].
#[derive(Debug)]
pub(crate) enum PermitRequest {
    /// The handler has a permit.
    Ready(HandlerPermit),
    /// The handler has to wait for a permit of these.
    Pending(Arc<Semaphore>),
}

impl PermitRequest {
    /// Waits for the permit; a handler that has to wait also yields to the other tasks of the runtime.
    pub(crate) async fn wait(self) -> HandlerPermit {
        match self {
            PermitRequest::Ready(permit) => permit,
            PermitRequest::Pending(permits) => {
                // The semaphore is never closed, so there is always a permit.
                let permit = permits.acquire_owned().await.ok();
                tokio::task::yield_now().await;
                HandlerPermit { _permit: permit }
            }
        }
    }
}

/// Permit for the first poll of one handler.
#[derive(Debug)]
pub(crate) struct HandlerPermit {
    _permit: Option<OwnedSemaphorePermit>,
}

impl HandlerPermit {
    /// Runs the handler. The first poll of the handler releases the permit.
    pub(crate) async fn run<F: Future>(self, mut handler: Pin<&mut F>) -> F::Output {
        let mut permit = Some(self);
        poll_fn(|context| {
            let result = handler.as_mut().poll(context);
            permit = None;
            result
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::pin::pin;

    use parking_lot::Mutex;
    use tokio::task::JoinSet;

    use super::*;

    /// Spawns handlers that record their names, in the order of `names`, with permits of one connection.
    fn spawn_handlers(
        tasks: &mut JoinSet<()>,
        permits: &HandlerPermits,
        names: &[&'static str],
        executed_names: &Arc<Mutex<Vec<&'static str>>>,
    ) {
        for &name in names {
            let (request, executed_names) = (permits.try_acquire(), Arc::clone(executed_names));
            tasks.spawn(async move {
                let permit = request.wait().await;
                permit.run(pin!(async { executed_names.lock().push(name) })).await;
            });
        }
    }

    #[tokio::test]
    async fn handlers_of_other_connections_run_before_waiting_handlers() {
        let (busy, other) = (HandlerPermits::new(1), HandlerPermits::new(1));
        let executed_names = Arc::default();
        let mut tasks = JoinSet::new();
        spawn_handlers(&mut tasks, &busy, &["busy 1", "busy 2", "busy 3"], &executed_names);
        spawn_handlers(&mut tasks, &other, &["other"], &executed_names);
        tasks.join_all().await;
        assert_eq!(*executed_names.lock(), ["busy 1", "other", "busy 2", "busy 3"]);
    }

    #[tokio::test]
    async fn permit_is_released_after_first_poll() {
        let permits = HandlerPermits::new(1);
        let permit = permits.try_acquire().wait().await;
        let mut tasks = JoinSet::new();
        tasks.spawn(async { permit.run(pin!(pending::<()>())).await });
        tokio::task::yield_now().await;
        assert!(matches!(permits.try_acquire(), PermitRequest::Ready(_)));
    }

    #[tokio::test]
    async fn handler_dropped_while_waiting_is_not_polled_and_holds_no_permit() {
        let permits = HandlerPermits::new(1);
        let only_permit = permits.try_acquire();
        let executed_names = Arc::<Mutex<Vec<_>>>::default();
        let mut tasks = JoinSet::new();
        spawn_handlers(&mut tasks, &permits, &["dropped"], &executed_names);
        tokio::task::yield_now().await;
        tasks.shutdown().await;
        drop(only_permit);
        assert!(matches!(permits.try_acquire(), PermitRequest::Ready(_)));
        assert!(executed_names.lock().is_empty());
    }
}
