//! Response chunks: made on the work pool when costly, and counted until they are sent.
//!
//! # Contract
//!
//! [`Pieces`] is the body of a chunked document. It makes each chunk when the connection can take more. A
//! chunk that costs more than copying is made on the work pool in the name of its user. Each chunk counts as
//! unsent until the connection drops it, and so do the bytes that the rest of the document holds.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::{Context, Poll, ready};

use apimachinery::status::Status;
use bytes::Bytes;
use http_body::Frame;
use serving::body::{Body, BodyError};

use super::chunks::Chunks;
use super::shares::{AnswerCounters, UnsentAnswer, UserShare};
use super::work_pool::{ShutDown, WorkPool};

/// Maximum size of an uncounted response, in bytes. Most responses are smaller and use memory of the request.
const UNCOUNTED: usize = 4096;

/// Memory cost of a chunk, in bytes.
const PIECE_COST: usize = 256 << 10;

/// Makes and counts the response chunks of one user on one connection.
#[derive(Clone)]
pub(super) struct PieceMaker {
    pool: Arc<WorkPool>,
    counters: Arc<AnswerCounters>,
}

/// Whether a body is complete and small enough not to count as unsent.
pub(super) fn is_uncounted(body: &Body) -> bool {
    body.as_whole().is_some_and(|bytes| bytes.len() <= UNCOUNTED)
}

impl PieceMaker {
    /// Returns a producer for a user on a connection with its counter of unsent bytes.
    pub(super) fn new(pool: Arc<WorkPool>, share: Arc<UserShare>, connection: Arc<AtomicUsize>) -> Self {
        PieceMaker { pool, counters: share.on_connection(connection) }
    }

    /// Makes a complete body count as unsent until it is sent.
    pub(super) fn track(&self, body: Body) -> Body {
        match body.as_whole() {
            Some(bytes) => Body::from(self.count(bytes.clone())),
            None => body,
        }
    }

    /// Makes larger frames of an event stream count as unsent until the connection drops them.
    pub(super) fn track_stream(&self, body: Body) -> Body {
        match body.as_whole() {
            // A HEAD request or an upgraded connection.
            Some(_) => body,
            None => Body::stream(TrackedStream { body, maker: self.clone() }),
        }
    }

    fn count(&self, bytes: Bytes) -> Bytes {
        self.hold(bytes.len()).track(bytes)
    }

    fn hold(&self, bytes: usize) -> UnsentAnswer {
        self.counters.hold(bytes)
    }
}

/// A stream whose frames count as unsent.
struct TrackedStream {
    body: Body,
    maker: PieceMaker,
}

impl http_body::Body for TrackedStream {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let count = |bytes: Bytes| if bytes.len() > UNCOUNTED { self.maker.count(bytes) } else { bytes };
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(count))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

type Piece = Option<Result<Bytes, Status>>;
type Making = Pin<Box<dyn Future<Output = Result<(Box<dyn Chunks>, Piece), ShutDown>> + Send>>;

/// The chunks of a document that is being sent.
pub(super) struct Pieces {
    maker: PieceMaker,
    state: State,
    /// Bytes that the unsent part of the document holds.
    held: UnsentAnswer,
}

enum State {
    Idle(Box<dyn Chunks>),
    Making(Making),
    Done,
}

impl Pieces {
    /// Returns the chunks of a document.
    pub(super) fn new(chunks: Box<dyn Chunks>, maker: PieceMaker) -> Self {
        let held = maker.hold(chunks.held_bytes());
        Pieces { maker, state: State::Idle(chunks), held }
    }

    /// Polls for the next chunk; None at the end.
    pub(super) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Piece> {
        let (chunks, piece) = match std::mem::replace(&mut self.state, State::Done) {
            State::Done => return Poll::Ready(None),
            State::Idle(mut chunks) if !chunks.is_costly() => {
                let piece = chunks.next();
                (chunks, piece)
            }
            State::Idle(chunks) => return self.poll_making(self.make(chunks), context),
            State::Making(making) => return self.poll_making(making, context),
        };
        Poll::Ready(self.take(chunks, piece))
    }

    fn poll_making(&mut self, mut making: Making, context: &mut Context<'_>) -> Poll<Piece> {
        match making.as_mut().poll(context) {
            Poll::Ready(Ok((chunks, piece))) => Poll::Ready(self.take(chunks, piece)),
            Poll::Ready(Err(error)) => Poll::Ready(Some(Err(Status::internal(error)))),
            Poll::Pending => {
                self.state = State::Making(making);
                Poll::Pending
            }
        }
    }

    /// Makes the next chunk on the pool.
    fn make(&self, chunks: Box<dyn Chunks>) -> Making {
        let (pool, user) = (Arc::clone(&self.maker.pool), Arc::clone(&self.maker.counters.share.user));
        Box::pin(async move {
            let work = async move {
                let mut chunks = chunks;
                let piece = chunks.next();
                (chunks, piece)
            };
            pool.run_queued(&user, PIECE_COST, work).await
        })
    }

    fn take(&mut self, chunks: Box<dyn Chunks>, piece: Piece) -> Piece {
        match piece {
            Some(Ok(bytes)) => {
                self.held.resize(chunks.held_bytes());
                self.state = State::Idle(chunks);
                Some(Ok(self.maker.count(bytes)))
            }
            end => {
                self.held.resize(0);
                end
            }
        }
    }
}

#[cfg(test)]
impl PieceMaker {
    /// Returns a producer with a pool of one thread.
    pub(super) fn for_tests() -> Self {
        let pool = WorkPool::start(1, super::work_pool::Bounds::SERVER).unwrap();
        PieceMaker::new(Arc::new(pool), super::shares::Shares::new().of("a"), Arc::default())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    /// A document that records the threads that make its chunks.
    struct Costly(Vec<&'static str>, Arc<parking_lot::Mutex<Vec<String>>>);

    impl Iterator for Costly {
        type Item = Result<Bytes, Status>;

        fn next(&mut self) -> Piece {
            self.1.lock().push(std::thread::current().name().unwrap_or_default().to_owned());
            self.0.pop().map(|text| Ok(Bytes::from(text)))
        }
    }

    impl Chunks for Costly {
        fn is_costly(&self) -> bool {
            true
        }

        fn held_bytes(&self) -> usize {
            1000 * self.0.len()
        }
    }

    async fn next(pieces: &mut Pieces) -> Piece {
        std::future::poll_fn(|context| pieces.poll_next(context)).await
    }

    #[tokio::test]
    async fn costly_pieces_are_made_on_workers_and_counted_until_they_are_dropped() {
        let maker = PieceMaker::for_tests();
        let held = || maker.counters.connection.load(Ordering::Relaxed);
        let threads = Arc::default();
        let mut pieces =
            Pieces::new(Box::new(Costly(vec!["one", "two"], Arc::clone(&threads))), maker.clone());
        assert_eq!(held(), 2000);
        let first = next(&mut pieces).await.unwrap().unwrap();
        assert_eq!((&first[..], held()), (&b"two"[..], 1003));
        drop(first);
        assert_eq!(held(), 1000);
        assert_eq!(next(&mut pieces).await.unwrap().unwrap(), "one");
        assert!(next(&mut pieces).await.is_none() && next(&mut pieces).await.is_none());
        assert_eq!(held(), 0);
        assert!(threads.lock().iter().all(|thread| thread == "worker"));
    }

    #[tokio::test]
    async fn large_event_of_a_stream_is_counted_until_it_is_dropped() {
        let maker = PieceMaker::for_tests();
        let events = futures_util::stream::iter(
            [10, UNCOUNTED + 1]
                .map(|size| Ok::<_, std::convert::Infallible>(Frame::data(Bytes::from(vec![b'a'; size])))),
        );
        let mut body = maker.track_stream(Body::stream(http_body_util::StreamBody::new(events)));
        let mut sizes = Vec::new();
        while let Some(frame) = http_body_util::BodyExt::frame(&mut body).await {
            let event = frame.unwrap().into_data().unwrap();
            sizes.push((event.len(), maker.counters.connection.load(Ordering::Relaxed)));
        }
        assert_eq!(sizes, [(10, 0), (UNCOUNTED + 1, UNCOUNTED + 1)]);
        assert_eq!(maker.counters.connection.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn small_whole_answers_are_not_counted() {
        let maker = PieceMaker::for_tests();
        for (size, counted) in [(UNCOUNTED, 0), (UNCOUNTED + 1, UNCOUNTED + 1)] {
            let body = Body::from(vec![0; size]);
            let body = if is_uncounted(&body) { body } else { maker.track(body) };
            assert_eq!(maker.counters.connection.load(Ordering::Relaxed), counted);
            drop(body);
            assert_eq!(maker.counters.connection.load(Ordering::Relaxed), 0);
        }
    }
}
