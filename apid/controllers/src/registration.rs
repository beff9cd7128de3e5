//! The registration of this server in the endpoints of the API, which the shutdown ends.

use std::time::Duration;

use tokio::sync::watch;

/// The registration of this server; `start_objects::endpoints` keeps it.
#[derive(Default)]
pub struct Registration {
    ends: watch::Sender<bool>,
    runs: watch::Sender<bool>,
}

impl Registration {
    /// Begins the registration. The receiver becomes true at its end.
    pub(crate) fn begin(&self) -> watch::Receiver<bool> {
        self.runs.send_replace(true);
        self.ends.subscribe()
    }

    /// Records that this server is not registered any more.
    pub(crate) fn finish(&self) {
        self.runs.send_replace(false);
    }

    /// Removes this server from the endpoints; at most for a time.
    pub async fn end(&self, limit: Duration) {
        self.ends.send_replace(true);
        let mut runs = self.runs.subscribe();
        if tokio::time::timeout(limit, runs.wait_for(|runs| !runs)).await.is_err() {
            tracing::warn!("this server stays in the endpoints of the API until its key expires");
        }
    }
}
