//! Building a new store from objects.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fjall::{AbstractTree, PersistMode};

use super::super::database::{Tables, map_fjall_error};
use super::super::high_water_mark::{Flushed, HighWaterMark, MarkValues};
use super::super::layout::{self, Jump, LogEntry, META_COMPACTED, META_TRIMMED, Tag};
use super::super::{OpenError, make_dirs, recovery};
use super::{CACHE_BYTES, Identity};
use crate::{Result, Revision};

/// Maximum size of a batch in bytes.
const MAX_BATCH_BYTES: usize = 4 << 20;
/// Size in bytes at which a memtable is sealed.
const MAX_MEMTABLE_BYTES: u64 = 16 << 20;

/// A store under construction. It has no high-water mark until [`StoreBuilder::finish`] returns.
pub(super) struct StoreBuilder {
    dir: PathBuf,
    tables: Tables,
    rows: Vec<(Vec<u8>, Vec<u8>)>,
    bytes: usize,
}

impl StoreBuilder {
    /// Starts a store in a directory that does not exist.
    pub(super) fn begin(dir: &Path, identity: &Identity) -> Result<StoreBuilder, OpenError> {
        make_dirs(dir)?;
        let tables = Tables::open(&dir.join("fjall"), CACHE_BYTES, None)?;
        recovery::initialize(&tables, identity)?;
        Ok(StoreBuilder { dir: dir.to_owned(), tables, rows: Vec::new(), bytes: 0 })
    }

    /// Adds an object at its revision.
    pub(super) fn add(&mut self, key: &str, revision: u64, value: &[u8]) -> Result<()> {
        let key = layout::version_key(key, revision);
        let row = layout::encode_version(&key, revision, Some(value));
        self.bytes += key.len() + row.len();
        self.rows.push((key, row));
        if self.bytes >= MAX_BATCH_BYTES { self.write() } else { Ok(()) }
    }

    /// Writes the collected rows as one batch.
    fn write(&mut self) -> Result<()> {
        let mut batch = self.tables.begin_batch(PersistMode::Buffer)?;
        for (key, row) in std::mem::take(&mut self.rows) {
            batch.insert(&self.tables.versions, key, row);
        }
        self.bytes = 0;
        batch.commit().map_err(|error| map_fjall_error(&error))?;
        if self.tables.versions.tree.active_memtable().size() > MAX_MEMTABLE_BYTES {
            self.flush()
        } else {
            Ok(())
        }
    }

    /// Seals all memtables, and waits until all rows are in tables.
    fn flush(&self) -> Result<()> {
        for keyspace in self.tables.keyspaces() {
            keyspace.rotate_memtable().map_err(|error| map_fjall_error(&error))?;
        }
        while self.tables.sealed_memtables() > 0 {
            self.tables.check_background_writes()?;
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Finishes the store at `revision`, and records the gap after `newest` as a [`Jump`].
    ///
    /// `newest` is the newest revision that clients may have seen. The change of `revision` deletes the empty
    /// key, which never existed. History begins after this change.
    pub(super) fn finish(mut self, newest: u64, revision: u64) -> Result<Revision, OpenError> {
        self.write()?;
        let mut batch = self.tables.begin_batch(PersistMode::SyncData)?;
        let (name, row) = layout::encode_jump(Jump { from: Revision(newest), to: Revision(revision) });
        batch.insert(&self.tables.meta, name, row);
        for name in [META_COMPACTED, META_TRIMMED] {
            batch.insert(&self.tables.meta, name, layout::encode_meta_row(name, revision, &[]));
        }
        let entry = LogEntry { revision, key: Arc::from(""), event: Tag::Removed, previous: 0 };
        batch.insert(&self.tables.log, layout::log_key(revision), layout::encode_entry(&entry));
        batch.commit().map_err(|error| map_fjall_error(&error))?;
        self.flush()?;
        self.tables.database.persist(PersistMode::SyncAll).map_err(|error| map_fjall_error(&error))?;
        drop(self.tables);
        let flushed = Flushed { log: revision, versions: revision };
        let values = MarkValues { revision, compacted: revision, flushed };
        HighWaterMark::create(&self.dir, "mark", values)?;
        Ok(Revision(revision))
    }
}
