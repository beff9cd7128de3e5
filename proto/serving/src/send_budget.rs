//! The bytes of answers that one HTTP/2 connection holds for a client that does not read.
//!
//! # Contract
//!
//! Every piece of an answer's body counts against its connection from the moment hyper takes it until it is written to the
//! socket. Below [`CONNECTION_BUDGET`] the streams of a connection take pieces freely. At the budget a stream takes its next
//! piece only after its previous ones are written, so every stream makes progress and none can hold more than one piece.
//!
//! # Concurrency
//!
//! Two atomic counters, one for the connection and one for the stream. Streams that pass the check at the same moment may
//! exceed the budget by one piece for each worker thread.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use http_body::{Frame, SizeHint};

use crate::body::{Body, BodyError};

/// Unwritten bytes of a connection from which on each of its streams holds at most one piece: several times what one write
/// to a socket takes, so that a client that reads never waits for it.
pub(crate) const CONNECTION_BUDGET: usize = 512 * 1024;

/// The largest piece of a body while its connection is over budget: one chunk of a list.
const PIECE: usize = 32 * 1024;

/// The unwritten bytes of a connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct SendBudget(Arc<AtomicUsize>);

impl SendBudget {
    /// A body whose pieces count against the budget.
    pub(crate) fn meter(&self, body: Body) -> MeteredBody {
        MeteredBody { body, rest: Bytes::new(), stream: Arc::new(StreamBytes::new(Arc::clone(&self.0))) }
    }
}

/// The unwritten bytes of a stream.
struct StreamBytes {
    connection: Arc<AtomicUsize>,
    unwritten: AtomicUsize,
    writer: AtomicWaker,
}

impl StreamBytes {
    fn new(connection: Arc<AtomicUsize>) -> Self {
        StreamBytes { connection, unwritten: AtomicUsize::new(0), writer: AtomicWaker::new() }
    }

    fn is_over_budget(&self) -> bool {
        self.connection.load(Ordering::Relaxed) >= CONNECTION_BUDGET
    }

    fn must_wait(&self) -> bool {
        self.unwritten.load(Ordering::Acquire) > 0 && self.is_over_budget()
    }

    fn piece(self: &Arc<Self>, bytes: Bytes) -> Bytes {
        self.unwritten.fetch_add(bytes.len(), Ordering::AcqRel);
        self.connection.fetch_add(bytes.len(), Ordering::Relaxed);
        Bytes::from_owner(Piece { bytes, stream: Arc::clone(self) })
    }
}

/// Bytes that count until they are dropped.
struct Piece {
    bytes: Bytes,
    stream: Arc<StreamBytes>,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let stream = &self.stream;
        stream.connection.fetch_sub(self.bytes.len(), Ordering::Relaxed);
        stream.unwritten.fetch_sub(self.bytes.len(), Ordering::AcqRel);
        stream.writer.wake();
    }
}

/// A body that waits while its connection holds too much of what it gave.
pub(crate) struct MeteredBody {
    body: Body,
    /// What is left of a frame that was too large to be given at once.
    rest: Bytes,
    stream: Arc<StreamBytes>,
}

impl MeteredBody {
    fn next_piece(&mut self) -> Bytes {
        let size = if self.stream.is_over_budget() { PIECE } else { CONNECTION_BUDGET };
        let bytes = self.rest.split_to(size.min(self.rest.len()));
        self.stream.piece(bytes)
    }
}

impl http_body::Body for MeteredBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.stream.must_wait() {
            self.stream.writer.register(context.waker());
            // A piece written before the registration wakes nobody.
            if self.stream.must_wait() {
                return Poll::Pending;
            }
        }
        if !self.rest.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(self.next_piece()))));
        }
        let next = Pin::new(&mut self.body).poll_frame(context);
        next.map_ok(|frame| match frame.into_data() {
            Ok(data) => {
                self.rest = data;
                Frame::data(self.next_piece())
            }
            Err(other) => other,
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

    /// The next piece; None while the body waits.
    fn piece(body: &mut MeteredBody) -> Option<Bytes> {
        body.frame().now_or_never().map(|frame| frame.unwrap().unwrap().into_data().unwrap())
    }

    #[tokio::test]
    async fn body_of_connection_over_budget_gives_one_piece_at_a_time() {
        let budget = SendBudget::default();
        let mut large = budget.meter(Body::from(vec![1; 2 * CONNECTION_BUDGET]));
        let mut other = budget.meter(Body::from(vec![2; 3 * PIECE]));
        let all = piece(&mut large).unwrap();
        assert_eq!(all.len(), CONNECTION_BUDGET);
        assert_eq!(piece(&mut large), None, "its bytes are not written");
        let first = piece(&mut other).unwrap();
        assert_eq!(first.len(), PIECE, "every stream holds one piece");
        assert_eq!(piece(&mut other), None);
        drop(first);
        let second = piece(&mut other).unwrap();
        assert_eq!(second.len(), PIECE);
        drop(all);
        assert_eq!(piece(&mut other).unwrap().len(), PIECE, "below the budget again");
        assert_eq!(piece(&mut large).unwrap().len(), CONNECTION_BUDGET);
        assert_eq!(budget.0.load(Ordering::Relaxed), PIECE, "only the second piece is held");
    }

    #[tokio::test]
    async fn body_that_waits_is_woken_by_its_written_piece() {
        let budget = SendBudget::default();
        let mut body = budget.meter(Body::from(vec![1; CONNECTION_BUDGET + 5]));
        let first = piece(&mut body).unwrap();
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
    async fn metered_body_keeps_length_and_content() {
        let budget = SendBudget::default();
        let body = budget.meter(Body::from("text"));
        assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(4), false));
        assert_eq!(body.collect().await.unwrap().to_bytes(), "text");
        assert!(budget.meter(Body::empty()).is_end_stream());
    }
}
