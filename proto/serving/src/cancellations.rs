//! Limit of requests that a client cancels on one HTTP/2 connection.
//!
//! A client cancels a request by a reset of its stream. The server has then parsed the request and has often
//! begun its work, so a client that opens and resets streams without pause would keep the I/O threads busy
//! (CVE-2023-44487). h2 itself counts only streams that are reset before the server sees them.
//!
//! # Contract
//!
//! A request counts as cancelled if its handler is dropped before it returns a response. A stream that is reset
//! after the response head, such as a watch, does not count; nor does a request whose handler returns at its
//! first poll. A connection with more than [`MAX_CANCELLED`] cancelled requests within [`WINDOW`] is shut down
//! gracefully: its open streams continue, and the client opens a new connection for new requests. A client that
//! still begins requests after [`GRACE`] and cancels as many of them ignores the shutdown; its connection is cut.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Maximum number of cancelled requests of a connection within [`WINDOW`].
const MAX_CANCELLED: u32 = 50;
/// Length of the interval in which cancelled requests are counted.
const WINDOW: Duration = Duration::from_secs(1);
/// Time after the limit is exceeded in which new requests do not count: the client may not have received the
/// GOAWAY frame yet.
const GRACE: Duration = Duration::from_secs(5);

/// Counter of the cancelled requests of a connection.
#[derive(Debug, Default)]
pub(crate) struct Cancellations {
    state: Mutex<State>,
    exceeded: Notify,
}

#[derive(Debug, Default)]
struct State {
    window: Option<Window>,
    /// Requests that began before this time do not count.
    counted_from: Option<Instant>,
}

/// An interval and its number of cancelled requests.
#[derive(Debug)]
struct Window {
    begin: Instant,
    count: u32,
}

impl Cancellations {
    /// Begins a request. The request counts as cancelled if the result is dropped before
    /// [`RunningRequest::complete`].
    pub(crate) fn begin_request(&self) -> RunningRequest<'_> {
        RunningRequest { cancellations: self, begin: Instant::now(), is_complete: false }
    }

    /// Waits until the limit is exceeded: for the first time, or again after [`GRACE`].
    pub(crate) async fn wait_until_exceeded(&self) {
        self.exceeded.notified().await;
    }

    /// Counts a cancelled request that began at `begin`.
    fn count(&self, begin: Instant, now: Instant) {
        let mut state = self.state.lock();
        if state.counted_from.is_some_and(|from| begin < from) {
            return;
        }
        let current = state.window.take().filter(|window| now.duration_since(window.begin) < WINDOW);
        let Window { begin, count } = current.unwrap_or(Window { begin: now, count: 0 });
        if count < MAX_CANCELLED {
            state.window = Some(Window { begin, count: count + 1 });
        } else {
            state.counted_from = Some(now + GRACE);
            self.exceeded.notify_one();
        }
    }
}

/// A request whose handler has not returned a response yet.
pub(crate) struct RunningRequest<'a> {
    cancellations: &'a Cancellations,
    begin: Instant,
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
            self.cancellations.count(self.begin, Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    impl Cancellations {
        fn count_at(&self, begin: Instant, count: u32) {
            (0..count).for_each(|_| self.count(begin, begin));
        }

        fn is_exceeded(&self) -> bool {
            self.wait_until_exceeded().now_or_never().is_some()
        }
    }

    #[test]
    fn limit_is_exceeded_by_cancelled_requests_within_one_window() {
        let cancellations = Cancellations::default();
        let begin = Instant::now();
        for _ in 0..2 * MAX_CANCELLED {
            cancellations.begin_request().complete();
        }
        cancellations.count_at(begin, MAX_CANCELLED);
        // The next window begins with a new count.
        cancellations.count_at(begin + WINDOW, MAX_CANCELLED);
        assert!(!cancellations.is_exceeded());
        cancellations.count_at(begin + WINDOW, 1);
        assert!(cancellations.is_exceeded());
    }

    #[test]
    fn limit_is_exceeded_again_only_by_requests_after_grace() {
        let cancellations = Cancellations::default();
        let begin = Instant::now();
        cancellations.count_at(begin, MAX_CANCELLED + 1);
        assert!(cancellations.is_exceeded());
        cancellations.count_at(begin + GRACE - WINDOW, 2 * MAX_CANCELLED);
        for _ in 0..2 * MAX_CANCELLED {
            cancellations.count(begin, begin + 2 * GRACE);
        }
        assert!(!cancellations.is_exceeded());
        cancellations.count_at(begin + GRACE, MAX_CANCELLED + 1);
        assert!(cancellations.is_exceeded());
    }

    #[test]
    fn dropped_request_counts_as_cancelled() {
        let cancellations = Cancellations::default();
        for _ in 0..=MAX_CANCELLED {
            drop(cancellations.begin_request());
        }
        assert!(cancellations.is_exceeded());
    }
}
