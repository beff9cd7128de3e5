//! When memtables are sealed and flushed: decided here, by the writer, and never by fjall.
//!
//! # Contract
//!
//! After each batch [`Rotation::after_batch`] seals a memtable that has grown past its limit, and all of them when
//! journals pile up: one quiet keyspace pins every journal since its last flush.
//!
//! # Invariants
//!
//! INVARIANT (flushed): [`Rotation::flushed`] are revisions such that every row at or below them is in tables. Start-up
//! relies on them to know which rows only a journal held.

use fjall::{AbstractTree, Keyspace};

use super::database::Tables;
use super::mark::Flushed;

/// Journals that may be there before all keyspaces are rotated.
const JOURNALS: usize = 2;

/// See the module.
pub(super) struct Rotation {
    limit: u64,
    /// For `log` and `versions`: the revision at the last sealing, and that up to which all is flushed.
    marks: [Sealed; 2],
}

#[derive(Clone, Copy, Debug, Default)]
struct Sealed {
    sealed: u64,
    flushed: u64,
}

impl Rotation {
    /// `limit`: bytes of a memtable that is sealed. What start-up found flushed is taken over.
    pub(super) fn new(limit: u64, flushed: Flushed) -> Self {
        let mark = |flushed| Sealed { sealed: flushed, flushed };
        Rotation { limit, marks: [mark(flushed.log), mark(flushed.versions)] }
    }

    /// Seals what must be. Called between batches, when rows up to `revision` and no others are written. Answers how
    /// many memtables were sealed.
    pub(super) fn after_batch(&mut self, tables: &Tables, revision: u64) -> fjall::Result<u64> {
        let all = tables.database.journal_count() > JOURNALS
            && tables.database.outstanding_flushes() == 0
            && tables.sealed() == 0;
        let mut count = 0;
        for (index, keyspace) in tables.keyspaces().into_iter().enumerate() {
            if (all || keyspace.tree.active_memtable().size() > self.limit) && keyspace.rotate_memtable()? {
                count += 1;
                if let Some(mark) = self.marks.get_mut(index) {
                    mark.sealed = revision;
                }
            }
        }
        Ok(count)
    }

    /// See the invariant.
    pub(super) fn flushed(&mut self, tables: &Tables, revision: u64) -> Flushed {
        let settle = |mark: &mut Sealed, keyspace: &Keyspace| {
            if keyspace.tree.sealed_memtable_count() == 0 {
                let nothing_since = keyspace.tree.active_memtable().is_empty();
                mark.flushed = if nothing_since { revision } else { mark.sealed };
            }
            mark.flushed
        };
        let [log, versions] = &mut self.marks;
        Flushed { log: settle(log, &tables.log), versions: settle(versions, &tables.versions) }
    }
}
