//! Limit of requests that a client cancels on one HTTP/2 connection.
//!
//! A client cancels a request by a reset of its stream. The server has then parsed the request and has often
//! begun its work. A client that opens and resets streams without pause would keep the I/O threads busy
//! (CVE-2023-44487). h2 itself counts only streams that are reset before the server sees them.
//!
//! # Contract
//!
//! A request counts as cancelled if the client resets it before its handler begins or while its handler waits. If the
//! connection reads the reset in the same poll as the request, no handler is called. A stream that is reset after the
//! response head, such as a watch, does not count.
//!
//! The server shuts down a connection gracefully after more than [`MAX_CANCELLED`] cancelled requests within
//! [`WINDOW`]. Open streams continue, and the client opens a new connection for new requests. The client may
//! cancel these streams, and requests that it sends before it receives the GOAWAY frame. A client that cancels
//! more than [`MAX_CANCELLED_IN_SHUTDOWN`] requests ignores the shutdown; its connection is closed.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Maximum number of cancelled requests of a connection within [`WINDOW`].
const MAX_CANCELLED: u32 = 50;
/// Length of the interval in which cancelled requests are counted.
const WINDOW: Duration = Duration::from_secs(1);
/// Maximum number of cancelled requests during the graceful shutdown of a connection: four times the streams of a
/// connection.
const MAX_CANCELLED_IN_SHUTDOWN: u32 = 400;

/// Counter of the cancelled requests of a connection.
#[derive(Debug, Default)]
pub(crate) struct Cancellations {
    state: Mutex<State>,
    exceeded: Notify,
}

/// Number of cancelled requests, before and during the shutdown of the connection.
#[derive(Debug, Default)]
enum State {
    /// No cancelled request so far.
    #[default]
    None,
    /// An interval and its number of cancelled requests.
    Window { begin: Instant, count: u32 },
    /// The number of cancelled requests since the limit was exceeded.
    Shutdown { count: u32 },
}

impl Cancellations {
    /// Begins a request. The request counts as cancelled if the result is dropped before
    /// [`RunningRequest::complete`].
    pub(crate) fn begin_request(&self) -> RunningRequest<'_> {
        RunningRequest { cancellations: self, is_complete: false }
    }

    /// Waits until a limit is exceeded: first [`MAX_CANCELLED`], then [`MAX_CANCELLED_IN_SHUTDOWN`].
    pub(crate) async fn wait_until_exceeded(&self) {
        self.exceeded.notified().await;
    }

    /// Counts a cancelled request.
    fn count(&self, now: Instant) {
        let mut state = self.state.lock();
        let is_recent = |begin| now.duration_since(begin) < WINDOW;
        let (next, is_exceeded) = match *state {
            State::Window { begin, count: MAX_CANCELLED } if is_recent(begin) => {
                (State::Shutdown { count: 0 }, true)
            }
            State::Window { begin, count } if is_recent(begin) => {
                (State::Window { begin, count: count + 1 }, false)
            }
            State::None | State::Window { .. } => (State::Window { begin: now, count: 1 }, false),
            State::Shutdown { count } => {
                (State::Shutdown { count: count + 1 }, count >= MAX_CANCELLED_IN_SHUTDOWN)
            }
        };
        *state = next;
        if is_exceeded {
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

    impl Cancellations {
        fn count_at(&self, time: Instant, count: u32) {
            (0..count).for_each(|_| self.count(time));
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
    fn limit_is_exceeded_again_by_requests_during_shutdown() {
        let cancellations = Cancellations::default();
        let begin = Instant::now();
        cancellations.count_at(begin, MAX_CANCELLED + 1);
        assert!(cancellations.is_exceeded());
        cancellations.count_at(begin, MAX_CANCELLED_IN_SHUTDOWN);
        assert!(!cancellations.is_exceeded());
        cancellations.count_at(begin + WINDOW, 1);
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
