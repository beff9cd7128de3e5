//! Response bodies that end at the request deadline, or when the watch cache revokes the lease of a list.
//!
//! # Contract
//!
//! The request timeout (`--request-timeout`) covers making and sending the response; watches have their own
//! timeouts. At the deadline apid aborts the rest of the response. It resets an HTTP/2 stream and cuts an
//! HTTP/1.1 connection within the body, so that no client takes a partial document for a complete one.
//! `apiserver_request_aborts_total` counts these aborts. apid also aborts a list when the watch cache
//! revokes its [`ItemLease`]: unread lists hold too many superseded objects.
//!
//! # Invariants
//!
//! INVARIANT (released at the deadline): after the deadline only the connection holds bytes of the document.
//! In HTTP/2 it holds up to the send buffer of a stream, in HTTP/1.1 a small response or the last chunk of a
//! large one. A timer drops the rest, because a connection whose client does not read never polls the body.
//! INVARIANT (woken at the deadline): the timer wakes the task that waits for a chunk, because dropping the pending
//! chunk wakes no task.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use apimachinery::clock::Clock;
use apimachinery::duration;
use apimachinery::field::quote;
use apimachinery::status::Status;
use bytes::Bytes;
use futures_util::future::OptionFuture;
use http_body::Frame;
use parking_lot::Mutex;
use serving::body::{Body, BodyError};
use storage::cache::ItemLease;
use tokio::task::AbortHandle;

use crate::query::Query;
use crate::request_info::RequestInfo;
use crate::response::chunk_producer::{ChunkProducer, ResponseChunks};
use crate::response::chunked_document::ChunkSource;

/// Maximum time before the deadline that is reserved for the response of work in batches, such as the
/// deletion of a collection.
const MAX_RESPONSE_RESERVE: Duration = Duration::from_secs(2);

/// The maximum duration of a request.
#[derive(Clone, Debug)]
pub(super) struct TimeLimit {
    /// Monotonic time at which the request began.
    started: Duration,
    /// The smaller of the server's timeout and the `timeout` of the query.
    pub(super) time: Duration,
    /// The 400 response to an invalid `timeout` parameter.
    invalid: Option<Box<Status>>,
}

impl TimeLimit {
    /// Reads the limit of a request. `started` is the monotonic time at which the request began, `maximum` the
    /// timeout of the server.
    ///
    /// Long-running requests have no `timeout` parameter.
    pub(super) fn for_request(
        started: Duration,
        query: &Query,
        info: &RequestInfo,
        maximum: Duration,
    ) -> Self {
        let text = if info.is_long_running() { "" } else { query.text("timeout") };
        let (time, invalid) = match duration::parse_nanos(text) {
            _ if text.is_empty() => (maximum, None),
            // Zero and negative durations mean the timeout of the server.
            Ok(nanos) => {
                let time = u64::try_from(nanos).ok().filter(|nanos| *nanos > 0).map(Duration::from_nanos);
                (time.map_or(maximum, |time| time.min(maximum)), None)
            }
            Err(_) => {
                let text = format!(
                    "invalid timeout specified in the request URL - time: invalid duration {}",
                    quote(text)
                );
                (maximum, Some(Box::new(Status::bad_request(text))))
            }
        };
        TimeLimit { started, time, invalid }
    }

    /// Rejects an invalid `timeout` parameter.
    ///
    /// # Errors
    ///
    /// 400 with the text of the parameter.
    pub(super) fn check(&self) -> Result<(), Status> {
        self.invalid.as_ref().map_or(Ok(()), |status| Err((**status).clone()))
    }

    /// Returns the monotonic time at which the request ends.
    pub(super) fn end(&self) -> Duration {
        self.started + self.time
    }

    /// Returns the monotonic time after which work in batches ends, so that the response reports its progress in time.
    pub(super) fn end_of_batches(&self) -> Duration {
        let reserve = (self.time / 10).min(MAX_RESPONSE_RESERVE);
        self.started + self.time.saturating_sub(reserve)
    }
}

/// The time budget of a request, from its beginning.
pub(super) struct RequestDeadline<'a> {
    clock: &'a dyn Clock,
    started: Duration,
    time: Duration,
}

impl<'a> RequestDeadline<'a> {
    /// Creates the time budget of a request with this limit. `clock` is the clock of the limit.
    pub(super) fn new(clock: &'a dyn Clock, limit: &TimeLimit) -> Self {
        RequestDeadline { clock, started: limit.started, time: limit.time }
    }

    /// Returns the elapsed time.
    pub(super) fn elapsed(&self) -> Duration {
        self.clock.monotonic().saturating_sub(self.started)
    }

    /// Returns the remaining time.
    pub(super) fn remaining(&self) -> Duration {
        self.time.saturating_sub(self.elapsed())
    }
}

/// Returns a body that encodes its chunks in the remaining time of a request.
///
/// `on_abort` runs at the deadline, or when the lease of a list is revoked, if the response is still being sent. Its
/// argument is the reason.
///
/// Must be called within a runtime, which runs the timer task.
pub(super) fn body(
    mut chunks: Box<dyn ChunkSource>,
    time: &RequestDeadline<'_>,
    producer: ChunkProducer,
    on_abort: impl FnOnce(&'static str) + Send + 'static,
) -> Body {
    let lease = chunks.take_lease();
    let response = UnsentChunks { chunks: ResponseChunks::new(chunks, producer), waker: None };
    let state = Arc::new(Mutex::new(SendState::Sending(response)));
    let state_of_timer = Arc::clone(&state);
    let remaining = time.remaining();
    let timer = tokio::spawn(async move {
        let revocation = OptionFuture::from(lease.as_ref().map(ItemLease::revoked));
        let reason = tokio::select! {
            () = tokio::time::sleep(remaining) => "response deadline exceeded",
            Some(()) = revocation => "unread lists hold too many superseded objects",
        };
        let rest = state_of_timer.lock().end(SendState::Late);
        if let Some(UnsentChunks { chunks, waker }) = rest {
            drop(chunks);
            on_abort(reason);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    });
    Body::stream(DeadlineBody { state, timer: timer.abort_handle() })
}

/// Returns the body of another server for a request with a time limit. After the remaining time it ends with an
/// error, so that no client takes a part of it for the whole.
///
/// Must be called within a runtime, which runs the timer task: a connection whose client does not read never polls the
/// body.
pub(super) fn limited(body: Body, remaining: Duration) -> Body {
    if body.as_whole().is_some() {
        return body;
    }
    let state = Arc::new(Mutex::new(LimitedState::Open { body, waker: None }));
    let state_of_timer = Arc::clone(&state);
    let timer = tokio::spawn(async move {
        tokio::time::sleep(remaining).await;
        let rest = std::mem::replace(&mut *state_of_timer.lock(), LimitedState::Late);
        if let LimitedState::Open { body, waker } = rest {
            drop(body);
            waker.into_iter().for_each(Waker::wake);
        }
    });
    Body::stream(LimitedBody { state, timer: timer.abort_handle() })
}

/// The state of a body of another server.
enum LimitedState {
    Open { body: Body, waker: Option<Waker> },
    Late,
    Ended,
}

struct LimitedBody {
    state: Arc<Mutex<LimitedState>>,
    timer: AbortHandle,
}

impl http_body::Body for LimitedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let mut state = self.state.lock();
        match &mut *state {
            LimitedState::Open { body, waker } => {
                let next = Pin::new(body).poll_frame(context);
                *waker = next.is_pending().then(|| context.waker().clone());
                next
            }
            LimitedState::Late => {
                *state = LimitedState::Ended;
                Poll::Ready(Some(Err("the response of the server did not end in time".into())))
            }
            LimitedState::Ended => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &*self.state.lock() {
            LimitedState::Open { body, .. } => body.is_end_stream(),
            LimitedState::Late => false,
            LimitedState::Ended => true,
        }
    }

    fn size_hint(&self) -> http_body::SizeHint {
        match &*self.state.lock() {
            LimitedState::Open { body, .. } => body.size_hint(),
            LimitedState::Late | LimitedState::Ended => http_body::SizeHint::default(),
        }
    }
}

impl Drop for LimitedBody {
    fn drop(&mut self) {
        self.timer.abort();
    }
}

/// The state of a response that is being sent.
enum SendState {
    Sending(UnsentChunks),
    /// All chunks were sent, the encoding failed, or the connection dropped the body.
    Sent,
    /// The deadline passed before the end of the response.
    Late,
}

/// The chunks that are not sent yet.
struct UnsentChunks {
    chunks: ResponseChunks,
    /// The waker of the last poll, if no chunk was ready.
    waker: Option<Waker>,
}

impl UnsentChunks {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Status>>> {
        let next = self.chunks.poll_next(context);
        self.waker = next.is_pending().then(|| context.waker().clone());
        next
    }
}

impl SendState {
    /// Ends sending if it has not ended yet. The caller drops the returned chunks after it releases the lock.
    fn end(&mut self, end_state: SendState) -> Option<UnsentChunks> {
        if !matches!(self, SendState::Sending(_)) {
            return None;
        }
        match std::mem::replace(self, end_state) {
            SendState::Sending(rest) => Some(rest),
            SendState::Sent | SendState::Late => None,
        }
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Status>>> {
        match self {
            SendState::Sending(rest) => rest.poll_next(context),
            SendState::Sent => Poll::Ready(None),
            SendState::Late => Poll::Ready(Some(Err(Status::internal("the response was not read in time")))),
        }
    }
}

struct DeadlineBody {
    state: Arc<Mutex<SendState>>,
    timer: AbortHandle,
}

impl http_body::Body for DeadlineBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let mut state = self.state.lock();
        let next = ready!(state.poll_next(context));
        let late = matches!(*state, SendState::Late);
        let rest = if matches!(next, Some(Ok(_))) { None } else { state.end(SendState::Sent) };
        drop(state);
        drop(rest);
        Poll::Ready(next.map(|chunk| match chunk {
            Ok(chunk) => Ok(Frame::data(chunk)),
            Err(status) => {
                if !late {
                    tracing::error!(
                        reason = status.message,
                        "response encoding failed; aborting the response"
                    );
                }
                Err(BodyError::from(status.message))
            }
        }))
    }
}

impl Drop for DeadlineBody {
    fn drop(&mut self) {
        self.timer.abort();
        // Drops the chunks now: the aborted timer task holds its reference to the state for some time.
        let rest = self.state.lock().end(SendState::Sent);
        drop(rest);
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::clock::ManualClock;
    use http_body_util::BodyExt as _;
    use tokio::sync::oneshot;

    use super::*;
    use crate::response::chunked_document;

    /// A timeout that no test reaches.
    const AMPLE: Duration = Duration::from_secs(3600);

    fn clock() -> ManualClock {
        ManualClock::at("2025-05-01T00:00:00Z".parse().unwrap())
    }

    /// A time budget that begins now.
    fn begin(clock: &ManualClock, time: Duration) -> RequestDeadline<'_> {
        RequestDeadline::new(clock, &TimeLimit { started: clock.monotonic(), time, invalid: None })
    }

    /// A body with the full timeout for sending.
    fn body(chunks: Box<dyn ChunkSource>, time: Duration, late: impl FnOnce() + Send + 'static) -> Body {
        super::body(chunks, &begin(&clock(), time), ChunkProducer::for_tests(), |_reason| late())
    }

    /// A document of three chunks that holds a clone of `reference`.
    fn document(reference: &Arc<()>) -> Box<dyn ChunkSource> {
        let reference = Arc::clone(reference);
        chunked_document::from_iterator(["one", "two", "three"].into_iter().map(move |part| {
            let _ = &reference;
            Ok(Bytes::from(part))
        }))
    }

    #[tokio::test]
    async fn body_of_another_server_ends_with_an_error_after_its_time() {
        const TIME: Duration = Duration::from_millis(50);
        let whole = limited(Body::from("text"), TIME).collect().await.unwrap().to_bytes();
        assert_eq!(whole, "text");
        let (sender, body) = serving::body::channel(1);
        let mut body = limited(body, TIME);
        sender.send(Bytes::from("part")).await.unwrap();
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "part");
        // The timer drops the body even if nobody polls it.
        sender.closed().await;
        assert!(body.frame().await.unwrap().is_err());
    }

    #[tokio::test]
    async fn body_read_before_deadline_is_complete_and_drops_document() {
        let reference = Arc::new(());
        let mut sent = body(document(&reference), AMPLE, || panic!("the deadline has not passed"));
        let mut all = Vec::new();
        while let Some(frame) = sent.frame().await {
            all.extend_from_slice(&frame.unwrap().into_data().unwrap());
        }
        assert_eq!(all, b"onetwothree");
        assert_eq!(Arc::strong_count(&reference), 1, "the body drops the document at its end");
        assert!(sent.frame().await.is_none());
    }

    #[tokio::test]
    async fn unread_body_is_dropped_at_deadline_and_ends_with_error() {
        let reference = Arc::new(());
        let (late, expired) = oneshot::channel();
        let mut sent = body(document(&reference), Duration::ZERO, || late.send(()).unwrap());
        assert_eq!(sent.frame().await.unwrap().unwrap().into_data().unwrap(), "one");
        // The test does not poll for the next chunk.
        expired.await.unwrap();
        tokio::task::yield_now().await;
        assert_eq!(Arc::strong_count(&reference), 1);
        let error = sent.frame().await.unwrap().unwrap_err();
        assert!(error.to_string().contains("in time"), "{error}");
    }

    /// A costly document whose first chunk is not encoded before the test drops the sender.
    struct BlockedSource(std::sync::mpsc::Receiver<()>);

    impl Iterator for BlockedSource {
        type Item = Result<Bytes, Status>;

        fn next(&mut self) -> Option<Self::Item> {
            let _ = self.0.recv();
            None
        }
    }

    impl ChunkSource for BlockedSource {
        fn is_costly(&self) -> bool {
            true
        }
    }

    #[tokio::test]
    async fn reader_that_waits_for_chunk_gets_error_at_deadline() {
        let (release, blocked) = std::sync::mpsc::channel();
        let (late, expired) = oneshot::channel();
        let mut sent =
            body(Box::new(BlockedSource(blocked)), Duration::from_millis(20), || late.send(()).unwrap());
        // Only the deadline wakes the reader: the chunk stays on the work pool.
        let reader = tokio::spawn(async move { sent.frame().await });
        expired.await.unwrap();
        let frame = tokio::time::timeout(Duration::from_secs(10), reader).await;
        drop(release);
        let error = frame.expect("the deadline wakes the reader").unwrap().unwrap().unwrap_err();
        assert!(error.to_string().contains("in time"), "{error}");
    }

    #[tokio::test]
    async fn preparation_time_counts_against_deadline() {
        let (clock, reference) = (clock(), Arc::new(()));
        let time = begin(&clock, AMPLE);
        let document = document(&reference);
        clock.advance(AMPLE);
        let (late, expired) = oneshot::channel();
        let sent = super::body(document, &time, ChunkProducer::for_tests(), |_| late.send(()).unwrap());
        expired.await.unwrap();
        drop(sent);
        assert_eq!(Arc::strong_count(&reference), 1);
    }

    #[tokio::test]
    async fn encoding_error_drops_document_without_deadline_callback() {
        let reference = Arc::new(());
        let broken = document(&reference).chain([Err(Status::internal("unreadable"))]);
        let mut sent =
            body(chunked_document::from_iterator(broken), AMPLE, || panic!("the deadline has not passed"));
        for _ in 0..3 {
            assert!(sent.frame().await.unwrap().is_ok());
        }
        assert!(sent.frame().await.unwrap().is_err());
        assert_eq!(Arc::strong_count(&reference), 1);
        assert!(sent.frame().await.is_none());
    }

    #[tokio::test]
    async fn dropped_body_cancels_deadline_timer() {
        let reference = Arc::new(());
        let (late, expired) = oneshot::channel::<()>();
        drop(body(document(&reference), AMPLE, || drop(late)));
        assert!(expired.await.is_err(), "dropping the body drops the timer");
        assert_eq!(Arc::strong_count(&reference), 1);
    }
}
