//! Chunked documents: each chunk is encoded when the connection can take more.
//!
//! # Invariants
//!
//! INVARIANT (bounded): a response that is being sent holds one chunk and the objects of a list, whatever its size. The
//! source also holds the bytes that [`ChunkSource::held_bytes`] reports and the version that
//! [`ChunkSource::held_version`] returns. The watch cache owns the objects of a list until an update or delete
//! supersedes them. The cache limits superseded objects: it revokes the lease that [`ChunkSource::take_lease`] returns.

use std::collections::VecDeque;
use std::io::Write as _;
use std::sync::Arc;

use apimachinery::status::Status;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use storage::cache::ItemLease;

/// Capacity of a chunk, in bytes: the largest size that the allocator caches per thread.
pub(crate) const CHUNK_CAPACITY: usize = 32 * 1024;

/// Fill level from which a chunk is sent, in bytes; most objects fit into the remaining capacity.
pub(crate) const CHUNK_TARGET: usize = CHUNK_CAPACITY - CHUNK_CAPACITY / 8;

/// A source of the chunks of a document, in order. After an error the document is incomplete.
///
/// The caller calls [`ChunkSource::prepare`] once, then takes the chunks. Each call of `next` does a bounded amount of
/// work: at most about one millisecond, or the work of one object. The response gives way after each chunk.
pub(crate) trait ChunkSource: Iterator<Item = Result<Bytes, Status>> + Send {
    /// Does the work that precedes the response head. Later calls have no effect.
    ///
    /// # Errors
    ///
    /// Encoding failed. The response is this Status instead of the document.
    fn prepare(&mut self) -> Result<(), Status> {
        Ok(())
    }

    /// Bytes that the iterator holds now, without objects that come from the watch cache.
    fn held_bytes(&self) -> usize {
        0
    }

    /// The stored bytes of a large object from the watch cache that the source holds until its end.
    fn held_version(&self) -> Option<Bytes> {
        None
    }

    /// Returns the lease on the objects of a list; None after the first call. The caller drops the source when the watch
    /// cache revokes the lease.
    fn take_lease(&mut self) -> Option<ItemLease> {
        None
    }

    /// Whether the next call of `prepare` or `next` may take more than about 0.2 ms of CPU.
    fn is_costly(&self) -> bool {
        false
    }

    /// Lower bound of the document size in bytes, as known before the first chunk.
    fn min_size(&self) -> usize {
        self.exact_size().unwrap_or_default()
    }

    /// Exact document size in bytes, if known after preparation and before the first chunk.
    fn exact_size(&self) -> Option<usize> {
        None
    }
}

/// A source over an iterator that holds no memory and does little work.
#[cfg(test)]
struct IterSource<I>(I);

#[cfg(test)]
impl<I: Iterator> Iterator for IterSource<I> {
    type Item = I::Item;

    fn next(&mut self) -> Option<I::Item> {
        self.0.next()
    }
}

#[cfg(test)]
impl<I: Iterator<Item = Result<Bytes, Status>> + Send> ChunkSource for IterSource<I> {}

/// Returns a chunk source that takes its chunks from an iterator.
#[cfg(test)]
pub(crate) fn from_iterator<I>(source: I) -> Box<dyn ChunkSource>
where
    I: Iterator<Item = Result<Bytes, Status>> + Send + 'static,
{
    Box::new(IterSource(source))
}

/// A document whose first chunks are encoded before the response head is sent.
///
/// The head contains the size of a small document, and tells whether a document is compressed.
pub(crate) struct BufferedChunks {
    buffered: VecDeque<Bytes>,
    size: usize,
    exact_size: Option<usize>,
    ended: bool,
    chunks: Box<dyn ChunkSource>,
}

impl BufferedChunks {
    /// Wraps an unstarted document.
    pub(crate) fn new(chunks: Box<dyn ChunkSource>) -> Self {
        BufferedChunks { buffered: VecDeque::new(), size: 0, exact_size: None, ended: false, chunks }
    }

    /// Prepares the document and encodes its first `limit` bytes. Later calls have no effect.
    ///
    /// # Errors
    ///
    /// Errors of the document.
    pub(crate) fn prepare_up_to(&mut self, limit: usize) -> Result<(), Status> {
        self.chunks.prepare()?;
        if self.size == 0 {
            self.exact_size = self.chunks.exact_size();
        }
        while !self.ended && self.size.max(self.chunks.min_size()) <= limit {
            match self.chunks.next().transpose()? {
                Some(chunk) => {
                    self.size += chunk.len();
                    self.buffered.push_back(chunk);
                }
                None => self.ended = true,
            }
        }
        Ok(())
    }

    /// The size of the document in bytes, if it is known.
    pub(crate) fn known_size(&self) -> Option<usize> {
        if self.ended { Some(self.size) } else { self.exact_size }
    }

    /// Returns the chunks encoded so far in one buffer.
    pub(crate) fn into_buffer(self) -> Bytes {
        join(self.buffered, self.size)
    }
}

impl Iterator for BufferedChunks {
    type Item = Result<Bytes, Status>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.buffered.pop_front() {
            Some(chunk) => Some(Ok(chunk)),
            None if self.ended => None,
            None => self.chunks.next(),
        }
    }
}

impl ChunkSource for BufferedChunks {
    fn held_bytes(&self) -> usize {
        self.buffered.iter().map(Bytes::len).sum::<usize>() + self.chunks.held_bytes()
    }

    fn held_version(&self) -> Option<Bytes> {
        self.chunks.held_version()
    }

    fn take_lease(&mut self) -> Option<ItemLease> {
        self.chunks.take_lease()
    }

    fn is_costly(&self) -> bool {
        self.buffered.is_empty() && !self.ended && self.chunks.is_costly()
    }
}

/// Returns a whole document in one buffer.
///
/// # Errors
///
/// Errors of its chunks.
#[cfg(test)]
pub(crate) fn collect_document(chunks: Box<dyn ChunkSource>) -> Result<Bytes, Status> {
    let chunks = chunks.collect::<Result<VecDeque<_>, _>>()?;
    let size = chunks.iter().map(Bytes::len).sum();
    Ok(join(chunks, size))
}

fn join(mut chunks: VecDeque<Bytes>, size: usize) -> Bytes {
    if chunks.len() <= 1 {
        return chunks.pop_front().unwrap_or_default();
    }
    let mut document = Vec::with_capacity(size);
    chunks.iter().for_each(|chunk| document.extend_from_slice(chunk));
    Bytes::from(document)
}

/// Maximum input that one call of [`Gzip::next`] compresses, in bytes.
const MAX_INPUT_PER_CALL: usize = 64 * 1024;

/// Memory of a compressor, in bytes: its window, hash chains and buffers.
const COMPRESSOR_BYTES: usize = 320 * 1024;

/// Compresses a document chunk by chunk.
pub(crate) struct Gzip {
    chunks: Box<dyn ChunkSource>,
    /// The remaining input of the chunk that is being compressed.
    input: Bytes,
    compressor: Compressor,
}

enum Compressor {
    /// The compressor is created on first use.
    Unused,
    Running(GzEncoder<Vec<u8>>),
    Ended,
}

impl Gzip {
    /// Wraps the source of a document.
    pub(crate) fn new(chunks: Box<dyn ChunkSource>) -> Self {
        Gzip { chunks, input: Bytes::new(), compressor: Compressor::Unused }
    }

    /// Compresses a bounded part of the document. Returns true at the end of the document.
    fn compress(&mut self, encoder: &mut GzEncoder<Vec<u8>>) -> Result<bool, Status> {
        let mut remaining = MAX_INPUT_PER_CALL;
        while remaining > 0 && encoder.get_ref().len() < CHUNK_TARGET {
            if self.input.is_empty() {
                match self.chunks.next().transpose()? {
                    Some(chunk) => self.input = chunk,
                    None => return Ok(true),
                }
            }
            let part = self.input.split_to(self.input.len().min(remaining));
            encoder.write_all(&part).map_err(Status::internal)?;
            remaining -= part.len();
        }
        if encoder.get_ref().is_empty() {
            encoder.flush().map_err(Status::internal)?;
        }
        Ok(false)
    }
}

impl Iterator for Gzip {
    type Item = Result<Bytes, Status>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut encoder = match std::mem::replace(&mut self.compressor, Compressor::Ended) {
            Compressor::Unused => GzEncoder::new(Vec::new(), Compression::fast()),
            Compressor::Running(encoder) => encoder,
            Compressor::Ended => return None,
        };
        let output = match self.compress(&mut encoder) {
            Ok(true) => encoder.finish().map_err(Status::internal),
            Ok(false) => {
                let output = std::mem::take(encoder.get_mut());
                self.compressor = Compressor::Running(encoder);
                Ok(output)
            }
            Err(status) => Err(status),
        };
        Some(output.map(Bytes::from))
    }
}

impl ChunkSource for Gzip {
    fn prepare(&mut self) -> Result<(), Status> {
        self.chunks.prepare()
    }

    fn held_bytes(&self) -> usize {
        let compressor = if matches!(self.compressor, Compressor::Running(_)) { COMPRESSOR_BYTES } else { 0 };
        self.chunks.held_bytes() + self.input.len() + compressor
    }

    fn held_version(&self) -> Option<Bytes> {
        self.chunks.held_version()
    }

    fn take_lease(&mut self) -> Option<ItemLease> {
        self.chunks.take_lease()
    }

    fn is_costly(&self) -> bool {
        !matches!(self.compressor, Compressor::Ended)
    }
}

/// A document in one buffer.
struct Document {
    rest: Bytes,
    size: usize,
    /// Whether other responses share the buffer.
    is_shared: bool,
}

impl Iterator for Document {
    type Item = Result<Bytes, Status>;

    fn next(&mut self) -> Option<Self::Item> {
        let part = self.rest.split_to(self.rest.len().min(CHUNK_CAPACITY));
        if part.is_empty() {
            return None;
        }
        Some(Ok(if self.is_shared { part } else { Bytes::copy_from_slice(&part) }))
    }
}

impl ChunkSource for Document {
    fn held_bytes(&self) -> usize {
        if self.is_shared || self.rest.is_empty() { 0 } else { self.size }
    }

    fn exact_size(&self) -> Option<usize> {
        Some(self.size)
    }
}

/// A document of one response.
///
/// Its chunks are copies, so that a buffered chunk does not keep the document in memory.
pub(crate) fn copying_source(document: Bytes) -> Box<dyn ChunkSource> {
    Box::new(Document { size: document.len(), rest: document, is_shared: false })
}

/// A document that many responses share. Its chunks are slices of its buffer.
pub(crate) fn shared_source(document: Bytes) -> Box<dyn ChunkSource> {
    Box::new(Document { size: document.len(), rest: document, is_shared: true })
}

/// A document in segments that many responses share.
struct Segments {
    segments: Arc<[Bytes]>,
    /// Index of the segment after `rest`.
    next: usize,
    rest: Bytes,
    size: usize,
}

impl Iterator for Segments {
    type Item = Result<Bytes, Status>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.len() >= CHUNK_CAPACITY {
            return Some(Ok(self.rest.split_to(CHUNK_CAPACITY)));
        }
        let mut chunk = Vec::with_capacity(CHUNK_CAPACITY);
        while chunk.len() < CHUNK_CAPACITY {
            if self.rest.is_empty() {
                let Some(segment) = self.segments.get(self.next) else { break };
                self.rest = segment.clone();
                self.next += 1;
            }
            let part = self.rest.split_to(self.rest.len().min(CHUNK_CAPACITY - chunk.len()));
            chunk.extend_from_slice(&part);
        }
        (!chunk.is_empty()).then(|| Ok(chunk.into()))
    }
}

impl ChunkSource for Segments {
    fn exact_size(&self) -> Option<usize> {
        Some(self.size)
    }
}

/// A document in segments that many responses share. Its chunks are slices or copies of the segments.
pub(crate) fn segment_source(segments: &Arc<[Bytes]>) -> Box<dyn ChunkSource> {
    let size = segments.iter().map(Bytes::len).sum();
    Box::new(Segments { segments: Arc::clone(segments), next: 0, rest: Bytes::new(), size })
}

/// A document that is encoded as a whole during preparation.
pub(crate) struct LazyDocument<F> {
    encode: Option<F>,
    document: Option<Box<dyn ChunkSource>>,
}

impl<F: FnOnce() -> Result<Vec<u8>, Status>> LazyDocument<F> {
    /// Creates a document that `encode` encodes during preparation.
    pub(crate) fn new(encode: F) -> Self {
        LazyDocument { encode: Some(encode), document: None }
    }
}

impl<F: FnOnce() -> Result<Vec<u8>, Status> + Send> Iterator for LazyDocument<F> {
    type Item = Result<Bytes, Status>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.prepare() {
            Ok(()) => self.document.as_mut()?.next(),
            Err(status) => Some(Err(status)),
        }
    }
}

impl<F: FnOnce() -> Result<Vec<u8>, Status> + Send> ChunkSource for LazyDocument<F> {
    fn prepare(&mut self) -> Result<(), Status> {
        if let Some(encode) = self.encode.take() {
            self.document = Some(copying_source(encode()?.into()));
        }
        Ok(())
    }

    fn held_bytes(&self) -> usize {
        self.document.as_ref().map_or(0, |document| document.held_bytes())
    }

    fn is_costly(&self) -> bool {
        self.encode.is_some()
    }

    fn exact_size(&self) -> Option<usize> {
        self.document.as_ref().and_then(|document| document.exact_size())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use flate2::read::GzDecoder;

    use super::*;

    fn chunks(parts: &[usize]) -> Box<dyn ChunkSource> {
        let parts = parts.to_vec();
        from_iterator(parts.into_iter().enumerate().map(|(i, size)| {
            let letter = b'a' + u8::try_from(i).unwrap();
            Ok(Bytes::from(vec![letter; size]))
        }))
    }

    fn begin(chunks: Box<dyn ChunkSource>, limit: usize) -> Result<BufferedChunks, Status> {
        let mut buffered = BufferedChunks::new(chunks);
        buffered.prepare_up_to(limit)?;
        Ok(buffered)
    }

    #[test]
    fn document_up_to_limit_is_buffered_whole() {
        for (parts, limit, is_whole) in [
            (&[][..], 10, true),
            (&[10], 10, true),
            (&[4, 6], 10, true),
            (&[4, 7], 10, false),
            (&[11], 10, false),
            (&[11, 1, 1], 10, false),
        ] {
            let all = collect_document(chunks(parts)).unwrap();
            let buffered = begin(chunks(parts), limit).unwrap();
            assert_eq!(buffered.known_size(), is_whole.then_some(all.len()), "{parts:?}");
            assert!(!buffered.is_costly() && buffered.held_bytes() <= all.len());
            if is_whole {
                assert_eq!(buffered.into_buffer(), all, "{parts:?}");
            } else {
                assert_eq!(collect_document(Box::new(buffered)).unwrap(), all, "{parts:?}");
            }
        }
    }

    #[test]
    fn document_with_buffered_chunks_is_not_costly() {
        let mut buffered = BufferedChunks::new(Box::new(Gzip::new(chunks(&[2 * MAX_INPUT_PER_CALL]))));
        assert!(buffered.is_costly());
        buffered.prepare_up_to(1).unwrap();
        assert!(!buffered.is_costly(), "the next chunk is made");
        while let Some(chunk) = buffered.buffered.pop_front() {
            assert!(!chunk.is_empty());
        }
        assert!(buffered.is_costly());
    }

    #[test]
    fn document_with_min_size_above_limit_is_not_buffered() {
        let document = Bytes::from(vec![b'a'; 100]);
        for (limit, made) in [(99, 0), (100, 100)] {
            let buffered = begin(shared_source(document.clone()), limit).unwrap();
            assert_eq!(buffered.held_bytes(), made, "{limit}");
            assert_eq!(collect_document(Box::new(buffered)).unwrap(), document);
        }
    }

    #[test]
    fn shared_document_is_sent_without_copies() {
        let document = Bytes::from(vec![b'a'; 3 * CHUNK_CAPACITY]);
        let mut source = shared_source(document.clone());
        assert_eq!(source.held_bytes(), 0);
        let second = source.nth(1).unwrap().unwrap();
        assert_eq!(second.as_ptr(), document[CHUNK_CAPACITY..].as_ptr());
    }

    #[test]
    fn segments_are_sent_in_whole_chunks() {
        let sizes = [0, 10, CHUNK_CAPACITY, 3, 0, 2 * CHUNK_CAPACITY + 1, 7];
        let parts: Arc<[Bytes]> = sizes.iter().map(|size| Bytes::from(vec![b'a'; *size])).collect();
        let source = segment_source(&parts);
        let total = sizes.iter().sum();
        assert_eq!((source.held_bytes(), source.exact_size()), (0, Some(total)));
        let chunks: Vec<usize> = source.map(|chunk| chunk.unwrap().len()).collect();
        assert_eq!(chunks, [CHUNK_CAPACITY, CHUNK_CAPACITY, CHUNK_CAPACITY, 21]);
        assert_eq!(chunks.iter().sum::<usize>(), total);
    }

    #[test]
    fn segment_larger_than_a_chunk_is_sent_without_copies() {
        let parts: Arc<[Bytes]> = [1, 3 * CHUNK_CAPACITY].map(|size| Bytes::from(vec![b'a'; size])).into();
        let second = segment_source(&parts).nth(1).unwrap().unwrap();
        assert_eq!(second.as_ptr(), parts[1][CHUNK_CAPACITY - 1..].as_ptr());
    }

    #[test]
    fn lazy_document_is_encoded_during_preparation() {
        let mut source = LazyDocument::new(|| Ok(vec![b'a'; 3 * CHUNK_CAPACITY]));
        assert!(source.is_costly() && source.held_bytes() == 0);
        source.prepare().unwrap();
        assert!(!source.is_costly() && source.held_bytes() == 3 * CHUNK_CAPACITY);
        assert_eq!(collect_document(Box::new(source)).unwrap().len(), 3 * CHUNK_CAPACITY);
        let mut failing = LazyDocument::new(|| Err(Status::internal("unreadable")));
        assert!(failing.prepare().is_err() && failing.next().is_none());
    }

    #[test]
    fn compressor_input_is_bounded_and_chunks_are_not_empty() {
        // Each output byte stands for many input bytes.
        let taken = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&taken);
        let parts = (0..300).map(move |_| {
            counter.fetch_add(CHUNK_TARGET, Ordering::Relaxed);
            Ok(Bytes::from(vec![b'a'; CHUNK_TARGET]))
        });
        let mut compressed = Gzip::new(from_iterator(parts));
        assert_eq!(compressed.held_bytes(), 0, "the compressor is created on first use");
        let (mut before, mut out) = (0, Vec::new());
        for chunk in compressed.by_ref() {
            let chunk = chunk.unwrap();
            assert!(!chunk.is_empty());
            out.extend_from_slice(&chunk);
            let now = taken.load(Ordering::Relaxed);
            assert!(now - before <= MAX_INPUT_PER_CALL + CHUNK_TARGET, "{now}");
            before = now;
        }
        assert_eq!(compressed.held_bytes(), 0);
        let mut text = Vec::new();
        GzDecoder::new(&out[..]).read_to_end(&mut text).unwrap();
        assert_eq!(text.len(), 300 * CHUNK_TARGET);
    }

    #[test]
    fn chunks_of_unshared_document_are_copies() {
        for size in [0, 1, CHUNK_CAPACITY, CHUNK_CAPACITY + 1, 5 * CHUNK_CAPACITY] {
            let document = Bytes::from((0..size).map(|i| (i % 251) as u8).collect::<Vec<_>>());
            let mut parts = Vec::new();
            for part in copying_source(document.clone()) {
                let part = part.unwrap();
                assert!(part.is_unique() && part.len() <= CHUNK_CAPACITY);
                parts.extend_from_slice(&part);
            }
            assert_eq!(parts, document);
        }
    }

    #[test]
    fn compressed_document_decompresses_to_original() {
        let parts = [CHUNK_TARGET, 3 * CHUNK_TARGET, 1, 0, 100 * CHUNK_TARGET];
        let compressed = collect_document(Box::new(Gzip::new(chunks(&parts)))).unwrap();
        let mut text = Vec::new();
        GzDecoder::new(&compressed[..]).read_to_end(&mut text).unwrap();
        assert!(text == collect_document(chunks(&parts)).unwrap());
    }

    #[test]
    fn encoding_error_ends_document() {
        let failing_source = || -> Box<dyn ChunkSource> {
            from_iterator(chunks(&[CHUNK_TARGET, 5]).chain([Err(Status::internal("unreadable"))]))
        };
        assert!(collect_document(failing_source()).is_err());
        assert!(begin(failing_source(), 10 * CHUNK_TARGET).is_err());
        let mut compressed = Gzip::new(failing_source());
        assert!(compressed.by_ref().any(|chunk| chunk.is_err()));
        assert!(compressed.next().is_none());
    }
}
