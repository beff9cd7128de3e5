//! The journal files of fjall: batches of rows in write order.
//!
//! # Contract
//!
//! [`Batches`] reads batches from an offset and ends at an incomplete batch, a failed checksum, or the zeros
//! of a preallocated journal. [`JournalEnd::discard_torn_batch`] truncates the newest journal at that end.
//! [`find_resume_offset`] finds the offset after a damage at which reading can continue.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

use super::super::ignore_not_found;

const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;
const TRAILER: &[u8; 4] = b"FJL\x03";
/// Value type of an existing row.
const VALUE: u8 = 0;
/// Length of a batch header in bytes.
const HEADER_BYTES: usize = 1 + 4 + 8;
/// Maximum number of bytes that [`find_resume_offset`] reads, as a multiple of the number of bytes to search.
/// Without this limit, crafted bytes could make the search very slow.
const RESUME_WORK_FACTOR: usize = 16;

/// The journals of a database, oldest first.
pub(in super::super) fn journals(database: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    super::numbered_entries(database, ".jnl")
}

/// The end of the last complete batch of the newest journal.
pub(in super::super) struct JournalEnd {
    path: PathBuf,
    offset: u64,
    size: u64,
}

impl JournalEnd {
    /// Whether bytes of an incomplete batch follow the last complete batch.
    pub(in super::super) fn is_torn(&self) -> bool {
        self.size > self.offset
    }

    /// Truncates the journal after its last complete batch.
    ///
    /// A power cut can lose any sector of an unsynced batch. fjall discards a batch without its end, but does
    /// not open a journal with a wrong checksum.
    ///
    /// The caller has verified that the complete batches hold all acknowledged writes.
    pub(in super::super) fn discard_torn_batch(&self) -> io::Result<()> {
        if self.is_torn() {
            let file = File::options().write(true).open(&self.path)?;
            file.set_len(self.offset)?;
            file.sync_all()?;
        }
        Ok(())
    }
}

/// The end of the newest journal of a store without acknowledged writes; None without a journal.
pub(in super::super) fn unacknowledged_end(database: &Path) -> io::Result<Option<JournalEnd>> {
    let mut journals = ignore_not_found(journals(database))?.unwrap_or_default();
    let Some((_, newest)) = journals.pop() else { return Ok(None) };
    let mut batches = Batches::open(&newest, 0)?;
    while batches.next()?.is_some() {}
    Ok(Some(batches.into_journal_end(newest)))
}

/// An atomic batch of rows.
pub(in super::super) struct Batch {
    /// The sequence number that fjall assigned.
    pub(in super::super) seqno: u64,
    /// The rows of the batch.
    pub(in super::super) items: Vec<JournalRow>,
}

/// A written or removed row.
pub(in super::super) struct JournalRow {
    /// The number of the keyspace.
    pub(in super::super) keyspace: u64,
    /// The key in the keyspace.
    pub(in super::super) key: Vec<u8>,
    /// The value; None is a removal.
    pub(in super::super) value: Option<Value>,
}

/// The bytes of a row as stored in the journal.
pub(in super::super) struct Value {
    pub(in super::super) bytes: Vec<u8>,
    pub(in super::super) compressed: bool,
    /// Length of the decompressed bytes.
    length: usize,
}

impl Value {
    /// The original bytes; None when decompression fails.
    pub(in super::super) fn decompressed(self) -> Option<Vec<u8>> {
        if !self.compressed {
            return Some(self.bytes);
        }
        lz4_flex::decompress(&self.bytes, self.length).ok()
    }
}

/// A reader of batches; see the module documentation.
pub(in super::super) struct Batches<R = BufReader<File>> {
    reader: R,
    /// Bytes that are not read yet.
    unread: u64,
    /// End offset of the last complete batch.
    end: u64,
    /// Size of the file in bytes.
    size: u64,
    /// Row bytes of the current batch, for its checksum.
    raw: Vec<u8>,
}

impl Batches {
    /// Opens a journal. Reading begins at offset `from`, which must be 0 or the start of a batch.
    pub(in super::super) fn open(path: &Path, from: u64) -> io::Result<Batches> {
        let mut file = File::open(path)?;
        let size = file.metadata()?.len();
        file.seek(SeekFrom::Start(from))?;
        let reader = BufReader::with_capacity(64 << 10, file);
        Ok(Batches { reader, unread: size.saturating_sub(from), end: from, size, raw: Vec::new() })
    }
}

impl<'a> Batches<&'a [u8]> {
    fn from_bytes(bytes: &'a [u8]) -> Self {
        let size = bytes.len() as u64;
        Batches { reader: bytes, unread: size, end: 0, size, raw: Vec::new() }
    }
}

impl<R: Read> Batches<R> {
    /// Reads the next batch; None at the end of the readable part.
    pub(in super::super) fn next(&mut self) -> io::Result<Option<Batch>> {
        match self.read_batch() {
            Ok(batch) => {
                self.end = self.size - self.unread;
                Ok(Some(batch))
            }
            Err(ReadStop::Ended) => Ok(None),
            Err(ReadStop::Failed(error)) => Err(error),
        }
    }

    /// End offset of the last complete batch. Valid only after the end of reading.
    pub(in super::super) fn end(&self) -> u64 {
        self.end
    }

    /// The end of this journal, with `path` as the path of its file. Valid only after the end of reading.
    pub(in super::super) fn into_journal_end(self, path: PathBuf) -> JournalEnd {
        JournalEnd { path, offset: self.end, size: self.size }
    }

    fn read_batch(&mut self) -> Result<Batch, ReadStop> {
        let [START] = self.read_array::<1>()? else { return Err(ReadStop::Ended) };
        let count = u32::from_le_bytes(self.read_array()?);
        let seqno = u64::from_le_bytes(self.read_array()?);
        self.raw.clear();
        let mut hash = Xxh3::new();
        let mut items = Vec::new();
        for _ in 0..count {
            items.extend(self.read_row()?);
            hash.update(&self.raw);
            self.raw.clear();
        }
        let [END] = self.read_array::<1>()? else { return Err(ReadStop::Ended) };
        let checksum = u64::from_le_bytes(self.read_array()?);
        if self.read_array::<4>()? != *TRAILER || hash.digest() != checksum {
            return Err(ReadStop::Ended);
        }
        Ok(Batch { seqno, items })
    }

    /// Reads one row; None is the marker of a cleared keyspace, which this engine never writes.
    fn read_row(&mut self) -> Result<Option<JournalRow>, ReadStop> {
        match self.read_array::<1>()? {
            [ITEM] => {}
            [CLEAR] => {
                self.read_array::<8>()?;
                return Ok(None);
            }
            _ => return Err(ReadStop::Ended),
        }
        let [kind, compression] = self.read_array()?;
        let keyspace = u64::from_le_bytes(self.read_array()?);
        let key_length = u16::from_le_bytes(self.read_array()?);
        let length = u32::from_le_bytes(self.read_array()?) as usize;
        let stored_length = u32::from_le_bytes(self.read_array()?);
        let key = self.read_bytes(key_length.into())?;
        let bytes = self.read_bytes(stored_length.into())?;
        let value = (kind == VALUE).then_some(Value { bytes, compressed: compression != 0, length });
        Ok(Some(JournalRow { keyspace, key, value }))
    }

    fn read_array<const N: usize>(&mut self) -> Result<[u8; N], ReadStop> {
        let mut bytes = [0; N];
        self.reader.read_exact(&mut bytes)?;
        self.unread = self.unread.saturating_sub(N as u64);
        self.raw.extend_from_slice(&bytes);
        Ok(bytes)
    }

    fn read_bytes(&mut self, length: u64) -> Result<Vec<u8>, ReadStop> {
        if length > self.unread {
            return Err(ReadStop::Ended);
        }
        let mut bytes = Vec::new();
        (&mut self.reader).take(length).read_to_end(&mut bytes)?;
        if bytes.len() as u64 != length {
            return Err(ReadStop::Ended);
        }
        self.unread -= length;
        self.raw.extend_from_slice(&bytes);
        Ok(bytes)
    }
}

/// The reason why reading a batch stopped.
enum ReadStop {
    /// The bytes are no complete batch.
    Ended,
    /// The file cannot be read.
    Failed(io::Error),
}

impl From<io::Error> for ReadStop {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::UnexpectedEof { ReadStop::Ended } else { ReadStop::Failed(error) }
    }
}

/// Whether a file holds non-zero bytes after an offset.
pub(in super::super) fn has_content(path: &Path, from: u64) -> io::Result<bool> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(from))?;
    let mut buffer = vec![0; 64 << 10];
    loop {
        let length = file.read(&mut buffer)?;
        let read = buffer.get(..length).unwrap_or_default();
        if read.iter().any(|byte| *byte != 0) {
            return Ok(true);
        }
        if length == 0 {
            return Ok(false);
        }
    }
}

/// Finds an offset after the offset `damage` from which all batches are readable; None when there is none.
///
/// From a valid offset, complete batches follow each other up to the end of the written bytes. Objects may
/// hold bytes that look like batches with valid checksums. Such an offset is not valid: the rest of the batch
/// that wrote the object follows, and is no batch. Batches between two damaged parts are not found.
pub(in super::super) fn find_resume_offset(path: &Path, damage: u64) -> io::Result<Option<u64>> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(damage))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let written = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    bytes.truncate(written);
    let mut work_left = written.saturating_mul(RESUME_WORK_FACTOR);
    let mut at = 1;
    while let Some(begin) = next_start(&bytes, at) {
        let mut batches = Batches::from_bytes(bytes.get(begin..).unwrap_or_default());
        while batches.next()?.is_some() {}
        let read = usize::try_from(batches.end()).unwrap_or(usize::MAX);
        if read > 0 && begin.saturating_add(read) == written {
            return Ok(Some(damage + begin as u64));
        }
        let scanned = batches.size - batches.unread;
        let Some(remaining) = work_left.checked_sub(usize::try_from(scanned).unwrap_or(usize::MAX)) else {
            break;
        };
        work_left = remaining;
        // Reading from any of the batches just read would end at the same offset: continue after them.
        at = begin.saturating_add(read.max(1));
    }
    Ok(None)
}

/// The next offset at which a non-empty batch may begin.
fn next_start(bytes: &[u8], from: usize) -> Option<usize> {
    let may_begin_batch = |begin: &[u8]| {
        let [START, rest @ ..] = begin else { return false };
        let Some([ITEM, _, compression, keyspace @ ..]) = rest.get(HEADER_BYTES - 1..) else { return false };
        // Keyspace numbers are small.
        *compression < 2 && keyspace.get(1..8).is_some_and(|high| high.iter().all(|byte| *byte == 0))
    };
    (from..bytes.len()).find(|at| bytes.get(*at..).is_some_and(may_begin_batch))
}
