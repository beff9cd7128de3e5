//! Limit of requests that a client cancels on one HTTP/2 connection.
//!
//! A client cancels a request by a reset of its stream. The server has then parsed the request and has often
//! begun its work, so a client that opens and resets streams without pause would keep the I/O threads busy
//! (CVE-2023-44487). h2 itself counts only streams that are reset before the server sees them.
//!
//! # Contract
//!
//! A request counts as cancelled if its handler is dropped before it returns a response. A stream that is reset
//! after the response head, such as a watch, does not count. A connection with more than [`MAX_CANCELLED`]
//! cancelled requests within [`WINDOW`] takes no new streams; its open streams continue. The client can connect
//! again.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Maximum number of cancelled requests of a connection within [`WINDOW`].
const MAX_CANCELLED: u32 = 50;
/// Length of the interval in which cancelled requests are counted.
const WINDOW: Duration = Duration::from_secs(1);

/// Counter of the cancelled requests of a connection.
#[derive(Debug, Default)]
pub(crate) struct Cancellations {
    window: Mutex<Option<Window>>,
    exceeded: Notify,
}

/// The current interval and its number of cancelled requests.
#[derive(Debug)]
struct Window {
    begin: Instant,
    count: u32,
}

impl Cancellations {
    /// Begins a request. The request counts as cancelled if the result is dropped before
    /// [`RunningRequest::complete`].
    pub(crate) fn begin_request(&self) -> RunningRequest<'_> {
        RunningRequest { cancellations: self, is_complete: false }
    }

    /// Waits until the limit is exceeded.
    pub(crate) async fn wait_until_exceeded(&self) {
        self.exceeded.notified().await;
    }

    fn count(&self, now: Instant) {
        let mut window = self.window.lock();
        let current = window.take().filter(|window| now.duration_since(window.begin) < WINDOW);
        let Window { begin, count } = current.unwrap_or(Window { begin: now, count: 0 });
        *window = Some(Window { begin, count: count + 1 });
        if count >= MAX_CANCELLED {
            self.exceeded.notify_one();
        }
    }
}

/// A request whose handler has not returned a response yet.
pub(crate) struct RunningRequest<'a> {
    cancellations: &'a Cancellations,
    is_complete: bool,
}

impl RunningRequest<'_> {
    /// Ends the request, which was not cancelled.
    pub(crate) fn complete(mut self) {
        self.is_complete = true;
    }
}

impl Drop for RunningRequest<'_> {
    fn drop(&mut self) {
        if !self.is_complete {
            self.cancellations.count(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn limit_is_exceeded_by_cancelled_requests_within_one_window() {
        let cancellations = Cancellations::default();
        let begin = Instant::now();
        for _ in 0..2 * MAX_CANCELLED {
            cancellations.begin_request().complete();
        }
        for _ in 0..MAX_CANCELLED {
            cancellations.count(begin);
        }
        // The next window begins with a new count.
        for _ in 0..MAX_CANCELLED {
            cancellations.count(begin + WINDOW);
        }
        assert!(cancellations.wait_until_exceeded().now_or_never().is_none());
        cancellations.count(begin + WINDOW);
        assert!(cancellations.wait_until_exceeded().now_or_never().is_some());
    }

    #[test]
    fn dropped_request_counts_as_cancelled() {
        let cancellations = Cancellations::default();
        for _ in 0..=MAX_CANCELLED {
            drop(cancellations.begin_request());
        }
        assert!(cancellations.wait_until_exceeded().now_or_never().is_some());
    }
}
