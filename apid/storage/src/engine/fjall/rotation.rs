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
//! INVARIANT (sealed here only): no other code seals memtables, so that the content of the active memtable is
//! known.

use fjall::{AbstractTree, Keyspace};

use super::database::Tables;
use super::high_water_mark::Flushed;

/// Maximum number of journals before all keyspaces are rotated.
const MAX_JOURNALS: usize = 2;

/// The rotation; see the module documentation.
pub(super) struct Rotation {
    limit: u64,
    /// For `log` and `versions`: the revision at the last seal, and the flushed revision.
    marks: [FlushProgress; 2],
}

#[derive(Clone, Copy, Debug, Default)]
struct FlushProgress {
    sealed: u64,
    flushed: u64,
}

impl Rotation {
    /// `limit` is the size in bytes at which a memtable is sealed. `flushed` comes from the recovery.
    pub(super) fn new(limit: u64, flushed: Flushed) -> Self {
        let mark = |flushed| FlushProgress { sealed: flushed, flushed };
        Rotation { limit, marks: [mark(flushed.log), mark(flushed.versions)] }
    }

    /// Seals memtables if necessary, and returns their number.
    ///
    /// Called between batches, when exactly the rows up to `revision` are written.
    pub(super) fn after_batch(&mut self, tables: &Tables, revision: u64) -> fjall::Result<u64> {
        let all = tables.database.journal_count() > MAX_JOURNALS
            && tables.database.outstanding_flushes() == 0
            && tables.sealed() == 0;
        let limit = self.limit;
        self.seal(tables, revision, |keyspace| all || keyspace.tree.active_memtable().size() > limit)
    }

    /// Seals all non-empty memtables; also called between batches.
    pub(super) fn seal_all(&mut self, tables: &Tables, revision: u64) -> fjall::Result<u64> {
        self.seal(tables, revision, |_| true)
    }

    fn seal(
        &mut self,
        tables: &Tables,
        revision: u64,
        wants: impl Fn(&Keyspace) -> bool,
    ) -> fjall::Result<u64> {
        let mut count = 0;
        for (index, keyspace) in tables.keyspaces().into_iter().enumerate() {
            if wants(keyspace) && keyspace.rotate_memtable()? {
                count += 1;
                if let Some(mark) = self.marks.get_mut(index) {
                    mark.sealed = revision;
                }
            }
        }
        Ok(count)
    }

    /// The flushed revisions; see INVARIANT (flushed).
    pub(super) fn flushed(&mut self, tables: &Tables, revision: u64) -> Flushed {
        let settle = |mark: &mut FlushProgress, keyspace: &Keyspace| {
            if keyspace.tree.sealed_memtable_count() == 0 {
                if keyspace.tree.active_memtable().is_empty() {
                    mark.sealed = revision;
                }
                mark.flushed = mark.flushed.max(mark.sealed);
            }
            mark.flushed
        };
        let [log, versions] = &mut self.marks;
        Flushed { log: settle(log, &tables.log), versions: settle(versions, &tables.versions) }
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
        let tables = Tables::open(dir.path(), 1 << 20).unwrap();
        let none = Flushed { log: 0, versions: 0 };
        let mut rotation = Rotation::new(u64::MAX, none);
        let wait = || {
            for keyspace in tables.keyspaces() {
                keyspace.rotate_memtable_and_wait().unwrap();
            }
        };
        write(&tables, 1);
        assert_eq!(rotation.flushed(&tables, 1), none);
        // A rotation outside `Rotation`, as fjall does for old journals.
        wait();
        assert_eq!(rotation.flushed(&tables, 1), Flushed { log: 1, versions: 1 });
        write(&tables, 2);
        assert_eq!(rotation.flushed(&tables, 2), Flushed { log: 1, versions: 1 });
        rotation.seal_all(&tables, 2).unwrap();
        write(&tables, 3);
        while tables.sealed() > 0 {
            std::thread::yield_now();
        }
        assert_eq!(rotation.flushed(&tables, 3), Flushed { log: 2, versions: 2 });
    }
}
