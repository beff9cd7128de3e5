//! Response chunks: encoded on the work pool when costly, and counted until they are sent.
//!
//! # Contract
//!
//! [`ResponseChunks`] is the body of a chunked document. It encodes each chunk when the connection can take more. A
//! chunk that costs more than copying is encoded on the work pool on behalf of its flow. Each chunk counts as unsent
//! until the connection drops it. So do the bytes and the version of a large object that the rest of the document
//! holds.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::{Context, Poll};

use apimachinery::status::Status;
use bytes::Bytes;
use http_body_util::BodyExt as _;
use serving::body::Body;

use crate::response::chunked_document::ChunkSource;
use crate::shares::{HeldVersion, UnsentCounters, UnsentResponse, UserShare};
use crate::work_pool::{Flow, ShutDown, WorkPool};

/// Maximum size of a body or frame that does not count as unsent, in bytes. Most responses are smaller.
const MAX_UNCOUNTED_BYTES: usize = 4096;

/// Encodes and counts the response chunks of one user on one connection.
#[derive(Clone)]
pub(crate) struct ChunkProducer {
    pool: Arc<WorkPool>,
    flow: Flow,
    counters: Arc<UnsentCounters>,
}

/// Whether a body is complete and so large that it counts as unsent.
pub(crate) fn is_counted(body: &Body) -> bool {
    body.as_whole().is_some_and(|bytes| bytes.len() > MAX_UNCOUNTED_BYTES)
}

impl ChunkProducer {
    /// Creates a producer for the flow and for the user of `share`. `connection` counts the unsent bytes of the
    /// connection.
    pub(crate) fn new(
        pool: Arc<WorkPool>,
        flow: Flow,
        share: Arc<UserShare>,
        connection: Arc<AtomicUsize>,
    ) -> Self {
        ChunkProducer { pool, flow, counters: share.on_connection(connection) }
    }

    /// Counts a complete body as unsent until it is sent.
    pub(crate) fn track(&self, body: Body) -> Body {
        match body.as_whole() {
            Some(bytes) => Body::from(self.count(bytes.clone())),
            None => body,
        }
    }

    /// Counts each frame of an event stream above [`MAX_UNCOUNTED_BYTES`] as unsent until it is sent. A frame that
    /// several watches of the user share counts once.
    pub(crate) fn track_stream(&self, body: Body) -> Body {
        match body.as_whole() {
            // A HEAD request or an upgraded connection.
            Some(_) => body,
            None => {
                let producer = self.clone();
                Body::stream(body.map_frame(move |frame| frame.map_data(|bytes| producer.count_large(bytes))))
            }
        }
    }

    fn count_large(&self, bytes: Bytes) -> Bytes {
        if bytes.len() > MAX_UNCOUNTED_BYTES { self.counters.track_event(bytes) } else { bytes }
    }

    fn count(&self, bytes: Bytes) -> Bytes {
        self.counters.hold(bytes.len()).track(bytes)
    }
}

type NextChunk = Option<Result<Bytes, Status>>;
type PendingChunk = Pin<Box<dyn Future<Output = Result<(Box<dyn ChunkSource>, NextChunk), ShutDown>> + Send>>;

/// The chunks of a document that is being sent.
pub(crate) struct ResponseChunks {
    producer: ChunkProducer,
    state: ChunkState,
    /// Bytes that the unsent part of the document holds.
    unsent: UnsentResponse,
    /// The large object of the watch cache that the document holds.
    held_version: Option<HeldVersion>,
}

enum ChunkState {
    Idle(Box<dyn ChunkSource>),
    PendingChunk(PendingChunk),
    Done,
}

impl ResponseChunks {
    /// Wraps the source of a document, whose bytes in memory count as unsent.
    pub(crate) fn new(chunks: Box<dyn ChunkSource>, producer: ChunkProducer) -> Self {
        let unsent = producer.counters.hold(chunks.held_bytes());
        let held_version = chunks.held_version().map(|bytes| producer.counters.share.hold_version(bytes));
        ResponseChunks { producer, state: ChunkState::Idle(chunks), unsent, held_version }
    }

    /// Polls for the next chunk; None at the end.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<NextChunk> {
        let (chunks, chunk) = match std::mem::replace(&mut self.state, ChunkState::Done) {
            ChunkState::Done => return Poll::Ready(None),
            ChunkState::Idle(mut chunks) if !chunks.is_costly() => {
                let chunk = chunks.next();
                (chunks, chunk)
            }
            ChunkState::Idle(chunks) => return self.poll_pending(self.next_on_pool(chunks), context),
            ChunkState::PendingChunk(pending) => return self.poll_pending(pending, context),
        };
        Poll::Ready(self.finish_chunk(chunks, chunk))
    }

    fn poll_pending(&mut self, mut pending: PendingChunk, context: &mut Context<'_>) -> Poll<NextChunk> {
        match pending.as_mut().poll(context) {
            Poll::Ready(Ok((chunks, chunk))) => Poll::Ready(self.finish_chunk(chunks, chunk)),
            Poll::Ready(Err(error)) => Poll::Ready(Some(Err(Status::internal(error)))),
            Poll::Pending => {
                self.state = ChunkState::PendingChunk(pending);
                Poll::Pending
            }
        }
    }

    /// Encodes the next chunk on the pool.
    fn next_on_pool(&self, chunks: Box<dyn ChunkSource>) -> PendingChunk {
        let (pool, flow) = (Arc::clone(&self.producer.pool), self.producer.flow);
        let work = async move {
            let mut chunks = chunks;
            let chunk = chunks.next();
            (chunks, chunk)
        };
        Box::pin(async move { pool.run(flow, work).await })
    }

    /// Counts a chunk as unsent and keeps `chunks` for the next one. The end or an error drops `chunks`.
    fn finish_chunk(&mut self, chunks: Box<dyn ChunkSource>, chunk: NextChunk) -> NextChunk {
        match chunk {
            Some(Ok(bytes)) => {
                self.unsent.resize(chunks.held_bytes());
                self.state = ChunkState::Idle(chunks);
                Some(Ok(self.producer.count(bytes)))
            }
            end => {
                self.unsent.resize(0);
                self.held_version = None;
                end
            }
        }
    }
}

#[cfg(test)]
impl ChunkProducer {
    /// Returns a producer with a pool of one thread.
    pub(crate) fn for_tests() -> Self {
        let pool = WorkPool::start(1).unwrap();
        ChunkProducer::new(Arc::new(pool), 1, crate::shares::Shares::new().share_of("a"), Arc::default())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use http_body::Frame;

    use super::*;

    /// A document that records the threads that encode its chunks.
    struct CostlySource(Vec<&'static str>, Arc<parking_lot::Mutex<Vec<String>>>);

    impl Iterator for CostlySource {
        type Item = Result<Bytes, Status>;

        fn next(&mut self) -> NextChunk {
            self.1.lock().push(std::thread::current().name().unwrap_or_default().to_owned());
            self.0.pop().map(|text| Ok(Bytes::from(text)))
        }
    }

    impl ChunkSource for CostlySource {
        fn is_costly(&self) -> bool {
            true
        }

        fn held_bytes(&self) -> usize {
            1000 * self.0.len()
        }
    }

    async fn next(response_chunks: &mut ResponseChunks) -> NextChunk {
        std::future::poll_fn(|context| response_chunks.poll_next(context)).await
    }

    #[tokio::test]
    async fn costly_chunks_run_on_worker_threads_and_count_until_dropped() {
        let producer = ChunkProducer::for_tests();
        let unsent = || producer.counters.connection.load(Ordering::Relaxed);
        let threads = Arc::default();
        let mut response_chunks = ResponseChunks::new(
            Box::new(CostlySource(vec!["one", "two"], Arc::clone(&threads))),
            producer.clone(),
        );
        assert_eq!(unsent(), 2000);
        let first = next(&mut response_chunks).await.unwrap().unwrap();
        assert_eq!((&first[..], unsent()), (&b"two"[..], 1003));
        drop(first);
        assert_eq!(unsent(), 1000);
        assert_eq!(next(&mut response_chunks).await.unwrap().unwrap(), "one");
        assert!(next(&mut response_chunks).await.is_none() && next(&mut response_chunks).await.is_none());
        assert_eq!(unsent(), 0);
        assert!(threads.lock().iter().all(|thread| thread == "worker"));
    }

    #[tokio::test]
    async fn large_stream_event_counts_as_unsent_until_dropped() {
        let producer = ChunkProducer::for_tests();
        let events = futures_util::stream::iter(
            [10, MAX_UNCOUNTED_BYTES + 1]
                .map(|size| Ok::<_, std::convert::Infallible>(Frame::data(Bytes::from(vec![b'a'; size])))),
        );
        let mut body = producer.track_stream(Body::stream(http_body_util::StreamBody::new(events)));
        let mut sizes = Vec::new();
        while let Some(frame) = http_body_util::BodyExt::frame(&mut body).await {
            let event = frame.unwrap().into_data().unwrap();
            sizes.push((event.len(), producer.counters.connection.load(Ordering::Relaxed)));
        }
        assert_eq!(sizes, [(10, 0), (MAX_UNCOUNTED_BYTES + 1, MAX_UNCOUNTED_BYTES + 1)]);
        assert_eq!(producer.counters.connection.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn small_responses_are_not_counted_as_unsent() {
        let producer = ChunkProducer::for_tests();
        for (size, counted) in [(MAX_UNCOUNTED_BYTES, 0), (MAX_UNCOUNTED_BYTES + 1, MAX_UNCOUNTED_BYTES + 1)]
        {
            let body = Body::from(vec![0; size]);
            let body = if is_counted(&body) { producer.track(body) } else { body };
            assert_eq!(producer.counters.connection.load(Ordering::Relaxed), counted);
            drop(body);
            assert_eq!(producer.counters.connection.load(Ordering::Relaxed), 0);
        }
    }
}
