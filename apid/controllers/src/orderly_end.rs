//! The orderly end of a task at the shutdown.

use std::time::Duration;

use tokio::sync::watch;

/// The state of a task that must finish its work in the store before the process ends.
#[derive(Default)]
pub(crate) struct OrderlyEnd {
    requested: watch::Sender<bool>,
    runs: watch::Sender<bool>,
}

impl OrderlyEnd {
    /// Records that the task runs.
    pub(crate) fn begin(&self) {
        self.runs.send_replace(true);
    }

    /// Records that the task has ended.
    pub(crate) fn finish(&self) {
        self.runs.send_replace(false);
    }

    /// Whether the task must end.
    pub(crate) fn is_requested(&self) -> bool {
        *self.requested.borrow()
    }

    /// Waits until the task must end.
    pub(crate) async fn requested(&self) {
        let _ = self.requested.subscribe().wait_for(|requested| *requested).await;
    }

    /// Waits until the task has ended.
    pub(crate) async fn finished(&self) {
        let _ = self.runs.subscribe().wait_for(|runs| !runs).await;
    }

    /// Requests the end of the task and waits for that end. Returns false if the task runs after `limit`.
    pub(crate) async fn request(&self, limit: Duration) -> bool {
        self.requested.send_replace(true);
        tokio::time::timeout(limit, self.finished()).await.is_ok()
    }
}
