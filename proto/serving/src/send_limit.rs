//! Limit of response bytes that an HTTP/2 connection buffers for a client that does not read.
//!
//! # Contract
//!
//! Every chunk of a response body counts against its connection from the moment hyper takes it until it is
//! written to the socket. Below [`CONNECTION_LIMIT`] the streams of a connection take chunks freely. At the
//! limit a stream takes its next chunk only after its previous chunks are written. So every stream makes
//! progress and exceeds the limit by at most one chunk.
//!
//! [`limit_unwritten`] gives one body a separate limit, on connections of HTTP/1.1 and HTTP/2. It is for bodies whose
//! source yields the next chunk at once.
//!
//! Whole bodies of at most [`UNMETERED_BODY_MAX`] bytes do not count: a stream can buffer only one of them. An
//! HTTP/1.1 connection has one response at a time and is not metered: hyper buffers a limited part of it.
//!
//! # Concurrency
//!
//! Two atomic counters, one for the connection and one for the stream. Streams that pass the check at the
//! same moment may exceed the limit by one chunk per worker thread.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use http_body::{Frame, SizeHint};

use crate::body::{Body, BodyError};
use crate::connection_limits::RequestInProgress;

/// Unwritten bytes of a connection above which each of its streams buffers at most one chunk.
///
/// The limit is several times the size of one socket write, so that it never delays a client that reads.
pub(crate) const CONNECTION_LIMIT: usize = 512 * 1024;

/// Maximum size in bytes of a chunk that a stream takes while its connection is over the limit.
///
/// One chunk of a list response has this size.
const OVER_LIMIT_CHUNK: usize = 32 * 1024;

/// Maximum size in bytes of a whole body that does not count against the send limit.
const UNMETERED_BODY_MAX: usize = 4 * 1024;

/// Counter of the unwritten bytes of a connection. Clones share the counter.
#[derive(Clone, Debug)]
pub(crate) struct SendLimit {
    unwritten: Arc<AtomicUsize>,
    max: usize,
}

impl Default for SendLimit {
    fn default() -> Self {
        SendLimit { unwritten: Arc::default(), max: CONNECTION_LIMIT }
    }
}

/// Limits the bytes of a body that its connection buffers to `max_unwritten`, and one chunk beyond it.
///
/// Without this limit, a connection in HTTP/1.1 takes up to 1 MiB of a body before the client reads.
pub fn limit_unwritten(body: Body, max_unwritten: usize) -> Body {
    let limit = SendLimit { unwritten: Arc::default(), max: max_unwritten };
    Body::stream(limit.meter(body))
}

impl SendLimit {
    /// Wraps a body so that its chunks count against the limit; a small whole body does not count.
    pub(crate) fn meter(&self, body: Body) -> MeteredBody {
        let is_small = body.as_whole().is_some_and(|bytes| bytes.len() <= UNMETERED_BODY_MAX);
        let stream = (!is_small).then(|| Arc::new(StreamBytes::new(self.clone())));
        MeteredBody { stream, ..MeteredBody::unmetered(body) }
    }
}

/// Counters of the unwritten bytes of a stream and of its connection.
struct StreamBytes {
    connection: SendLimit,
    unwritten: AtomicUsize,
    writer: AtomicWaker,
}

impl StreamBytes {
    fn new(connection: SendLimit) -> Self {
        StreamBytes { connection, unwritten: AtomicUsize::new(0), writer: AtomicWaker::new() }
    }

    fn is_over_limit(&self) -> bool {
        self.connection.unwritten.load(Ordering::Relaxed) >= self.connection.max
    }

    fn must_wait(&self) -> bool {
        self.unwritten.load(Ordering::Acquire) > 0 && self.is_over_limit()
    }

    /// Counts bytes as unwritten until the returned value is dropped.
    fn count(self: &Arc<Self>, bytes: Bytes) -> Bytes {
        self.unwritten.fetch_add(bytes.len(), Ordering::AcqRel);
        self.connection.unwritten.fetch_add(bytes.len(), Ordering::Relaxed);
        Bytes::from_owner(CountedBytes { bytes, stream: Arc::clone(self) })
    }
}

/// Bytes that count as unwritten until they are dropped.
struct CountedBytes {
    bytes: Bytes,
    stream: Arc<StreamBytes>,
}

impl AsRef<[u8]> for CountedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for CountedBytes {
    fn drop(&mut self) {
        let stream = &self.stream;
        stream.connection.unwritten.fetch_sub(self.bytes.len(), Ordering::Relaxed);
        stream.unwritten.fetch_sub(self.bytes.len(), Ordering::AcqRel);
        stream.writer.wake();
    }
}

/// Body that waits while its connection is over the limit and an earlier chunk of the body is unwritten.
pub(crate) struct MeteredBody {
    body: Body,
    /// Rest of a frame that is larger than a chunk.
    rest: Bytes,
    /// Counters of the stream; None for a body that does not count against the limit.
    stream: Option<Arc<StreamBytes>>,
    /// The request of the response, which ends with the body.
    _request: Option<RequestInProgress>,
}

impl MeteredBody {
    /// Wraps a body that does not count against a limit.
    pub(crate) fn unmetered(body: Body) -> Self {
        MeteredBody { body, rest: Bytes::new(), stream: None, _request: None }
    }

    /// Lets a request last until the end of the body.
    pub(crate) fn of_request(self, request: RequestInProgress) -> Self {
        MeteredBody { _request: Some(request), ..self }
    }
}

/// Splits the next chunk from the front of a frame and counts it.
fn next_chunk(frame: &mut Bytes, stream: &Arc<StreamBytes>) -> Bytes {
    let size = if stream.is_over_limit() { OVER_LIMIT_CHUNK } else { stream.connection.max };
    stream.count(frame.split_to(size.min(frame.len())))
}

impl http_body::Body for MeteredBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let MeteredBody { body, rest, stream, .. } = &mut *self;
        let Some(stream) = stream else {
            return Pin::new(body).poll_frame(context);
        };
        if stream.must_wait() {
            stream.writer.register(context.waker());
            // A chunk written before the registration does not wake the task.
            if stream.must_wait() {
                return Poll::Pending;
            }
        }
        if !rest.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(next_chunk(rest, stream)))));
        }
        let next = Pin::new(body).poll_frame(context);
        next.map_ok(|frame| {
            frame.map_data(|data| {
                *rest = data;
                next_chunk(rest, stream)
            })
        })
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = self.body.size_hint();
        let rest = u64::try_from(self.rest.len()).unwrap_or(u64::MAX);
        let upper = hint.upper().map(|upper| upper.saturating_add(rest));
        let lower = hint.lower().saturating_add(rest);
        if let Some(upper) = upper {
            hint.set_upper(upper.max(lower));
        }
        hint.set_lower(lower);
        hint
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use http_body::Body as _;
    use http_body_util::BodyExt as _;

    use super::*;

    /// Returns the next chunk; None while the body waits.
    fn chunk(body: &mut MeteredBody) -> Option<Bytes> {
        body.frame().now_or_never().map(|frame| frame.unwrap().unwrap().into_data().unwrap())
    }

    #[tokio::test]
    async fn body_of_connection_over_send_limit_returns_one_chunk_at_a_time() {
        let limit = SendLimit::default();
        let mut large = limit.meter(Body::from(vec![1; 2 * CONNECTION_LIMIT]));
        let mut other = limit.meter(Body::from(vec![2; 3 * OVER_LIMIT_CHUNK]));
        let all = chunk(&mut large).unwrap();
        assert_eq!(all.len(), CONNECTION_LIMIT);
        assert_eq!(chunk(&mut large), None, "the first chunk is not written yet");
        let first = chunk(&mut other).unwrap();
        assert_eq!(first.len(), OVER_LIMIT_CHUNK, "every stream has one chunk");
        assert_eq!(chunk(&mut other), None);
        drop(first);
        let second = chunk(&mut other).unwrap();
        assert_eq!(second.len(), OVER_LIMIT_CHUNK);
        drop(all);
        assert_eq!(
            chunk(&mut other).unwrap().len(),
            OVER_LIMIT_CHUNK,
            "the connection is below its limit again"
        );
        assert_eq!(chunk(&mut large).unwrap().len(), CONNECTION_LIMIT);
        assert_eq!(
            limit.unwritten.load(Ordering::Relaxed),
            OVER_LIMIT_CHUNK,
            "only the second chunk is reserved"
        );
    }

    #[tokio::test]
    async fn waiting_body_is_woken_when_its_chunk_is_written() {
        let limit = SendLimit::default();
        let mut body = limit.meter(Body::from(vec![1; CONNECTION_LIMIT + 5]));
        let first = chunk(&mut body).unwrap();
        let waiting = tokio::spawn(async move {
            let last = body.frame().await.unwrap().unwrap().into_data().unwrap();
            (last.len(), body.is_end_stream(), body.size_hint().exact())
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(first);
        assert_eq!(waiting.await.unwrap(), (5, true, Some(0)));
    }

    #[tokio::test]
    async fn body_with_own_limit_waits_at_that_limit() {
        const MAX: usize = 8 * 1024;
        let frames = (0..4).map(|_| Ok::<_, BodyError>(Frame::data(Bytes::from(vec![1; MAX / 2]))));
        let mut body = limit_unwritten(
            Body::stream(http_body_util::StreamBody::new(futures_util::stream::iter(frames))),
            MAX,
        );
        let mut next =
            || body.frame().now_or_never().map(|frame| frame.unwrap().unwrap().into_data().unwrap());
        let taken = [next().unwrap(), next().unwrap()];
        assert_eq!(next(), None, "the limit is reached");
        drop(taken);
        assert_eq!(next().unwrap().len(), MAX / 2);
        let mut large = limit_unwritten(Body::from(vec![1; 3 * MAX]), MAX);
        let first = large.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(first.len(), MAX, "a frame of the source is divided");
        assert!(large.frame().now_or_never().is_none());
    }

    #[tokio::test]
    async fn metered_body_keeps_length_and_content() {
        let limit = SendLimit::default();
        let body = limit.meter(Body::from("text"));
        assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(4), false));
        assert_eq!(body.collect().await.unwrap().to_bytes(), "text");
        assert!(limit.meter(Body::empty()).is_end_stream());
    }

    #[tokio::test]
    async fn small_whole_body_is_not_counted() {
        let limit = SendLimit::default();
        let bodies =
            [UNMETERED_BODY_MAX, UNMETERED_BODY_MAX + 1].map(|size| limit.meter(Body::from(vec![1; size])));
        let chunks: Vec<_> = bodies.into_iter().filter_map(|mut body| chunk(&mut body)).collect();
        assert_eq!(chunks.len(), 2);
        assert_eq!(limit.unwritten.load(Ordering::Relaxed), UNMETERED_BODY_MAX + 1);
    }
}
