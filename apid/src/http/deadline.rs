//! Response bodies that end at the request deadline.
//!
//! # Contract
//!
//! The request timeout (`--request-timeout`) covers making and sending the response; watches have their own
//! timeouts. At the deadline apid aborts the rest of the response. It resets an HTTP/2 stream and cuts an
//! HTTP/1.1 connection within the body, so that no client takes a partial document for a complete one.
//! `apiserver_request_aborts_total` counts these aborts.
//!
//! # Invariants
//!
//! INVARIANT (released at the deadline): after the deadline only the connection holds bytes of the document.
//! In HTTP/2 it holds up to the send buffer of a stream, in HTTP/1.1 a small response or the last chunk of a
//! large one. A timer drops the rest, because a connection whose client does not read never polls the body.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use apimachinery::clock::Clock;
use apimachinery::status::Status;
use bytes::Bytes;
use http_body::Frame;
use parking_lot::Mutex;
use serving::body::{Body, BodyError};
use tokio::task::AbortHandle;

use super::chunks::Chunks;
use super::pieces::{PieceMaker, Pieces};

/// The time budget of a request, from its beginning.
pub(super) struct Allotted<'a> {
    clock: &'a dyn Clock,
    begun: Duration,
    time: Duration,
}

impl<'a> Allotted<'a> {
    /// Starts the time budget now.
    pub(super) fn begin(clock: &'a dyn Clock, time: Duration) -> Self {
        Allotted { clock, begun: clock.monotonic(), time }
    }

    /// Returns the elapsed time.
    pub(super) fn passed(&self) -> Duration {
        self.clock.monotonic().saturating_sub(self.begun)
    }

    fn left(&self) -> Duration {
        self.time.saturating_sub(self.passed())
    }
}

/// Returns a body that makes its chunks in the remaining time of a request; `late` runs at the deadline.
///
/// Must be called within a runtime, which runs the timer task.
pub(super) fn body(
    chunks: Box<dyn Chunks>,
    time: &Allotted<'_>,
    maker: PieceMaker,
    late: impl FnOnce() + Send + 'static,
) -> Body {
    let place = Arc::new(Mutex::new(Place::Sending(Pieces::new(chunks, maker))));
    let held = Arc::clone(&place);
    let left = time.left();
    let timer = tokio::spawn(async move {
        tokio::time::sleep(left).await;
        let rest = held.lock().end(Place::Late);
        if rest.is_some() {
            late();
        }
    });
    Body::stream(Timed { place, timer: timer.abort_handle() })
}

/// The state of a response that is being sent.
enum Place {
    Sending(Pieces),
    Sent,
    Late,
}

impl Place {
    /// Ends sending if it has not ended yet. The caller drops the returned rest without the lock.
    fn end(&mut self, how: Place) -> Option<Pieces> {
        if !matches!(self, Place::Sending(_)) {
            return None;
        }
        match std::mem::replace(self, how) {
            Place::Sending(rest) => Some(rest),
            Place::Sent | Place::Late => None,
        }
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Status>>> {
        match self {
            Place::Sending(pieces) => pieces.poll_next(context),
            Place::Sent => Poll::Ready(None),
            Place::Late => Poll::Ready(Some(Err(Status::internal("the response was not read in time")))),
        }
    }
}

struct Timed {
    place: Arc<Mutex<Place>>,
    timer: AbortHandle,
}

impl http_body::Body for Timed {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let mut place = self.place.lock();
        let next = ready!(place.poll_next(context));
        let late = matches!(*place, Place::Late);
        let rest = if matches!(next, Some(Ok(_))) { None } else { place.end(Place::Sent) };
        drop(place);
        drop(rest);
        Poll::Ready(next.map(|chunk| match chunk {
            Ok(chunk) => Ok(Frame::data(chunk)),
            Err(status) => {
                if !late {
                    tracing::error!(reason = status.message, "response encoding failed; aborting");
                }
                Err(BodyError::from(status.message))
            }
        }))
    }
}

impl Drop for Timed {
    fn drop(&mut self) {
        self.timer.abort();
        // The timer task holds the state until it is dropped, which is later.
        let rest = self.place.lock().end(Place::Sent);
        drop(rest);
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::clock::ManualClock;
    use http_body_util::BodyExt as _;
    use tokio::sync::oneshot;

    use super::*;
    use crate::http::chunks;

    /// A timeout that no test reaches.
    const AMPLE: Duration = Duration::from_secs(3600);

    fn clock() -> ManualClock {
        ManualClock::at("2025-05-01T00:00:00Z".parse().unwrap())
    }

    /// A body with the full timeout for sending.
    fn body(chunks: Box<dyn Chunks>, time: Duration, late: impl FnOnce() + Send + 'static) -> Body {
        super::body(chunks, &Allotted::begin(&clock(), time), PieceMaker::for_tests(), late)
    }

    /// A document of three chunks that holds a reference to `held`.
    fn document(held: &Arc<()>) -> Box<dyn Chunks> {
        let held = Arc::clone(held);
        chunks::of(["one", "two", "three"].into_iter().map(move |part| {
            let _ = &held;
            Ok(Bytes::from(part))
        }))
    }

    #[tokio::test]
    async fn what_is_read_in_time_is_whole() {
        let held = Arc::new(());
        let mut sent = body(document(&held), AMPLE, || panic!("the deadline has not passed"));
        let mut all = Vec::new();
        while let Some(frame) = sent.frame().await {
            all.extend_from_slice(&frame.unwrap().into_data().unwrap());
        }
        assert_eq!(all, b"onetwothree");
        assert_eq!(Arc::strong_count(&held), 1, "the body drops the document at its end");
        assert!(sent.frame().await.is_none());
    }

    #[tokio::test]
    async fn what_nobody_reads_is_let_go_and_ends_with_an_error() {
        let held = Arc::new(());
        let (late, told) = oneshot::channel();
        let mut sent = body(document(&held), Duration::ZERO, || late.send(()).unwrap());
        assert_eq!(sent.frame().await.unwrap().unwrap().into_data().unwrap(), "one");
        // The test does not poll for the next chunk.
        told.await.unwrap();
        tokio::task::yield_now().await;
        assert_eq!(Arc::strong_count(&held), 1);
        let error = sent.frame().await.unwrap().unwrap_err();
        assert!(error.to_string().contains("in time"), "{error}");
    }

    #[tokio::test]
    async fn what_the_making_takes_is_not_left_for_the_sending() {
        let (clock, held) = (clock(), Arc::new(()));
        let time = Allotted::begin(&clock, AMPLE);
        let document = document(&held);
        clock.advance(AMPLE);
        let (late, told) = oneshot::channel();
        let sent = super::body(document, &time, PieceMaker::for_tests(), || late.send(()).unwrap());
        told.await.unwrap();
        drop(sent);
        assert_eq!(Arc::strong_count(&held), 1);
    }

    #[tokio::test]
    async fn a_document_that_cannot_be_made_is_let_go_and_is_not_late() {
        let held = Arc::new(());
        let broken = document(&held).chain([Err(Status::internal("unreadable"))]);
        let mut sent = body(chunks::of(broken), AMPLE, || panic!("the deadline has not passed"));
        for _ in 0..3 {
            assert!(sent.frame().await.unwrap().is_ok());
        }
        assert!(sent.frame().await.unwrap().is_err());
        assert_eq!(Arc::strong_count(&held), 1);
        assert!(sent.frame().await.is_none());
    }

    #[tokio::test]
    async fn a_client_that_goes_away_ends_the_timer() {
        let held = Arc::new(());
        let (late, told) = oneshot::channel::<()>();
        drop(body(document(&held), AMPLE, || drop(late)));
        assert!(told.await.is_err(), "dropping the body drops the timer");
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
