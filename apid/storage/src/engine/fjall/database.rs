//! The fjall database of the engine: configuration, opening, repair after a failed write, and error mapping.
//!
//! No fjall type leaves this folder.

use std::fs::File;
use std::io::{self, Read, Write};
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fjall::compaction::Leveled;
use fjall::config::{CompressionPolicy, FilterPolicy};
use fjall::{AbstractTree, Database, Keyspace, KeyspaceCreateOptions, OwnedWriteBatch, PersistMode};

use super::files::journal::JournalEnd;
use super::layout::{self, Jump};
use crate::Error;

/// A memtable size that is never reached. It disables the rotation by size in fjall, whose workers can block
/// each other. `u64::MAX` would overflow in fjall's sums.
const UNREACHED_MEMTABLE_BYTES: u64 = 1 << 50;
/// Total size of sealed journals at which fjall rotates the memtables that pin the oldest journal. The
/// minimum that fjall accepts.
const MAX_JOURNAL_BYTES: u64 = 64 << 20;
/// Size in bytes at which a compaction begins a new table. fjall holds the blocks of this table in memory.
const TABLE_BYTES: u64 = 16 << 20;
/// Number of worker threads of fjall: one flushes while the other compacts. A single worker could wait in a
/// compaction for a flush that only this worker can run.
const WORKERS: usize = 2;
/// Number of unflushed memtables of a keyspace at which fjall halts a write.
const HALT_MEMTABLES: usize = 4;
/// Number of level-0 runs of a keyspace at which a write waits. fjall halts a write at 30 runs, and the flush
/// of each waiting memtable can add one.
const WAIT_RUNS: usize = 30 - HALT_MEMTABLES;
/// Interval of checks for the end of a flush.
const FLUSH_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// The database and its three keyspaces.
pub(super) struct Tables {
    pub(super) database: Database,
    pub(super) log: Keyspace,
    pub(super) versions: Keyspace,
    pub(super) meta: Keyspace,
    /// The gaps in the sequence of revisions, as `meta` records them. A restore or a repair makes a gap.
    pub(super) jumps: Vec<Jump>,
}

impl Tables {
    /// Opens or creates the database in a directory. A panic of fjall becomes [`Error::Corrupt`].
    ///
    /// The newest journal is truncated at `journal_end`, its verified end.
    pub(super) fn open(
        path: &Path,
        cache_bytes: u64,
        journal_end: Option<JournalEnd>,
    ) -> Result<Tables, Error> {
        if let Some(end) = journal_end {
            end.discard_torn_batch().map_err(|error| map_io_error(&error))?;
        }
        let opened = std::panic::catch_unwind(AssertUnwindSafe(|| Tables::try_open(path, cache_bytes)));
        match opened {
            Ok(result) => result,
            Err(_) => {
                Err(Error::Corrupt("fjall panicked while it read the files of the database".to_owned()))
            }
        }
    }

    fn try_open(path: &Path, cache_bytes: u64) -> Result<Tables, Error> {
        let mut tables = Tables::open_keyspaces(path, cache_bytes).map_err(|error| match error {
            fjall::Error::Io(error) | fjall::Error::Storage(fjall::LsmError::Io(error))
                if error.kind() == io::ErrorKind::NotFound =>
            {
                Error::Corrupt("a file of the database is missing".to_owned())
            }
            other => map_fjall_error(&other),
        })?;
        for guard in tables.meta.prefix(layout::META_JUMP) {
            let (name, row) = guard.into_inner().map_err(|error| map_fjall_error(&error))?;
            tables.jumps.push(layout::decode_jump(&name, &row)?);
        }
        Ok(tables)
    }

    fn open_keyspaces(path: &Path, cache_bytes: u64) -> fjall::Result<Tables> {
        let database = Database::builder(path)
            .cache_size(cache_bytes)
            .worker_threads(WORKERS)
            .max_journaling_size(MAX_JOURNAL_BYTES)
            .manual_journal_persist(true)
            .open()?;
        // While fjall writes a table, its index holds a key of each block, and each key keeps its block in memory.
        // Compressed blocks of large objects took more than 1 GiB. fjall reads these options only for a new store.
        let compaction = Arc::new(Leveled::default().with_table_target_size(TABLE_BYTES));
        let options = || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(UNREACHED_MEMTABLE_BYTES)
                .manual_journal_persist(true)
                .data_block_compression_policy(CompressionPolicy::disabled())
                .compaction_strategy(Arc::clone(&compaction) as _)
        };
        let without_filter = || options().filter_policy(FilterPolicy::disabled());
        let log = database.keyspace("log", without_filter)?;
        let versions = database.keyspace("versions", options)?;
        let meta = database.keyspace("meta", options)?;
        // fjall syncs the contents of a keyspace folder, but not its parent: a power cut could lose the
        // folder.
        File::open(path.join("keyspaces"))?.sync_all()?;
        Ok(Tables { database, log, versions, meta, jumps: Vec::new() })
    }

    /// Whether no revision is missing between `last` and `next`; a recorded jump counts as no gap.
    pub(super) fn follows(&self, last: u64, next: u64) -> bool {
        next == last + 1 || self.jumps.iter().any(|jump| jump.from.0 <= last && jump.to.0 == next)
    }

    /// The three keyspaces.
    pub(super) fn keyspaces(&self) -> [&Keyspace; 3] {
        [&self.log, &self.versions, &self.meta]
    }

    /// Checks that no background write failed. After a failure fjall rejects all writes until it is reopened.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the database must be reopened.
    pub(super) fn check_background_writes(&self) -> Result<(), Error> {
        if matches!(self.database.persist(PersistMode::Buffer), Err(fjall::Error::Poisoned)) {
            return Err(Error::Unavailable("a background write of the database failed".to_owned()));
        }
        Ok(())
    }

    /// Begins a batch, after a wait until fjall accepts the batch without a halt.
    ///
    /// fjall can still seal a memtable that pins its oldest journal before the commit of the batch. The
    /// commit then waits for a flush.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the database must be reopened.
    pub(super) fn begin_batch(&self, mode: PersistMode) -> Result<OwnedWriteBatch, Error> {
        self.wait_for_flushes()?;
        Ok(self.database.batch().durability(Some(mode)))
    }

    /// Waits until fjall accepts a batch without a halt.
    ///
    /// fjall halts a batch while flushes or compactions are too far behind, and forever once they have
    /// failed.
    fn wait_for_flushes(&self) -> Result<(), Error> {
        let is_behind = |keyspace: &&Keyspace| {
            keyspace.tree.sealed_memtable_count() >= HALT_MEMTABLES
                || keyspace.tree.l0_run_count() >= WAIT_RUNS
        };
        while self.keyspaces().iter().any(is_behind) {
            self.check_background_writes()?;
            std::thread::sleep(FLUSH_CHECK_INTERVAL);
        }
        Ok(())
    }

    /// Size of the tables on disk in bytes.
    pub(super) fn table_bytes(&self) -> u64 {
        self.keyspaces().iter().map(|keyspace| keyspace.disk_space()).sum()
    }

    /// Number of sealed memtables that are not flushed yet.
    pub(super) fn sealed_memtables(&self) -> usize {
        self.keyspaces().iter().map(|keyspace| keyspace.tree.sealed_memtable_count()).sum()
    }

    /// The highest flushed sequence number of each keyspace. The value changes whenever a flush ends.
    pub(super) fn flushed_seqnos(&self) -> [Option<u64>; 3] {
        self.keyspaces().map(|keyspace| keyspace.tree.get_highest_persisted_seqno())
    }
}

/// Rewrites every journal of a closed database from the page cache.
///
/// After a failed sync the kernel may mark pages clean that never reached the medium: a later sync would
/// succeed without writing them. A synced copy reaches the medium.
pub(super) fn rewrite_journals(path: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(path)? {
        let journal = entry?.path();
        if journal.extension().is_none_or(|extension| extension != "jnl") {
            continue;
        }
        let unfinished = journal.with_added_extension("new");
        copy(&mut File::open(&journal)?, &mut File::create(&unfinished)?)?;
        std::fs::rename(&unfinished, &journal)?;
    }
    File::open(path)?.sync_all()
}

/// Copies with plain reads and writes: a copy by the kernel could share the extents of the old file.
fn copy(from: &mut File, to: &mut File) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 20];
    loop {
        let length = match from.read(&mut buffer) {
            Ok(0) => return to.sync_all(),
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        to.write_all(buffer.get(..length).unwrap_or_default())?;
    }
}

/// Maps a fjall error to an [`Error`] of this crate.
pub(super) fn map_fjall_error(error: &fjall::Error) -> Error {
    match error {
        fjall::Error::Io(error) | fjall::Error::Storage(fjall::LsmError::Io(error)) => map_io_error(error),
        fjall::Error::Poisoned => Error::Unavailable(
            "an earlier write to the journal failed; the database must be reopened".to_owned(),
        ),
        fjall::Error::Locked => Error::Unavailable("another process uses the database".to_owned()),
        other => Error::Corrupt(other.to_string()),
    }
}

/// Maps an I/O error to an [`Error`] of this crate.
pub(super) fn map_io_error(error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::Full(error.to_string()),
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => Error::Corrupt(error.to_string()),
        _ => Error::Unavailable(error.to_string()),
    }
}
