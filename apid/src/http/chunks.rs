//! Lists as they are sent: JSON, encoded chunk by chunk when the connection can take more.
//!
//! # Invariants
//!
//! INVARIANT (bounded): a list that is being sent holds one chunk beside what the connection buffers, and the objects of
//! its snapshot, which are the cache's own: however large it is, however many clients list at once, however slowly they
//! read.

use std::collections::VecDeque;
use std::io::Write as _;
use std::sync::Arc;

use apimachinery::status::Status;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::plane::Item;
use crate::verbs::Shown;

/// Room of a chunk: what the allocator still keeps for each thread.
const ROOM: usize = 32 * 1024;

/// Bytes from which on a chunk is sent, so that most objects fit behind them.
const CHUNK: usize = ROOM - ROOM / 8;

/// Pieces of a document, in order; after an error the document is incomplete.
///
/// The caller calls [`Chunks::prepare`] until it returns false, then takes the pieces. Each call of either does a bounded
/// amount of work: at most about one millisecond, or the work of one object.
pub(super) trait Chunks: Iterator<Item = Result<Bytes, Status>> + Send {
    /// Does a part of the work that precedes the head of the response. True: another part remains.
    ///
    /// # Errors
    ///
    /// The document cannot be made: the answer is this Status instead.
    fn prepare(&mut self) -> Result<bool, Status> {
        Ok(false)
    }

    /// The bytes that the iterator holds now, without the objects that the watch cache owns.
    fn held_bytes(&self) -> usize {
        0
    }

    /// Whether the next call of `prepare` or `next` may take more than about 0.2 ms of CPU.
    fn is_costly(&self) -> bool {
        false
    }
}

impl<C: Chunks + ?Sized> Chunks for Box<C> {
    fn prepare(&mut self) -> Result<bool, Status> {
        (**self).prepare()
    }

    fn held_bytes(&self) -> usize {
        (**self).held_bytes()
    }

    fn is_costly(&self) -> bool {
        (**self).is_costly()
    }
}

/// The pieces of an iterator that holds nothing and whose work is small.
struct Cheap<I>(I);

impl<I: Iterator> Iterator for Cheap<I> {
    type Item = I::Item;

    fn next(&mut self) -> Option<I::Item> {
        self.0.next()
    }
}

impl<I: Iterator<Item = Result<Bytes, Status>> + Send> Chunks for Cheap<I> {}

/// The items of an iterator as pieces.
pub(super) fn of<I>(pieces: I) -> Box<dyn Chunks>
where
    I: Iterator<Item = Result<Bytes, Status>> + Send + 'static,
{
    Box::new(Cheap(pieces))
}

/// Items of the stored version, copied without parsing one.
pub(super) struct ListChunks {
    /// What stands before the items; empty once it was given.
    opening: Vec<u8>,
    items: std::vec::IntoIter<Arc<Item>>,
    first: bool,
    closed: bool,
}

impl ListChunks {
    /// `opening` ends where the first item begins; the end closes the array and the list.
    pub(super) fn new(opening: Vec<u8>, items: Vec<Arc<Item>>) -> Self {
        ListChunks { opening, items: items.into_iter(), first: true, closed: false }
    }
}

impl Chunks for ListChunks {
    fn held_bytes(&self) -> usize {
        self.opening.len() + self.items.len() * size_of::<Arc<Item>>()
    }
}

impl Iterator for ListChunks {
    type Item = Result<Bytes, Status>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.closed {
            return None;
        }
        let mut out = std::mem::take(&mut self.opening);
        out.reserve(ROOM.saturating_sub(out.len()));
        while out.len() < CHUNK {
            let Some(item) = self.items.next() else {
                out.extend_from_slice(b"]}");
                self.closed = true;
                break;
            };
            if !std::mem::take(&mut self.first) {
                out.push(b',');
            }
            if let Err(status) = Shown::item(item).write_json(&mut out, false) {
                self.closed = true;
                return Some(Err(status));
            }
        }
        Some(Ok(Bytes::from(out)))
    }
}

/// A document whose beginning was made.
pub(super) enum Begun {
    /// All of it.
    Whole(Bytes),
    /// More than `limit` bytes, and what follows.
    Long(Box<dyn Chunks>),
}

/// Makes a document up to a size.
///
/// # Errors
///
/// Those of its chunks.
pub(super) fn begin(mut chunks: Box<dyn Chunks>, limit: usize) -> Result<Begun, Status> {
    let mut made = VecDeque::new();
    let mut size = 0;
    while size <= limit {
        let Some(chunk) = chunks.next().transpose()? else {
            return Ok(Begun::Whole(joined(made, size)));
        };
        size += chunk.len();
        made.push_back(chunk);
    }
    Ok(Begun::Long(of(made.into_iter().map(Ok).chain(chunks))))
}

/// All of a document.
///
/// # Errors
///
/// Those of its chunks.
pub(super) fn whole(chunks: Box<dyn Chunks>) -> Result<Bytes, Status> {
    let made = chunks.collect::<Result<VecDeque<_>, _>>()?;
    let size = made.iter().map(Bytes::len).sum();
    Ok(joined(made, size))
}

fn joined(mut chunks: VecDeque<Bytes>, size: usize) -> Bytes {
    if chunks.len() <= 1 {
        return chunks.pop_front().unwrap_or_default();
    }
    let mut all = Vec::with_capacity(size);
    chunks.iter().for_each(|chunk| all.extend_from_slice(chunk));
    Bytes::from(all)
}

/// Compresses a document as it is made.
pub(super) struct Gzip {
    chunks: Box<dyn Chunks>,
    /// None at the end.
    encoder: Option<GzEncoder<Vec<u8>>>,
}

impl Gzip {
    /// Of the chunks of a document.
    pub(super) fn new(chunks: Box<dyn Chunks>) -> Self {
        Gzip { chunks, encoder: Some(GzEncoder::new(Vec::new(), Compression::fast())) }
    }
}

impl Chunks for Gzip {
    fn held_bytes(&self) -> usize {
        self.chunks.held_bytes()
    }

    fn is_costly(&self) -> bool {
        true
    }
}

impl Iterator for Gzip {
    type Item = Result<Bytes, Status>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut encoder = self.encoder.take()?;
        let made = loop {
            match self.chunks.next() {
                Some(Ok(chunk)) => {
                    if let Err(error) = encoder.write_all(&chunk) {
                        break Err(error);
                    }
                    if encoder.get_ref().len() >= CHUNK {
                        let made = std::mem::take(encoder.get_mut());
                        self.encoder = Some(encoder);
                        break Ok(made);
                    }
                }
                Some(Err(status)) => return Some(Err(status)),
                None => break encoder.finish(),
            }
        };
        Some(made.map(Bytes::from).map_err(Status::internal))
    }
}

/// A document that is made already, part by part: each is a copy, so that the whole is not held by what is still buffered
/// of it.
pub(super) fn copied(document: Bytes) -> Box<dyn Chunks> {
    let mut rest = document;
    of(std::iter::from_fn(move || {
        let part = rest.split_to(rest.len().min(ROOM));
        (!part.is_empty()).then(|| Ok(Bytes::copy_from_slice(&part)))
    }))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::GzDecoder;

    use super::*;

    fn chunks(parts: &[usize]) -> Box<dyn Chunks> {
        let parts = parts.to_vec();
        of(parts.into_iter().enumerate().map(|(i, size)| {
            let letter = b'a' + u8::try_from(i).unwrap();
            Ok(Bytes::from(vec![letter; size]))
        }))
    }

    #[test]
    fn a_document_is_whole_up_to_a_size() {
        for (parts, limit, is_whole) in [
            (&[][..], 10, true),
            (&[10], 10, true),
            (&[4, 6], 10, true),
            (&[4, 7], 10, false),
            (&[11], 10, false),
            (&[11, 1, 1], 10, false),
        ] {
            let all = whole(chunks(parts)).unwrap();
            match begin(chunks(parts), limit).unwrap() {
                Begun::Whole(bytes) => assert_eq!((bytes, true), (all, is_whole), "{parts:?}"),
                Begun::Long(rest) => assert_eq!((whole(rest).unwrap(), false), (all, is_whole), "{parts:?}"),
            }
        }
    }

    #[test]
    fn parts_of_a_document_are_copies() {
        for size in [0, 1, ROOM, ROOM + 1, 5 * ROOM] {
            let document = Bytes::from((0..size).map(|i| (i % 251) as u8).collect::<Vec<_>>());
            let mut parts = Vec::new();
            for part in copied(document.clone()) {
                let part = part.unwrap();
                assert!(part.is_unique() && part.len() <= ROOM);
                parts.extend_from_slice(&part);
            }
            assert_eq!(parts, document);
        }
    }

    #[test]
    fn what_is_compressed_on_the_way_is_the_document() {
        let parts = [CHUNK, 3 * CHUNK, 1, 0, 100 * CHUNK];
        let compressed = whole(Box::new(Gzip::new(chunks(&parts)))).unwrap();
        let mut text = Vec::new();
        GzDecoder::new(&compressed[..]).read_to_end(&mut text).unwrap();
        assert!(text == whole(chunks(&parts)).unwrap());
    }

    #[test]
    fn an_error_ends_a_document() {
        let failing =
            || -> Box<dyn Chunks> { of(chunks(&[CHUNK, 5]).chain([Err(Status::internal("unreadable"))])) };
        assert!(whole(failing()).is_err());
        assert!(begin(failing(), 10 * CHUNK).is_err());
        let mut compressed = Gzip::new(failing());
        assert!(compressed.by_ref().any(|chunk| chunk.is_err()));
        assert!(compressed.next().is_none());
    }
}
