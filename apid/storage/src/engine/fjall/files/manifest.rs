//! The manifest of a keyspace: the list of its tables.
//!
//! # Contract
//!
//! The file `current` contains the number of the manifest and the checksum of the whole manifest; fjall does
//! not check this checksum. The manifest lists the tables with the checksum of each.

use std::io;
use std::path::Path;

use super::super::ignore_not_found;
use super::FileProblem;

/// A table that a manifest lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct ListedTable {
    /// The number of the table, which is also its file name.
    pub(in super::super) id: u64,
    /// XXH3 checksum (128 bits) of the whole file.
    pub(in super::super) checksum: u128,
    /// Offset that fjall adds to the sequence numbers of the rows.
    pub(in super::super) seqno: u64,
}

/// Reads the manifest of a keyspace folder, compares it with its checksum, and returns the tables that it
/// lists.
pub(in super::super) fn read(folder: &Path) -> Result<Vec<ListedTable>, FileProblem> {
    let damaged_error = |text: &str| FileProblem::Damaged(format!("{} {text}", super::short_path(folder)));
    let current = ignore_not_found(std::fs::read(folder.join("current")))?
        .ok_or_else(|| damaged_error("has no file `current`"))?;
    let (number, rest) =
        current.split_first_chunk::<8>().ok_or_else(|| damaged_error("has a truncated file `current`"))?;
    let (checksum, kind) =
        rest.split_first_chunk::<16>().ok_or_else(|| damaged_error("has a truncated file `current`"))?;
    let path = folder.join(format!("v{}", u64::from_le_bytes(*number)));
    let bytes = ignore_not_found(std::fs::read(&path))?
        .ok_or_else(|| damaged_error("has no manifest with the number in `current`"))?;
    if kind != [0] || xxhash_rust::xxh3::xxh3_128(&bytes) != u128::from_le_bytes(*checksum) {
        return Err(damaged_error("has a manifest that fails its checksum"));
    }
    let malformed_error = || damaged_error("has a malformed manifest");
    let contents = sfa::Reader::from_reader(&mut io::Cursor::new(&bytes)).map_err(|_| malformed_error())?;
    let section = contents.toc().section(b"tables").ok_or_else(malformed_error)?;
    let begin = usize::try_from(section.pos()).unwrap_or(usize::MAX);
    let length = usize::try_from(section.len()).unwrap_or(usize::MAX);
    let section = bytes.get(begin..begin.saturating_add(length)).ok_or_else(malformed_error)?;
    decode_tables(section).ok_or_else(malformed_error)
}

/// Decodes the section `tables`: levels, each with runs, each with tables.
fn decode_tables(mut section: &[u8]) -> Option<Vec<ListedTable>> {
    fn take<const N: usize>(section: &mut &[u8]) -> Option<[u8; N]> {
        let (bytes, rest) = section.split_first_chunk::<N>()?;
        *section = rest;
        Some(*bytes)
    }
    let mut tables: Vec<ListedTable> = Vec::new();
    let [levels] = take(&mut section)?;
    for _ in 0..levels {
        let [runs] = take(&mut section)?;
        for _ in 0..runs {
            let count = u32::from_le_bytes(take(&mut section)?);
            for _ in 0..count {
                let id = u64::from_le_bytes(take(&mut section)?);
                let [0] = take(&mut section)? else { return None };
                let checksum = u128::from_le_bytes(take(&mut section)?);
                let seqno = u64::from_le_bytes(take(&mut section)?);
                tables.push(ListedTable { id, checksum, seqno });
            }
        }
    }
    section.is_empty().then_some(tables)
}
