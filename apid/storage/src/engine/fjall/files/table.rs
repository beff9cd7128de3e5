//! The table files of fjall: verified as a whole, and read block by block when damaged.
//!
//! # Contract
//!
//! [`verify`] compares a file with its checksum. [`salvage`] passes every row of the readable blocks to a
//! function, and returns the unreadable ranges of the file. Blocks carry their own checksum and begin with a
//! magic number. After a damaged block, reading continues at the next magic number.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};

use lsm_tree::coding::Decode;
use lsm_tree::table::block::decoder::ParsedItem;
use lsm_tree::table::block::{BlockType, Header};
use lsm_tree::table::{Block, DataBlock};
use lsm_tree::{CompressionType, ValueType};
use xxhash_rust::xxh3::Xxh3Default;

use super::super::ignore_not_found;
use super::FileProblem;

/// The magic number of a block.
const MAGIC: &[u8; 4] = b"LSM\x03";

/// The path of a table.
pub(in super::super) fn path(folder: &Path, id: u64) -> PathBuf {
    folder.join("tables").join(id.to_string())
}

/// The table files of a keyspace folder, listed in the manifest or not.
pub(in super::super) fn table_files(folder: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    super::numbered_entries(&folder.join("tables"), "")
}

/// Compares a table with its checksum.
pub(super) fn verify(path: &Path, checksum: u128, buffer: &mut [u8]) -> Result<(), FileProblem> {
    let mut file = ignore_not_found(File::open(path))?
        .ok_or_else(|| FileProblem::Damaged(format!("table {} is missing", super::short_path(path))))?;
    let mut hash = Xxh3Default::new();
    loop {
        match file.read(buffer) {
            Ok(0) => break,
            Ok(length) => hash.update(buffer.get(..length).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    if hash.digest128() == checksum {
        return Ok(());
    }
    Err(FileProblem::Damaged(format!("table {} fails its checksum", super::short_path(path))))
}

/// Whether a table matches its checksum.
pub(in super::super) fn is_whole(path: &Path, checksum: u128) -> bool {
    verify(path, checksum, &mut vec![0; 1 << 20]).is_ok()
}

/// The metadata of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct TableMetadata {
    /// The number of rows, including removals.
    pub(in super::super) rows: u64,
    /// The last key of the table.
    pub(in super::super) last_key: Vec<u8>,
    /// The highest sequence number of fjall in the table.
    pub(in super::super) seqno: u64,
    compression: CompressionType,
}

/// Reads the metadata of a table; None when the metadata is unreadable.
pub(in super::super) fn metadata(path: &Path) -> Option<TableMetadata> {
    let contents = sfa::Reader::new(path).ok()?;
    let section = contents.toc().section(b"meta")?;
    let mut bytes = Vec::new();
    section.reader(path).ok()?.read_to_end(&mut bytes).ok()?;
    let read = || {
        let block = DataBlock::new(Block::from_reader(&mut &*bytes, CompressionType::None).ok()?);
        let field = |name: &str| block.point_read(name.as_bytes(), u64::MAX).map(|row| row.value);
        let number = |name: &str| Some(u64::from_le_bytes(<[u8; 8]>::try_from(&*field(name)?).ok()?));
        Some(TableMetadata {
            rows: number("item_count")?,
            last_key: field("key#max")?.to_vec(),
            seqno: number("seqno#max")?,
            compression: CompressionType::decode_from(&mut &*field("compression#data")?).ok()?,
        })
    };
    std::panic::catch_unwind(AssertUnwindSafe(read)).ok().flatten()
}

/// A row of a table.
pub(in super::super) struct TableRow {
    pub(in super::super) key: Vec<u8>,
    /// The sequence number of the batch that wrote the row.
    pub(in super::super) seqno: u64,
    /// None is a removal.
    pub(in super::super) value: Option<bytes::Bytes>,
}

/// A range of a table whose rows are unreadable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct UnreadableRange {
    /// The last readable key before the range, if any.
    pub(in super::super) after: Option<Vec<u8>>,
    /// The first readable key after the range, if any.
    pub(in super::super) before: Option<Vec<u8>>,
}

/// Calls `each` with every readable row, in file order, and returns the unreadable ranges.
pub(in super::super) fn salvage(
    path: &Path,
    mut each: impl FnMut(TableRow),
) -> io::Result<Vec<UnreadableRange>> {
    let bytes = std::fs::read(path)?;
    let compressions = match metadata(path) {
        Some(metadata) => vec![metadata.compression],
        None => vec![CompressionType::Lz4, CompressionType::None],
    };
    let mut unreadable_ranges: Vec<UnreadableRange> = Vec::new();
    let mut last: Option<Vec<u8>> = None;
    let (mut at, mut after_damage) = (0, false);
    while at < bytes.len() {
        match block_at(&bytes, at) {
            Some((BlockType::Data, range)) => {
                let Some(items) =
                    bytes.get(range.clone()).and_then(|block| decode_rows(block, &compressions))
                else {
                    (at, after_damage) = (range.end, true);
                    continue;
                };
                for item in items {
                    if std::mem::take(&mut after_damage) {
                        unreadable_ranges
                            .push(UnreadableRange { after: last.clone(), before: Some(item.key.clone()) });
                    }
                    last = Some(item.key.clone());
                    each(item);
                }
                at = range.end;
            }
            // Data blocks come first; the other blocks are indexes and filters.
            Some(_) => break,
            None => {
                after_damage = true;
                at = next_block(&bytes, at + 1);
            }
        }
    }
    if after_damage {
        unreadable_ranges.push(UnreadableRange { after: last, before: None });
    }
    Ok(unreadable_ranges)
}

/// The block at an offset, if its header is intact: its type and its range.
fn block_at(bytes: &[u8], at: usize) -> Option<(BlockType, Range<usize>)> {
    let header = Header::decode_from(&mut bytes.get(at..)?).ok()?;
    let end =
        at.checked_add(Header::serialized_len())?.checked_add(usize::try_from(header.data_length).ok()?)?;
    (end <= bytes.len()).then_some((header.block_type, at..end))
}

/// The offset of the next possible block.
fn next_block(bytes: &[u8], from: usize) -> usize {
    let rest = bytes.get(from..).unwrap_or_default();
    rest.windows(MAGIC.len()).position(|window| window == MAGIC).map_or(bytes.len(), |found| from + found)
}

/// The rows of a block, decoded with the first compression that succeeds; None when no compression does.
fn decode_rows(block: &[u8], compressions: &[CompressionType]) -> Option<Vec<TableRow>> {
    compressions.iter().find_map(|compression| {
        let decode = || decode(block, *compression);
        // lsm-tree trusts the content of a block with a valid checksum, and panics on malformed content.
        std::panic::catch_unwind(AssertUnwindSafe(decode)).ok().flatten()
    })
}

/// The rows of a block with this compression; None when the lengths or the checksum are wrong.
fn decode(block: &[u8], compression: CompressionType) -> Option<Vec<TableRow>> {
    let header = Header::decode_from(&mut &*block).ok()?;
    if compression == CompressionType::None && header.data_length != header.uncompressed_length {
        return None;
    }
    let block = DataBlock::new(Block::from_reader(&mut &*block, compression).ok()?);
    let items = block.iter().map(|item| {
        let row = item.materialize(block.as_slice());
        let value = match row.key.value_type {
            ValueType::Value => Some(bytes::Bytes::copy_from_slice(&row.value)),
            _ => None,
        };
        TableRow { key: row.key.user_key.to_vec(), seqno: row.key.seqno, value }
    });
    Some(items.collect())
}
