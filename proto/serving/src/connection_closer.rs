//! The end of one connection, from outside of its task.

use std::sync::Arc;

use tokio::sync::Notify;

/// Ends a connection at once, with its requests in flight and its unsent bytes.
#[derive(Clone, Debug, Default)]
pub struct ConnectionCloser(Arc<Notify>);

impl ConnectionCloser {
    /// Ends the connection.
    pub fn now(&self) {
        self.0.notify_one();
    }

    /// Returns when the connection has to end.
    pub(crate) async fn closed(&self) {
        self.0.notified().await;
    }
}
