//! Journals in a survey: read to their ends and past damage, with the possible content of gaps.
//!
//! # Invariants
//!
//! INVARIANT (every gap is reported): the rows of `log` in journals have consecutive revisions, even if
//! tables contain some of these rows too. So the revisions on both sides of a damage identify the lost
//! revisions. Gaps are reported even where history is compacted: the damaged journal may have held the only
//! copy of rows of `versions`.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::super::files::{self, journal};
use super::super::high_water_mark::MarkValues;
use super::super::{ignore_not_found, layout};
use super::Survey;
use super::rows::Keyspace;

/// A gap in the consecutive revisions of the journals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gap {
    /// The newest revision before the gap; None for a gap before the first readable row.
    pub(super) after: Option<u64>,
    /// The oldest revision after the gap; None for a gap after the last readable row.
    pub(super) before: Option<u64>,
    /// The sequence number of the first known batch after the gap.
    pub(super) seqno: Option<u64>,
}

/// A part of a journal with consecutive batches.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) path: PathBuf,
    pub(super) begin: u64,
    pub(super) end: u64,
}

/// The progress of reading the journals.
#[derive(Default)]
struct Progress {
    /// The sequence number of the last batch; a wrong number is already corrected.
    seqno: u64,
    /// The newest revision of the `log` rows read so far.
    revision: Option<u64>,
    /// Whether a part of a journal was unreadable after the row of `revision`.
    is_broken: bool,
    /// The sequence number of the first batch after that unreadable part.
    seqno_after_damage: Option<u64>,
}

impl Progress {
    /// Whether the journals read so far, or flushed tables, reach the high-water mark.
    fn covers_acknowledged(&self, flushed: u64, mark: MarkValues) -> bool {
        self.revision.max(Some(flushed)) >= Some(mark.revision)
    }
}

impl Survey {
    pub(super) fn read_journals(
        &mut self,
        database: &Path,
        keyspaces: &mut BTreeMap<u64, Keyspace>,
    ) -> io::Result<()> {
        let journals = ignore_not_found(journal::journals(database))?.unwrap_or_default();
        self.journals = journals.len();
        let in_tables = keyspaces.values().filter_map(Keyspace::newest_entry).max();
        let flushed_by_mark = self.acknowledged().map_or(0, |mark| mark.flushed.versions);
        self.flushed =
            keyspaces.values().filter_map(Keyspace::newest_version).fold(flushed_by_mark, u64::max);
        let mut progress = Progress::default();
        for (index, (_, path)) in journals.iter().enumerate() {
            let mut begin = 0;
            loop {
                let end = self.read_part(path, begin, keyspaces, &mut progress)?;
                self.bytes += end - begin;
                self.parts.push(Part { path: path.clone(), begin, end });
                if !journal::has_content(path, end)? {
                    break;
                }
                progress.is_broken = true;
                let name = files::short_path(path);
                let is_newest = index + 1 == journals.len();
                let mark = self.acknowledged();
                let log_is_complete = mark
                    .is_some_and(|mark| is_newest && progress.revision.max(in_tables) >= Some(mark.revision));
                let resumed_at = match mark {
                    // A crash leaves the end of the newest journal in any state: search only for acknowledged
                    // rows.
                    Some(mark) if !(log_is_complete && progress.covers_acknowledged(self.flushed, mark)) => {
                        journal::find_resume_offset(path, end)?
                    }
                    _ => None,
                };
                let Some(resumed_at) = resumed_at else {
                    let damage = format!("journal {name} is unreadable after byte {end}");
                    if log_is_complete {
                        self.torn = Some(damage);
                    } else {
                        self.damaged_places.push(|| damage);
                    }
                    break;
                };
                self.damaged_places.push(|| {
                    format!("journal {name} is unreadable from byte {end} to {resumed_at}, and readable after that")
                });
                begin = resumed_at;
            }
        }
        if progress.is_broken
            || self.acknowledged().is_some_and(|mark| !progress.covers_acknowledged(self.flushed, mark))
        {
            self.gaps.push(Gap {
                after: progress.revision,
                before: None,
                seqno: progress.seqno_after_damage,
            });
        }
        Ok(())
    }

    /// Reads consecutive batches from an offset, and returns the end offset.
    fn read_part(
        &mut self,
        path: &Path,
        begin: u64,
        keyspaces: &mut BTreeMap<u64, Keyspace>,
        progress: &mut Progress,
    ) -> io::Result<u64> {
        let mut batches = journal::Batches::open(path, begin)?;
        let mut next = batches.next()?;
        while let Some(mut batch) = next {
            next = batches.next()?;
            let following = next.as_ref().map(|next| next.seqno);
            let is_in_order =
                progress.seqno < batch.seqno && following.is_none_or(|following| batch.seqno < following);
            if !is_in_order {
                // The checksum does not cover the sequence number of a batch. The neighbours determine the
                // original value.
                self.damaged_places
                    .push(|| format!("journal {} has a batch with a wrong seqno", files::short_path(path)));
                batch.seqno = match (progress.seqno, following) {
                    (0, Some(following)) => following.saturating_sub(1),
                    (last, _) => last + 1,
                };
            }
            progress.seqno = batch.seqno;
            self.add_batch(path, batch, keyspaces, progress);
        }
        Ok(batches.end())
    }

    /// Adds the rows of a batch to the keyspaces.
    fn add_batch(
        &mut self,
        path: &Path,
        batch: journal::Batch,
        keyspaces: &mut BTreeMap<u64, Keyspace>,
        progress: &mut Progress,
    ) {
        if progress.is_broken {
            progress.seqno_after_damage.get_or_insert(batch.seqno);
        }
        for item in batch.items {
            let row = match item.value.map(journal::Value::decompressed) {
                None => None,
                Some(Some(bytes)) => Some(Bytes::from(bytes)),
                Some(None) => {
                    self.damaged_places.push(|| {
                        format!("journal {} has a row that does not decompress", files::short_path(path))
                    });
                    self.record_damaged_row(&item.key);
                    continue;
                }
            };
            if item.key.len() == layout::LOG_KEY_BYTES
                && let Some(row) = &row
                && let Ok(entry) = layout::decode_entry(&item.key, row)
            {
                self.record_revision(entry.revision, batch.seqno, progress);
            }
            let keyspace = keyspaces.entry(item.keyspace).or_default();
            if keyspace.persisted.is_none_or(|persisted| persisted < batch.seqno) {
                keyspace.add(item.key, batch.seqno, row.as_ref());
            }
        }
    }

    /// Records the revision of a row of `log`, and a gap before it.
    fn record_revision(&mut self, revision: u64, seqno: u64, progress: &mut Progress) {
        let follows = match progress.revision {
            Some(last) => revision == last + 1,
            // The row is the first `log` row of the journals. A revision above `flushed` + 1 means that an
            // earlier journal is lost. Without a mark this cannot be decided, and any revision is plausible.
            None => {
                let is_plausible_start =
                    self.acknowledged().is_none() || revision <= self.flushed.saturating_add(1);
                !progress.is_broken && is_plausible_start
            }
        };
        if !follows {
            let seqno_after_damage = progress.seqno_after_damage.unwrap_or(seqno);
            self.gaps.push(Gap {
                after: progress.revision,
                before: Some(revision),
                seqno: Some(seqno_after_damage),
            });
        }
        progress.revision = progress.revision.max(Some(revision));
        (progress.is_broken, progress.seqno_after_damage) = (false, None);
    }
}
