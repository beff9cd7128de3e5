//! Journals: batches of rows in the order in which they were written.
//!
//! # Contract
//!
//! [`Batches`] gives what can be read from the beginning of a journal and ends where fjall would cut it off: at a batch that
//! is not whole or fails its checksum, or at the zeros that a journal is made of before it is written.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;
const TRAILER: &[u8; 4] = b"FJL\x03";
/// Value types of a row that is there.
const VALUE: u8 = 0;

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
pub(in super::super) struct Batches {
    reader: BufReader<File>,
    /// Bytes of the file that were not read yet.
    left: u64,
    /// Where the last whole batch ended.
    end: u64,
    size: u64,
    /// Bytes of the rows of the batch being read, which its checksum is of.
    raw: Vec<u8>,
}

/// Reading ends: the bytes are no batch.
struct Ended;

impl Batches {
    /// From the beginning.
    pub(in super::super) fn open(path: &Path) -> io::Result<Batches> {
        let file = File::open(path)?;
        let size = file.metadata()?.len();
        let reader = BufReader::with_capacity(64 << 10, file);
        Ok(Batches { reader, left: size, end: 0, size, raw: Vec::new() })
    }

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
    use std::io::Seek;
    let mut file = File::open(path)?;
    file.seek(io::SeekFrom::Start(from))?;
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
