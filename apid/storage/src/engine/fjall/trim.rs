//! Retention and trimming of history, at the pace of new history.
//!
//! # Contract
//!
//! [`Retention`] selects the revision up to which history is old enough for compaction. [`Removals`] are the versions
//! that no read at or after the compacted revision needs. [`drop_tables`] drops the tables of `log` whose entries are
//! all trimmed. [`Reclaim`] frees the space of removed versions when space is short. In an idle store it does so when
//! they are a tenth of the rows. Otherwise the LSM compactions of new writes free that space.
//!
//! # Invariants
//!
//! INVARIANT (trim after compact): only entries at or below the persisted compacted revision are trimmed. The
//! table of an entry is dropped after the removal of the versions that the entry superseded. The opposite
//! order would leak them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use fjall::{AbstractTree, OwnedWriteBatch};

use super::database::{Tables, map_fjall_error, map_io_error};
use super::layout::{self, META_TRIMMED, Tag};
use super::reader;
use crate::Result;

/// Samples of the revision over time, which give the revision that is old enough for compaction.
pub(super) struct Retention {
    /// The history retention.
    keep: Duration,
    samples: VecDeque<(Duration, u64)>,
    /// The revision of the newest sample, also after the sample has left `samples`.
    newest_sample: Option<u64>,
}

impl Retention {
    pub(super) fn new(keep: Duration) -> Self {
        Retention { keep, samples: VecDeque::new(), newest_sample: None }
    }

    /// Records a sample, and returns the newest sampled revision that is at least as old as the retention.
    /// None if no further sample has reached this age since the last call.
    ///
    /// A `limit` shorter than the retention replaces the retention. Samples after the revision `leased` stay
    /// for a later call.
    pub(super) fn cutoff(
        &mut self,
        now: Duration,
        revision: u64,
        limit: Duration,
        leased: u64,
    ) -> Option<u64> {
        let keep = self.keep.min(limit);
        if self.newest_sample.is_none_or(|newest_sample| newest_sample < revision) {
            self.newest_sample = Some(revision);
            self.samples.push_back((now, revision));
        }
        let mut cutoff = None;
        while let Some((at, revision)) = self.samples.front().copied()
            && now.saturating_sub(at) >= keep
            && revision <= leased
        {
            self.samples.pop_front();
            cutoff = Some(revision);
        }
        cutoff
    }
}

/// Superseded versions to remove.
pub(super) struct Removals {
    keys: Vec<Vec<u8>>,
    /// The trimmed revision after these removals.
    pub(super) through: u64,
}

impl Removals {
    /// Collects the removals of the next log entries after `trimmed`, up to `compacted`.
    ///
    /// `limit` is the maximum number of entries. None means that nothing is left to trim.
    pub(super) fn find(
        tables: &Tables,
        trimmed: u64,
        compacted: u64,
        limit: usize,
    ) -> Result<Option<Removals>> {
        if trimmed >= compacted {
            return Ok(None);
        }
        let snapshot = tables.database.snapshot();
        let mut keys = Vec::with_capacity(limit);
        let mut through = compacted;
        for (count, entry) in reader::entries(&snapshot, &tables.log, trimmed, compacted).enumerate() {
            let entry = entry?;
            if entry.previous != 0 {
                keys.push(layout::version_key(&entry.key, entry.previous));
            }
            // No older version of this key is left: the tombstone hides nothing.
            if entry.event == Tag::Removed {
                keys.push(layout::version_key(&entry.key, entry.revision));
            }
            if count + 1 >= limit {
                through = entry.revision;
                break;
            }
        }
        Ok(Some(Removals { keys, through }))
    }

    /// The number of removed rows.
    pub(super) fn len(&self) -> u64 {
        u64::try_from(self.keys.len()).unwrap_or(u64::MAX)
    }

    /// Adds the removals to a batch.
    pub(super) fn add_to(self, batch: &mut OwnedWriteBatch, tables: &Tables) {
        for key in self.keys {
            batch.remove(&tables.versions, key);
        }
        batch.insert(&tables.meta, META_TRIMMED, layout::encode_meta_row(META_TRIMMED, self.through, &[]));
    }
}

/// Drops the tables of `log` that hold only revisions up to `trimmed`. Returns whether a table was dropped.
///
/// The newest table always stays. fjall uses the newest table to decide which journals to replay, and
/// start-up reads the revision from it.
pub(super) fn drop_tables(tables: &Tables, trimmed: u64) -> Result<bool> {
    let mut ranges = Vec::new();
    for table in tables.log.tree.current_version().iter_tables() {
        let range = &table.metadata.key_range;
        ranges.push((layout::log_revision(range.min())?, layout::log_revision(range.max())?));
    }
    let Some((newest, _)) = ranges.iter().copied().max_by_key(|(_, last)| *last) else { return Ok(false) };
    let bound = trimmed.min(newest.saturating_sub(1));
    if !ranges.iter().any(|(_, last)| *last <= bound) {
        return Ok(false);
    }
    tables
        .log
        .tree
        .drop_range(..=layout::log_key(bound))
        .map_err(|error| map_fjall_error(&fjall::Error::Storage(error)))?;
    Ok(true)
}

/// Frees the space of removed rows: merges all tables of `versions` on a separate thread, one merge at a
/// time.
#[derive(Default)]
pub(super) struct Reclaim {
    thread: Option<JoinHandle<()>>,
    /// The trimmed revision at the start of the last merge.
    trimmed: u64,
    /// Rows removed since the start of the last merge.
    removed: u64,
}

/// Minimum number of removed rows for a merge of the tables in an idle store.
const MIN_REMOVED_ROWS: u64 = 1_000;

/// The tables of an idle store are merged when the number of removed rows of `versions`, times this number,
/// is at least the number of rows.
const REMOVED_FRACTION: u64 = 10;

impl Reclaim {
    /// Counts removed rows.
    pub(super) fn count_removed(&mut self, rows: u64) {
        self.removed += rows;
    }

    /// Whether enough rows were removed to merge the tables of an idle store.
    pub(super) fn is_worthwhile(&self, tables: &Tables) -> bool {
        let rows = u64::try_from(tables.versions.approximate_len()).unwrap_or(u64::MAX);
        self.removed >= MIN_REMOVED_ROWS && self.removed.saturating_mul(REMOVED_FRACTION) >= rows
    }

    /// Starts a merge if no merge runs and the trimmed revision has advanced since the last one.
    ///
    /// `seal` seals all memtables. While a sealed memtable is not flushed, no merge starts: a later call
    /// starts the merge.
    pub(super) fn begin(
        &mut self,
        tables: &Arc<Tables>,
        trimmed: u64,
        seal: impl FnOnce() -> fjall::Result<u64>,
    ) -> Result<()> {
        if trimmed <= self.trimmed || self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return Ok(());
        }
        seal().map_err(|error| map_fjall_error(&error))?;
        // Removals in memtables must reach the tables before the merge.
        if tables.sealed_memtables() > 0 {
            return Ok(());
        }
        let versions = tables.versions.clone();
        let merge = move || {
            if let Err(error) = versions.major_compact() {
                tracing::warn!(%error, "merging tables failed; no space reclaimed");
            }
        };
        let thread = std::thread::Builder::new().name("store-reclaim".to_owned()).spawn(merge);
        self.thread = Some(thread.map_err(|error| map_io_error(&error))?);
        self.trimmed = trimmed;
        self.removed = 0;
        Ok(())
    }

    /// Waits for the end of a running merge: the tables can close only afterwards.
    pub(super) fn finish(&mut self) {
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("table merge thread panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retention_cutoff_is_newest_revision_older_than_retention() {
        let second = Duration::from_secs;
        let mut retention = Retention::new(second(10));
        let steps = [
            (0, 5, None),
            (4, 5, None),
            (5, 9, None),
            (9, 9, None),
            (10, 12, Some(5)),
            (14, 12, None),
            (15, 12, Some(9)),
            (40, 12, Some(12)),
            (60, 12, None),
        ];
        for (now, revision, cutoff) in steps {
            assert_eq!(
                retention.cutoff(second(now), revision, Duration::MAX, u64::MAX),
                cutoff,
                "at {now} s"
            );
        }
        assert_eq!(retention.cutoff(second(70), 20, second(2), u64::MAX), None);
        assert_eq!(retention.cutoff(second(72), 20, second(2), 19), None, "the revision is leased");
        let cutoff = retention.cutoff(second(72), 20, second(2), u64::MAX);
        assert_eq!(cutoff, Some(20), "a limit shortens the retention");
    }
}
