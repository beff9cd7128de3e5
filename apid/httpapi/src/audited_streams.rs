//! The number of streams that still owe the audit log their last event.

use std::time::Duration;

use tokio::sync::watch;

/// The number of streams whose last event is not written yet.
#[derive(Debug, Default)]
pub(crate) struct AuditedStreams(watch::Sender<usize>);

impl AuditedStreams {
    /// Counts a stream until [`AuditedStreams::end`].
    pub(crate) fn begin(&self) {
        self.0.send_modify(|open| *open += 1);
    }

    /// Records that the last event of a stream is written.
    pub(crate) fn end(&self) {
        self.0.send_modify(|open| *open -= 1);
    }

    /// Waits until each stream has its last event, at most for `timeout`.
    pub(crate) async fn finish(&self, timeout: Duration) {
        let mut open = self.0.subscribe();
        if tokio::time::timeout(timeout, open.wait_for(|open| *open == 0)).await.is_err() {
            let open = *self.0.borrow();
            tracing::warn!(open, "streams have not ended in time; the audit log lacks their last events");
        }
    }
}
