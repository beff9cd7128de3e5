//! The high-water mark: a small file that records the newest acknowledged revision.
//!
//! # Contract
//!
//! [`HighWaterMark::write`] returns when the mark is synced. The writer thread writes the mark after the sync
//! of a batch and before the commits return; start-up compares the mark with the data ([`super::recovery`]).
//! Without the mark, history that fjall drops silently would look like history that never existed.
//!
//! # Invariants
//!
//! INVARIANT (mark survives a torn write): the file has two slots, one page apart, written alternately. Each
//! slot carries a count and a CRC. After a torn write the previous slot stays valid. The batch that it
//! records is the last batch that can have been acknowledged.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::ignore_not_found;

const MAGIC: &[u8; 8] = b"apidmark";
const SLOT_DISTANCE: u64 = 4096;
const SLOT_BYTES: usize = 8 + 4 + 5 * 8 + 4;
const VERSION: u32 = 1;

/// The values of the high-water mark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MarkValues {
    /// Every write up to this revision may have been acknowledged, and must be present.
    pub(super) revision: u64,
    /// The acknowledged compacted revision.
    pub(super) compacted: u64,
    /// The flushed revisions. Start-up does not check that the rows up to these revisions are present: they
    /// are in tables, whose checksums are verified.
    pub(super) flushed: Flushed,
}

/// For each keyspace: the revision up to which all rows are in tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flushed {
    pub(super) log: u64,
    pub(super) versions: u64,
}

/// The open mark file.
pub(super) struct HighWaterMark {
    file: File,
    count: u64,
    values: MarkValues,
}

/// The reason why the mark is unreadable.
#[derive(Debug, thiserror::Error)]
pub(super) enum HighWaterMarkError {
    #[error("the high-water mark file `mark` is not accessible")]
    Io(#[from] io::Error),
    #[error("no slot of the high-water mark file `mark` is valid")]
    Unreadable,
}

impl HighWaterMark {
    /// Opens the file; None when the file is missing.
    pub(super) fn open(path: &Path) -> Result<Option<HighWaterMark>, HighWaterMarkError> {
        let opened = OpenOptions::new().read(true).write(true).open(path);
        let Some(file) = ignore_not_found(opened)? else { return Ok(None) };
        let mut bytes = Vec::new();
        (&file).read_to_end(&mut bytes)?;
        let newest = decode_slots(&bytes).into_iter().flatten().max_by_key(|(count, _)| *count);
        let (count, values) = newest.ok_or(HighWaterMarkError::Unreadable)?;
        Ok(Some(HighWaterMark { file, count, values }))
    }

    /// Creates the file atomically: write, sync, rename.
    pub(super) fn create(dir: &Path, name: &str, values: MarkValues) -> io::Result<HighWaterMark> {
        let unfinished = dir.join(format!("{name}.new"));
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&unfinished)?;
        file.write_all_at(&encode(0, values), 0)?;
        file.write_all_at(&encode(1, values), SLOT_DISTANCE)?;
        file.sync_all()?;
        std::fs::rename(&unfinished, dir.join(name))?;
        File::open(dir)?.sync_all()?;
        Ok(HighWaterMark { file, count: 1, values })
    }

    /// The values in the newest valid slot.
    pub(super) fn values(&self) -> MarkValues {
        self.values
    }

    /// Writes the older slot and syncs it.
    pub(super) fn write(&mut self, values: MarkValues) -> io::Result<()> {
        let count = self.count + 1;
        self.file.write_all_at(&encode(count, values), (count % 2) * SLOT_DISTANCE)?;
        self.file.sync_data()?;
        self.count = count;
        self.values = values;
        Ok(())
    }
}

/// Decodes both slots: the count and the values of each valid slot.
pub(super) fn decode_slots(bytes: &[u8]) -> [Option<(u64, MarkValues)>; 2] {
    [0, SLOT_DISTANCE].map(|at| {
        let begin = usize::try_from(at).unwrap_or(usize::MAX);
        decode(bytes.get(begin..begin.saturating_add(SLOT_BYTES))?)
    })
}

fn encode(count: u64, values: MarkValues) -> Vec<u8> {
    let mut slot = Vec::with_capacity(SLOT_BYTES);
    slot.extend_from_slice(MAGIC);
    slot.extend_from_slice(&VERSION.to_be_bytes());
    let Flushed { log, versions } = values.flushed;
    for number in [count, values.revision, values.compacted, log, versions] {
        slot.extend_from_slice(&number.to_be_bytes());
    }
    let crc = crc32c::crc32c(&slot);
    slot.extend_from_slice(&crc.to_be_bytes());
    slot
}

fn decode(slot: &[u8]) -> Option<(u64, MarkValues)> {
    let (content, crc) = slot.split_last_chunk::<4>()?;
    if crc32c::crc32c(content) != u32::from_be_bytes(*crc) {
        return None;
    }
    let rest = content.strip_prefix(MAGIC)?.strip_prefix(&VERSION.to_be_bytes())?;
    let (numbers, _) = rest.as_chunks::<8>();
    let [count, revision, compacted, log, versions] = numbers else { return None };
    let number = |bytes: &[u8; 8]| u64::from_be_bytes(*bytes);
    let flushed = Flushed { log: number(log), versions: number(versions) };
    let values = MarkValues { revision: number(revision), compacted: number(compacted), flushed };
    Some((number(count), values))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(revision: u64) -> MarkValues {
        MarkValues {
            revision,
            compacted: revision / 2,
            flushed: Flushed { log: revision / 3, versions: revision / 4 },
        }
    }

    #[test]
    fn high_water_mark_reads_back_newest_write() {
        let dir = tempfile::tempdir().unwrap();
        assert!(HighWaterMark::open(&dir.path().join("mark")).unwrap().is_none());
        let mut mark = HighWaterMark::create(dir.path(), "mark", MarkValues::default()).unwrap();
        for revision in 1..=5 {
            mark.write(values(revision)).unwrap();
            let reopened = HighWaterMark::open(&dir.path().join("mark")).unwrap().unwrap();
            assert_eq!(reopened.values(), values(revision));
        }
    }

    #[test]
    fn high_water_mark_survives_one_damaged_slot_but_not_two() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mark");
        let mut mark = HighWaterMark::create(dir.path(), "mark", MarkValues::default()).unwrap();
        mark.write(values(6)).unwrap();
        mark.write(values(7)).unwrap();
        let whole = std::fs::read(&path).unwrap();
        let newest = usize::try_from((mark.count % 2) * SLOT_DISTANCE).unwrap();
        for at in 0..SLOT_BYTES {
            let mut damaged = whole.clone();
            damaged[newest + at] ^= 1;
            std::fs::write(&path, &damaged).unwrap();
            assert_eq!(HighWaterMark::open(&path).unwrap().unwrap().values(), values(6), "byte {at}");
        }
        std::fs::write(&path, vec![0; whole.len()]).unwrap();
        assert!(matches!(HighWaterMark::open(&path), Err(HighWaterMarkError::Unreadable)));
        std::fs::write(&path, b"").unwrap();
        assert!(matches!(HighWaterMark::open(&path), Err(HighWaterMarkError::Unreadable)));
    }
}
