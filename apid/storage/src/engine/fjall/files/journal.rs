//! Journals: batches of rows in the order in which they were written.
//!
//! # Contract
//!
//! [`Batches`] gives what can be read from a place in a journal on and ends where fjall would cut it off: at a batch that
//! is not whole or fails its checksum, or at the zeros that a journal is made of before it is written. [`resume`] finds
//! where behind such a place reading can go on.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;
const TRAILER: &[u8; 4] = b"FJL\x03";
/// Value types of a row that is there.
const VALUE: u8 = 0;
/// Bytes of the start of a batch.
const HEAD: usize = 1 + 4 + 8;
/// How often [`resume`] reads the bytes that it searches: bytes that are made to look like batches cannot hold it up.
const EFFORT: usize = 16;

/// The journals of a database, oldest first.
pub(in super::super) fn journals(database: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    super::numbered(database, ".jnl")
}

/// What was written at once.
pub(in super::super) struct Batch {
    /// fjall's number of it.
    pub(in super::super) seqno: u64,
    /// Its rows.
    pub(in super::super) items: Vec<Item>,
}

/// A row that was written or removed.
pub(in super::super) struct Item {
    /// The number of its keyspace.
    pub(in super::super) keyspace: u64,
    /// Its key there.
    pub(in super::super) key: Vec<u8>,
    /// None: it was removed.
    pub(in super::super) value: Option<Value>,
}

/// The bytes of a row as the journal has them.
pub(in super::super) struct Value {
    pub(in super::super) bytes: Vec<u8>,
    pub(in super::super) compressed: bool,
    length: usize,
}

impl Value {
    /// The bytes as they were written; None when they do not decompress.
    pub(in super::super) fn decompressed(self) -> Option<Vec<u8>> {
        if !self.compressed {
            return Some(self.bytes);
        }
        lz4_flex::decompress(&self.bytes, self.length).ok()
    }
}

/// See the module.
pub(in super::super) struct Batches<R = BufReader<File>> {
    reader: R,
    /// Bytes that were not read yet.
    left: u64,
    /// Where the last whole batch ended.
    end: u64,
    /// Where all bytes end.
    size: u64,
    /// Bytes of the rows of the batch being read, which its checksum is of.
    raw: Vec<u8>,
}

/// Reading ends: the bytes are no batch.
struct Ended;

impl Batches {
    /// From a place where a batch begins; 0 is one.
    pub(in super::super) fn open(path: &Path, from: u64) -> io::Result<Batches> {
        let mut file = File::open(path)?;
        let size = file.metadata()?.len();
        file.seek(SeekFrom::Start(from))?;
        let reader = BufReader::with_capacity(64 << 10, file);
        Ok(Batches { reader, left: size.saturating_sub(from), end: from, size, raw: Vec::new() })
    }
}

impl<'a> Batches<&'a [u8]> {
    fn of(bytes: &'a [u8]) -> Self {
        let size = bytes.len() as u64;
        Batches { reader: bytes, left: size, end: 0, size, raw: Vec::new() }
    }
}

impl<R: Read> Batches<R> {
    /// The next batch; None at the end of what can be read.
    pub(in super::super) fn next(&mut self) -> io::Result<Option<Batch>> {
        let batch = self.batch()?;
        if batch.is_ok() {
            self.end = self.size - self.left;
        }
        Ok(batch.ok())
    }

    /// Where the last whole batch ended. Only when reading has ended.
    pub(in super::super) fn end(&self) -> u64 {
        self.end
    }

    fn batch(&mut self) -> io::Result<Result<Batch, Ended>> {
        let mut read = || -> Result<Batch, Stop> {
            let [START] = self.bytes::<1>()? else { return Err(Stop::Ended) };
            let count = u32::from_le_bytes(self.bytes()?);
            let seqno = u64::from_le_bytes(self.bytes()?);
            self.raw.clear();
            let mut hash = Xxh3::new();
            let mut items = Vec::new();
            for _ in 0..count {
                items.extend(self.item()?);
                hash.update(&self.raw);
                self.raw.clear();
            }
            let [END] = self.bytes::<1>()? else { return Err(Stop::Ended) };
            let checksum = u64::from_le_bytes(self.bytes()?);
            if self.bytes::<4>()? != *TRAILER || hash.digest() != checksum {
                return Err(Stop::Ended);
            }
            Ok(Batch { seqno, items })
        };
        match read() {
            Ok(batch) => Ok(Ok(batch)),
            Err(Stop::Ended) => Ok(Err(Ended)),
            Err(Stop::Failed(error)) => Err(error),
        }
    }

    /// One row; None for the mark of a keyspace that was emptied, which we never do.
    fn item(&mut self) -> Result<Option<Item>, Stop> {
        match self.bytes::<1>()? {
            [ITEM] => {}
            [CLEAR] => {
                self.bytes::<8>()?;
                return Ok(None);
            }
            _ => return Err(Stop::Ended),
        }
        let [kind, compression] = self.bytes()?;
        let keyspace = u64::from_le_bytes(self.bytes()?);
        let key_length = u16::from_le_bytes(self.bytes()?);
        let length = u32::from_le_bytes(self.bytes()?) as usize;
        let stored = u32::from_le_bytes(self.bytes()?);
        let key = self.take(key_length.into())?;
        let bytes = self.take(stored.into())?;
        let value = (kind == VALUE).then_some(Value { bytes, compressed: compression != 0, length });
        Ok(Some(Item { keyspace, key, value }))
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Stop> {
        let mut bytes = [0; N];
        self.reader.read_exact(&mut bytes)?;
        self.left = self.left.saturating_sub(N as u64);
        self.raw.extend_from_slice(&bytes);
        Ok(bytes)
    }

    fn take(&mut self, length: u64) -> Result<Vec<u8>, Stop> {
        if length > self.left {
            return Err(Stop::Ended);
        }
        let mut bytes = Vec::new();
        (&mut self.reader).take(length).read_to_end(&mut bytes)?;
        if bytes.len() as u64 != length {
            return Err(Stop::Ended);
        }
        self.left -= length;
        self.raw.extend_from_slice(&bytes);
        Ok(bytes)
    }
}

/// Why a batch is not read to its end.
enum Stop {
    Ended,
    Failed(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::UnexpectedEof { Stop::Ended } else { Stop::Failed(error) }
    }
}

/// Whether a file holds anything but zeros from an offset on.
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

/// Where behind a damage batches can be read again; None when that is nowhere.
///
/// Only a place is taken from which whole batches follow each other to the end of what is written: objects may hold bytes
/// that look like a batch, even with its checksum, but behind an object comes the rest of the batch that wrote it, which
/// begins no batch. What lies between two damages is given up with them.
pub(in super::super) fn resume(path: &Path, damage: u64) -> io::Result<Option<u64>> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(damage))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let written = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    bytes.truncate(written);
    let mut effort = written.saturating_mul(EFFORT);
    let mut at = 1;
    while let Some(begin) = next_start(&bytes, at) {
        let mut batches = Batches::of(bytes.get(begin..).unwrap_or_default());
        while batches.next()?.is_some() {}
        let read = usize::try_from(batches.end()).unwrap_or(usize::MAX);
        if read > 0 && begin.saturating_add(read) == written {
            return Ok(Some(damage + begin as u64));
        }
        let looked_at = batches.size - batches.left;
        let Some(left) = effort.checked_sub(usize::try_from(looked_at).unwrap_or(usize::MAX)) else { break };
        effort = left;
        // Where a batch of these ended another began, and from there reading ends at the same place.
        at = begin.saturating_add(read.max(1));
    }
    Ok(None)
}

/// The next offset at which a batch of some rows may begin.
fn next_start(bytes: &[u8], from: usize) -> Option<usize> {
    let plausible = |begin: &[u8]| {
        let [START, rest @ ..] = begin else { return false };
        let Some([ITEM, _, compression, keyspace @ ..]) = rest.get(HEAD - 1..) else { return false };
        // The numbers of keyspaces are small.
        *compression < 2 && keyspace.get(1..8).is_some_and(|high| high.iter().all(|byte| *byte == 0))
    };
    (from..bytes.len()).find(|at| bytes.get(*at..).is_some_and(plausible))
}
