//! Memtable rotation: the writer thread, not fjall, decides when a memtable is sealed and flushed.
//!
//! # Contract
//!
//! After each batch [`Rotation::after_batch`] seals every memtable above its limit. When journals accumulate,
//! the rotation seals all memtables: one idle keyspace pins every journal since its last flush.
//!
//! # Invariants
//!
//! INVARIANT (flushed): every row at or below the revisions of [`Rotation::flushed`] is in tables. Start-up
//! uses these revisions to know which rows existed only in a journal. They never decrease, because rows in
//! tables stay there.
//! While the store is open, only this module and fjall seal memtables. fjall seals the memtables that pin its
//! oldest journal. [`Rotation::flushed`] is correct with such seals too: it then stays at an older revision.

use fjall::{AbstractTree, Keyspace};

use super::database::Tables;
use super::high_water_mark::Flushed;

/// Maximum number of journals. Above it, the memtables of all keyspaces are sealed.
const MAX_JOURNALS: usize = 2;

/// The rotation; see the module documentation.
pub(super) struct Rotation {
    /// Size in bytes at which a memtable is sealed.
    limit: u64,
    /// The flush progress of `log` and of `versions`, in this order.
    progress: [FlushProgress; 2],
}

/// The flush progress of one keyspace.
#[derive(Clone, Copy, Debug, Default)]
struct FlushProgress {
    /// The revision at the last seal of a memtable.
    sealed: u64,
    /// The revision up to which all rows are in tables.
    flushed: u64,
}

impl Rotation {
    /// `limit` is the size in bytes at which a memtable is sealed. `flushed` comes from the high-water mark.
    pub(super) fn new(limit: u64, flushed: Flushed) -> Self {
        let begin_at = |flushed| FlushProgress { sealed: flushed, flushed };
        Rotation { limit, progress: [begin_at(flushed.log), begin_at(flushed.versions)] }
    }

    /// Seals memtables if necessary, and returns their number.
    ///
    /// Called between batches, when exactly the rows up to `revision` are written.
    pub(super) fn after_batch(&mut self, tables: &Tables, revision: u64) -> fjall::Result<u64> {
        let seals_all = tables.database.journal_count() > MAX_JOURNALS
            && tables.database.outstanding_flushes() == 0
            && tables.sealed_memtables() == 0;
        let limit = self.limit;
        self.seal(tables, revision, |keyspace| seals_all || keyspace.tree.active_memtable().size() > limit)
    }

    /// Seals all non-empty memtables; also called between batches.
    pub(super) fn seal_all(&mut self, tables: &Tables, revision: u64) -> fjall::Result<u64> {
        self.seal(tables, revision, |_| true)
    }

    /// Seals the memtables of the keyspaces that `should_seal` selects, and returns their number.
    fn seal(
        &mut self,
        tables: &Tables,
        revision: u64,
        should_seal: impl Fn(&Keyspace) -> bool,
    ) -> fjall::Result<u64> {
        let mut count = 0;
        for (index, keyspace) in tables.keyspaces().into_iter().enumerate() {
            if should_seal(keyspace) && keyspace.rotate_memtable()? {
                count += 1;
                if let Some(progress) = self.progress.get_mut(index) {
                    progress.sealed = revision;
                }
            }
        }
        Ok(count)
    }

    /// The flushed revisions; see INVARIANT (flushed).
    pub(super) fn flushed(&mut self, tables: &Tables, revision: u64) -> Flushed {
        let update_flushed = |progress: &mut FlushProgress, keyspace: &Keyspace| {
            if keyspace.tree.sealed_memtable_count() == 0 {
                if keyspace.tree.active_memtable().is_empty() {
                    progress.sealed = revision;
                }
                progress.flushed = progress.flushed.max(progress.sealed);
            }
            progress.flushed
        };
        let [log, versions] = &mut self.progress;
        Flushed {
            log: update_flushed(log, &tables.log),
            versions: update_flushed(versions, &tables.versions),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout;
    use super::*;

    /// Writes the rows of one revision to both keyspaces.
    fn write(tables: &Tables, revision: u64) {
        let mut batch = tables.database.batch();
        batch.insert(&tables.log, layout::log_key(revision), b"entry".as_slice());
        batch.insert(&tables.versions, layout::version_key("key", revision), b"object".as_slice());
        batch.commit().unwrap();
    }

    #[test]
    fn flushed_revision_stays_after_later_writes() {
        let dir = tempfile::tempdir().unwrap();
        let tables = Tables::open(dir.path(), 1 << 20, None).unwrap();
        let none = Flushed { log: 0, versions: 0 };
        let mut rotation = Rotation::new(u64::MAX, none);
        let wait = || {
            for keyspace in tables.keyspaces() {
                keyspace.rotate_memtable_and_wait().unwrap();
            }
        };
        write(&tables, 1);
        assert_eq!(rotation.flushed(&tables, 1), none);
        // A memtable is sealed outside `Rotation`, as fjall does for old journals.
        wait();
        assert_eq!(rotation.flushed(&tables, 1), Flushed { log: 1, versions: 1 });
        write(&tables, 2);
        assert_eq!(rotation.flushed(&tables, 2), Flushed { log: 1, versions: 1 });
        rotation.seal_all(&tables, 2).unwrap();
        write(&tables, 3);
        while tables.sealed_memtables() > 0 {
            std::thread::yield_now();
        }
        assert_eq!(rotation.flushed(&tables, 3), Flushed { log: 2, versions: 2 });
    }
}
