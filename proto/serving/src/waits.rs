//! Waits of a request for other processes, such as webhooks and authd.
//!
//! # Contract
//!
//! A request that runs within [`with_slot`] gives its slot back while it waits within [`wait_for_process`]. The other
//! process can depend on a request that waits for the same slot, such as the backend of a webhook that writes objects.
//! A request without a slot only waits.

use std::sync::Arc;

/// A slot that a request gives back during its waits. Waits of one request can overlap.
pub trait HeldSlot: Send + Sync {
    /// A wait begins.
    fn begin_wait(&self);
    /// A wait ends.
    fn end_wait(&self);
}

tokio::task_local! {
    static SLOT: Arc<dyn HeldSlot>;
}

/// Runs the work of a request that has a slot.
pub async fn with_slot<F: Future>(slot: Arc<dyn HeldSlot>, work: F) -> F::Output {
    SLOT.scope(slot, work).await
}

/// Waits for another process.
pub async fn wait_for_process<F: Future>(wait: F) -> F::Output {
    let _wait = SLOT.try_with(|slot| RunningWait::begin(Arc::clone(slot))).ok();
    wait.await
}

/// A wait; dropping the value ends it.
struct RunningWait(Arc<dyn HeldSlot>);

impl RunningWait {
    fn begin(slot: Arc<dyn HeldSlot>) -> Self {
        slot.begin_wait();
        RunningWait(slot)
    }
}

impl Drop for RunningWait {
    fn drop(&mut self) {
        self.0.end_wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicI64, Ordering};

    #[derive(Default)]
    struct CountingSlot(AtomicI64);

    impl HeldSlot for CountingSlot {
        fn begin_wait(&self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }

        fn end_wait(&self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    #[tokio::test]
    async fn slot_is_given_back_during_waits_and_after_a_cancelled_one() {
        let slot = Arc::new(CountingSlot::default());
        let waits = || slot.0.load(Ordering::SeqCst);
        with_slot(Arc::clone(&slot) as Arc<dyn HeldSlot>, async {
            assert_eq!(waits(), 0);
            let wait = wait_for_process(async { assert_eq!(waits(), 1) });
            wait.await;
            assert_eq!(waits(), 0);
            let cancelled = wait_for_process(std::future::pending::<()>());
            let cancelled = tokio::time::timeout(std::time::Duration::from_millis(1), cancelled);
            assert!(cancelled.await.is_err());
            assert_eq!(waits(), 0);
        })
        .await;
        wait_for_process(async { assert_eq!(waits(), 0, "no slot") }).await;
    }
}
