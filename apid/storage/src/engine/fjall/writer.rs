//! The writer thread: group commit of waiting requests.
//!
//! One batch takes one fdatasync of the journal, one synced write of the high-water mark and one call of the
//! observer. Then its commits return.
//!
//! # Invariants
//!
//! INVARIANT (acknowledged is durable): a commit succeeds only after its batch is synced, and then the
//! high-water mark.
//! INVARIANT (rejected is absent): a commit with an error other than `Unavailable` was never written. The
//! outcome of a failed write is unknown: all commits of the batch get `Unavailable`. Changes that the
//! reopened database still holds are published as normal history.

use std::collections::HashMap;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use apimachinery::clock::Clock;
use fjall::PersistMode;

use super::database::{self, Tables, map_fjall_error, map_io_error};
use super::files::journal::JournalEnd;
use super::files::{self, VerifyOutcome};
use super::high_water_mark::{HighWaterMark, MarkValues};
use super::layout::{self, LogEntry, META_COMPACTED, Tag};
use super::queue::{Commit, WriterCommand};
use super::reader::{self, HistoryLimits};
use super::recovery;
use super::rotation::Rotation;
use super::row_cache::RowCache;
use super::space::{SpaceCheck, SpaceEffect};
use super::state::SharedState;
use super::trim::{self, Reclaim, Removals, Retention};
use crate::{Change, CommitOutcome, Error, Held, Observer, Op, Result, Revision, Row};

/// Interval of the periodic maintenance.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between attempts to reopen the database.
const REOPEN_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of log entries that one batch trims while no commit waits.
const TRIM_BATCH_ENTRIES: usize = 1024;
/// Retention of history while the store is full, so that the space of deleted objects is free within seconds.
const FULL_RETENTION: Duration = Duration::from_secs(5);
/// Time with at most [`IDLE_COMMITS`] commits after which the store is idle.
const IDLE_AFTER: Duration = Duration::from_secs(10);
/// Maximum number of commits in an idle interval. The first interval lasts [`IDLE_AFTER`]; each later
/// interval lasts from one tick of the periodic maintenance to the next.
const IDLE_COMMITS: u64 = 16;
/// Size in bytes of all memtables together above which an idle store flushes them.
const IDLE_MEMTABLE_BYTES: u64 = 256 << 10;
/// Maximum number of ticks for which the drop of `log` tables waits for a running LSM compaction.
///
/// A drop during the compaction would block the writer thread until the compaction ends.
const MAX_DEFERRED_TICKS: u32 = 10;

/// The paths of the store's files, and the sizes of the block cache and of a full memtable.
pub(super) struct StoreFiles {
    pub(super) dir: PathBuf,
    pub(super) database: PathBuf,
    pub(super) mark: PathBuf,
    pub(super) cache_bytes: u64,
    pub(super) memtable_bytes: u64,
}

/// The state of the writer thread; see the module documentation.
pub(super) struct Writer {
    pub(super) state: Arc<SharedState>,
    pub(super) observer: Arc<dyn Observer>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) files: StoreFiles,
    pub(super) mark: HighWaterMark,
    pub(super) revision: u64,
    pub(super) retention: Retention,
    pub(super) rotation: Rotation,
    pub(super) reclaim: Reclaim,
    pub(super) space: SpaceCheck,
    pub(super) row_cache: RowCache,
    pub(super) failure: Option<Failure>,
    /// Whether trimming has ended because a read of old history failed.
    pub(super) trimming_stopped: bool,
    pub(super) last_tick: Duration,
    /// Number of ticks for which the drop of tables was deferred.
    pub(super) deferred_ticks: u32,
    pub(super) idle: IdleDetector,
    /// The lock file, locked while the thread runs: only one process can open the directory.
    pub(super) lock: File,
}

/// Detects that a store has few writes.
#[derive(Default)]
pub(super) struct IdleDetector {
    /// Start of the current interval, and the revision at that time.
    interval_start: Option<(Duration, u64)>,
}

impl IdleDetector {
    /// Whether the current interval has lasted at least [`IDLE_AFTER`] with at most [`IDLE_COMMITS`] commits.
    fn is_idle(&mut self, now: Duration, revision: u64) -> bool {
        match self.interval_start {
            Some((since, first)) if revision.saturating_sub(first) <= IDLE_COMMITS => {
                let is_idle = now.saturating_sub(since) >= IDLE_AFTER;
                if is_idle {
                    // The count begins anew at each tick, so that rare writes do not add up over hours.
                    self.interval_start = Some((now.saturating_sub(IDLE_AFTER), revision));
                }
                is_idle
            }
            _ => {
                self.interval_start = Some((now, revision));
                false
            }
        }
    }
}

/// A failed write: the database accepts no write until it is reopened.
pub(super) struct Failure {
    error: Error,
    /// The clock time of the last attempt to reopen the database.
    last_attempt: Duration,
}

/// Closes the store when the writer thread ends, even by a panic.
struct CloseOnExit(Arc<SharedState>);

impl Drop for CloseOnExit {
    fn drop(&mut self) {
        self.0.set_closed();
        drop(self.0.queue.close());
        drop(self.0.replace_tables(None));
        self.0.busy_since.store(0, Ordering::SeqCst);
    }
}

/// The changes of a batch before the write.
#[derive(Default)]
struct StagedBatch {
    /// The rows after the batch, by key; None for a deleted key.
    rows: HashMap<Arc<str>, Option<Row>>,
    changes: Vec<Change>,
}

impl Writer {
    /// Runs the writer loop until the store closes.
    pub(super) fn run(mut self) {
        let close_on_exit = CloseOnExit(self.state.clone());
        // Replayed journals may fill more than one memtable, and no later write may come to seal it. Without
        // space for a table, the rotation waits for the first tick that finds space.
        let now = self.start_step();
        if let Some(tables) = self.state.tables_if_open()
            && self.space.admit(SpaceEffect::Shrink, &tables, now).is_ok()
        {
            self.rotate(&tables);
        }
        loop {
            self.state.busy_since.store(0, Ordering::SeqCst);
            let requests = self.state.queue.take(MAINTENANCE_INTERVAL);
            let now = self.start_step();
            self.commit(requests.commits, now);
            for command in requests.commands {
                match command {
                    WriterCommand::Compact { upto, answer } => {
                        // A send fails when the caller no longer waits, here and below.
                        let _ = answer.send(self.compact(upto));
                    }
                    WriterCommand::Maintain { answer } => {
                        let _ = answer.send(self.tick(now));
                    }
                    WriterCommand::Close { answer } => {
                        self.close(now);
                        drop(close_on_exit);
                        let _ = answer.send(());
                        return;
                    }
                }
            }
            if now.saturating_sub(self.last_tick) >= MAINTENANCE_INTERVAL {
                self.last_tick = now;
                // A full store is logged once by `update_full_state`, not at each tick.
                if let Err(error) = self.tick(now)
                    && !matches!(error, Error::Full(_))
                {
                    tracing::warn!(%error, "storage maintenance failed; retrying at the next tick");
                }
            }
        }
    }

    /// Records the start of a step for the watchdog, and returns the time.
    fn start_step(&self) -> Duration {
        let now = self.clock.monotonic();
        let millis = u64::try_from(now.as_millis()).unwrap_or(u64::MAX - 1);
        self.state.busy_since.store(millis + 1, Ordering::SeqCst);
        now
    }

    /// Checks the precondition of each commit, writes the batch and the high-water mark, publishes the
    /// changes, and responds to each commit.
    fn commit(&mut self, commits: Vec<Commit>, now: Duration) {
        if commits.is_empty() {
            return;
        }
        let tables = match self.writable_tables(now) {
            Ok(tables) => tables,
            Err(error) => {
                for commit in commits {
                    let _ = commit.answer.send(Err(error.clone()));
                }
                return;
            }
        };
        let mut staged = StagedBatch::default();
        let mut answers = Vec::with_capacity(commits.len());
        for commit in commits {
            let Commit { key, op, held, answer } = commit;
            let outcome = self.decide(&tables, &mut staged, (&key, op, &held), now);
            answers.push((answer, outcome));
        }
        let write_result = if staged.changes.is_empty() { Ok(()) } else { self.write(&tables, staged) };
        drop(tables);
        for (answer, outcome) in answers {
            // The outcome may depend on an earlier change of the batch, so a failed write replaces every
            // outcome.
            let _ = answer.send(write_result.clone().and(outcome));
        }
    }

    /// Checks the precondition of a commit against the stored rows and the changes staged before it, and
    /// stages its change.
    fn decide(
        &mut self,
        tables: &Tables,
        staged: &mut StagedBatch,
        (key, op, held): (&Arc<str>, Op, &[Held]),
        now: Duration,
    ) -> Result<CommitOutcome> {
        let effect = if matches!(op, Op::Delete(_)) { SpaceEffect::Shrink } else { SpaceEffect::Grow };
        self.space.admit(effect, tables, now)?;
        let current = self.current_row(tables, staged, key)?;
        let new = match (op, &current) {
            (Op::Create(new), None) => Some(new),
            (Op::Create(_), Some(row)) => return Err(Error::Exists(Box::new(row.clone()))),
            (Op::Update(..) | Op::Delete(_), None) => return Err(Error::NotFound(key.clone())),
            (Op::Update(_, expected) | Op::Delete(expected), Some(row)) if row.revision != expected => {
                return Err(Error::Conflict(Box::new(row.clone())));
            }
            (Op::Update(new, _), Some(_)) => Some(new),
            (Op::Delete(_), Some(_)) => None,
        };
        for held in held {
            let row = self.current_row(tables, staged, &held.key)?;
            if row.is_none_or(|row| row.revision != held.revision) {
                return Err(held.lost());
            }
        }
        let offset = u64::try_from(staged.changes.len()).unwrap_or(u64::MAX);
        let revision = Revision(self.revision + 1 + offset);
        let row = new.clone().map(|value| Row { key: key.clone(), value, revision });
        staged.rows.insert(key.clone(), row);
        staged.changes.push(Change { key: key.clone(), old: current, new, revision });
        Ok(CommitOutcome { revision })
    }

    /// The row of a key after the changes staged so far.
    fn current_row(&mut self, tables: &Tables, staged: &StagedBatch, key: &Arc<str>) -> Result<Option<Row>> {
        if let Some(row) = staged.rows.get(key) {
            return Ok(row.clone());
        }
        match self.row_cache.find(key) {
            Some(row) => Ok(row),
            None => reader::row_at(tables, key, u64::MAX),
        }
    }

    /// Writes a staged batch, and publishes its changes.
    fn write(&mut self, tables: &Tables, staged: StagedBatch) -> Result<()> {
        let StagedBatch { rows, changes } = staged;
        let last = changes.last().map_or(self.revision, |change| change.revision.0);
        let trimmed = match self.write_and_sync(tables, &changes, last) {
            Ok(trimmed) => trimmed,
            Err(error) => return Err(self.record_failure(error)),
        };
        self.revision = last;
        for (key, row) in rows {
            self.row_cache.insert(key, row);
        }
        if let Some(through) = trimmed {
            self.state.trimmed.store(through, Ordering::SeqCst);
        }
        self.publish(changes);
        self.rotate(tables);
        Ok(())
    }

    /// Writes a batch and the high-water mark, and returns the new trimmed revision, if any.
    ///
    /// The batch also trims more log entries than it adds, so that trimming keeps up with writes.
    fn write_and_sync(&mut self, tables: &Tables, changes: &[Change], last: u64) -> Result<Option<u64>> {
        let mut batch = tables.begin_batch(PersistMode::SyncData)?;
        for change in changes {
            let revision = change.revision.0;
            let key = layout::version_key(&change.key, revision);
            let row = layout::encode_version(&key, revision, change.new.as_deref());
            batch.insert(&tables.versions, key, row);
            let event = match (&change.old, &change.new) {
                (_, None) => Tag::Removed,
                (None, Some(_)) => Tag::Created,
                (Some(_), Some(_)) => Tag::Updated,
            };
            let previous = change.old.as_ref().map_or(0, |row| row.revision.0);
            let entry = LogEntry { revision, key: change.key.clone(), event, previous };
            batch.insert(&tables.log, layout::log_key(revision), layout::encode_entry(&entry));
        }
        let removals = self.next_removals(tables, changes.len() + changes.len() / 4 + 32);
        let trimmed = removals.as_ref().map(|removals| removals.through);
        if let Some(removals) = removals {
            self.reclaim.count_removed(removals.len());
            removals.add_to(&mut batch, tables);
        }
        batch.commit().map_err(|error| map_fjall_error(&error))?;
        let flushed = self.mark.values().flushed;
        let compacted = self.state.compacted.load(Ordering::SeqCst);
        self.write_mark(MarkValues { revision: last, compacted, flushed })?;
        Ok(trimmed)
    }

    /// The next removals; `limit` is the maximum number of log entries to trim. Unreadable old history ends
    /// trimming until the store is opened again, and fails neither commits nor the other maintenance.
    fn next_removals(&mut self, tables: &Tables, limit: usize) -> Option<Removals> {
        if self.trimming_stopped {
            return None;
        }
        let trimmed = self.state.trimmed.load(Ordering::SeqCst);
        let compacted = self.state.compacted.load(Ordering::SeqCst);
        Removals::find(tables, trimmed, compacted, limit).unwrap_or_else(|error| {
            tracing::error!(%error, "old history is unreadable; history trimming stopped");
            self.trimming_stopped = true;
            None
        })
    }

    fn write_mark(&mut self, values: MarkValues) -> Result<()> {
        self.mark.write(values).map_err(|error| map_io_error(&error))
    }

    /// Passes durable changes to the observer, then to watches and to reads without a revision.
    fn publish(&mut self, changes: Vec<Change>) {
        let Some(last) = changes.last().map(|change| change.revision.0) else { return };
        self.state.durable.store(last, Ordering::SeqCst);
        self.observer.observe(&changes);
        self.state.recent.lock().extend(changes);
        self.state.published.send_replace(last);
    }

    /// Seals memtables. The preceding batch is durable: only the next write sees a failure of this step.
    fn rotate(&mut self, tables: &Tables) {
        match self.rotation.after_batch(tables, self.revision) {
            Ok(count) => {
                self.state.rotations.fetch_add(count, Ordering::Relaxed);
            }
            Err(error) => {
                self.record_failure(map_fjall_error(&error));
            }
        }
    }

    /// Records a failed write, and returns the error for its commits: always `Unavailable`.
    fn record_failure(&mut self, error: Error) -> Error {
        tracing::error!(%error, "storage write failed; reopening the database");
        let last_attempt = self.clock.monotonic();
        self.failure = Some(Failure { error: error.clone(), last_attempt });
        if !matches!(error, Error::Full(_)) {
            self.state.set_down(Some(error.clone()));
        }
        match error {
            Error::Unavailable(_) => error,
            other => Error::Unavailable(other.to_string()),
        }
    }

    /// Returns the tables; reopens the database first if a write failed.
    fn writable_tables(&mut self, now: Duration) -> Result<Arc<Tables>> {
        if let Some(failure) = &mut self.failure {
            if now.saturating_sub(failure.last_attempt) < REOPEN_INTERVAL {
                return Err(failure.error.clone());
            }
            failure.last_attempt = now;
            if let Err(error) = self.reopen() {
                tracing::error!(%error, "reopening the storage database failed; retrying");
                let failure = Failure { error: error.clone(), last_attempt: now };
                self.failure = Some(failure);
                return Err(error);
            }
            self.failure = None;
        }
        self.state.tables()
    }

    /// Opens the database again. Returns `Full` without disk space for a reopen: the old database then still
    /// serves reads.
    fn reopen(&mut self) -> Result<()> {
        self.space.check_reopen()?;
        let reason = Error::Unavailable("the database reopens after a failed write".to_owned());
        self.state.set_down(Some(reason));
        self.detach_tables();
        let outcome = self.attach_tables();
        self.state.set_down(outcome.as_ref().err().cloned());
        outcome
    }

    /// Hides the tables from new reads, and closes them after the last running read.
    fn detach_tables(&mut self) {
        self.reclaim.finish();
        self.row_cache.clear();
        let Some(mut tables) = self.state.replace_tables(None) else { return };
        loop {
            match Arc::try_unwrap(tables) {
                Ok(sole_owner) => return drop(sole_owner),
                Err(still_shared) => tables = still_shared,
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Verifies the journals before a reopen discards a torn batch. If journals may lack acknowledged writes,
    /// the complete verification of a start decides whether a batch can be discarded.
    fn verify_before_reopen(&self) -> Result<Option<JournalEnd>> {
        let mark = self.mark.values();
        let VerifyOutcome { suspicion, journal_end } = files::verify_journals(&self.files.database, &mark)?;
        if suspicion.is_some() && journal_end.as_ref().is_some_and(JournalEnd::is_torn) {
            return super::verify_files(&self.files.dir, &mark);
        }
        Ok(journal_end)
    }

    /// Opens the tables, publishes recovered changes, and gives the tables to readers.
    fn attach_tables(&mut self) -> Result<()> {
        database::rewrite_journals(&self.files.database).map_err(|error| map_io_error(&error))?;
        let mark =
            HighWaterMark::open(&self.files.mark).map_err(|error| Error::Unavailable(error.to_string()))?;
        self.mark =
            mark.ok_or_else(|| Error::Corrupt("the high-water mark file `mark` is missing".to_owned()))?;
        let journal_end = self.verify_before_reopen()?;
        let tables = Tables::open(&self.files.database, self.files.cache_bytes, journal_end)?;
        let recovered = recovery::compare(&tables, self.mark.values())?;
        let flushed = self.mark.values().flushed;
        self.write_mark(MarkValues {
            revision: recovered.revision,
            compacted: recovered.compacted,
            flushed,
        })?;
        self.rotation = Rotation::new(self.files.memtable_bytes, flushed);
        self.state.compacted.store(recovered.compacted, Ordering::SeqCst);
        self.state.trimmed.store(recovered.trimmed, Ordering::SeqCst);
        while self.revision < recovered.revision {
            let limits = HistoryLimits { entries: 1024, bytes: 8 << 20 };
            let (changes, through) = reader::history(&tables, "", self.revision, recovered.revision, limits)?;
            self.revision = through;
            self.publish(changes);
        }
        let tables = Arc::new(tables);
        self.state.replace_tables(Some(tables.clone()));
        self.rotate(&tables);
        tracing::info!(revision = self.revision, "storage database reopened");
        Ok(())
    }

    /// Compacts history up to a revision: persists the revision first, then rejects older reads.
    fn compact(&mut self, upto: Revision) -> Result<()> {
        if upto.0 > self.revision {
            return Err(Error::Future { requested: upto, current: Revision(self.revision) });
        }
        if upto.0 <= self.state.compacted.load(Ordering::SeqCst) {
            return Ok(());
        }
        let now = self.clock.monotonic();
        let tables = self.writable_tables(now)?;
        self.space.admit(SpaceEffect::Shrink, &tables, now)?;
        let mut batch =
            tables.begin_batch(PersistMode::SyncData).map_err(|error| self.record_failure(error))?;
        let row = layout::encode_meta_row(META_COMPACTED, upto.0, &[]);
        batch.insert(&tables.meta, META_COMPACTED, row);
        let written = batch.commit().map_err(|error| map_fjall_error(&error)).and_then(|()| {
            let flushed = self.mark.values().flushed;
            self.write_mark(MarkValues { revision: self.revision, compacted: upto.0, flushed })
        });
        if let Err(error) = written {
            return Err(self.record_failure(error));
        }
        self.state.compacted.store(upto.0, Ordering::SeqCst);
        Ok(())
    }

    /// Runs the periodic maintenance.
    fn tick(&mut self, now: Duration) -> Result<()> {
        let tables = self.writable_tables(now)?;
        tables.check_background_writes().map_err(|error| self.record_failure(error))?;
        let is_full = self.update_full_state(&tables, now);
        let limit = if is_full { FULL_RETENTION } else { Duration::MAX };
        let leased = self.state.leases.oldest().map_or(u64::MAX, |oldest| oldest.0);
        if let Some(cutoff) = self.retention.cutoff(now, self.revision, limit, leased) {
            self.compact(Revision(cutoff))?;
        }
        self.trim(&tables, now)?;
        self.drop_tables(&tables)?;
        let is_idle = self.idle.is_idle(now, self.revision);
        if is_full || (is_idle && self.reclaim.is_worthwhile(&tables)) {
            self.space.admit(SpaceEffect::Shrink, &tables, now)?;
            let trimmed = self.state.trimmed.load(Ordering::SeqCst);
            self.reclaim.begin(&tables, trimmed, || self.rotation.seal_all(&tables, self.revision))?;
        }
        if is_idle
            && tables.sealed_memtables() == 0
            && tables.database.write_buffer_size() > IDLE_MEMTABLE_BYTES
        {
            let sealed = self.rotation.seal_all(&tables, self.revision);
            let count = sealed.map_err(|error| self.record_failure(map_fjall_error(&error)))?;
            self.state.rotations.fetch_add(count, Ordering::Relaxed);
        }
        self.rotate(&tables);
        let flushed = self.rotation.flushed(&tables, self.revision);
        if flushed != self.mark.values().flushed {
            let compacted = self.state.compacted.load(Ordering::SeqCst);
            self.write_mark(MarkValues { revision: self.revision, compacted, flushed })?;
        }
        Ok(())
    }

    /// Measures the space, and returns whether creates and updates are rejected for lack of it. Records the
    /// reason for health checks, and logs the start and the end of this state.
    fn update_full_state(&mut self, tables: &Tables, now: Duration) -> bool {
        let reason = match self.space.admit(SpaceEffect::Grow, tables, now) {
            Err(Error::Full(reason)) => Some(reason),
            Ok(()) | Err(_) => None,
        };
        let is_full = reason.is_some();
        match (self.state.set_full(reason.clone()), reason) {
            (None, Some(reason)) => tracing::warn!(reason, "storage is full; rejecting creates and updates"),
            (Some(_), None) => tracing::info!("storage has space again; accepting creates and updates"),
            (None, None) | (Some(_), Some(_)) => {}
        }
        is_full
    }

    /// Removes superseded versions while no commit waits. The batches are not synced: after a crash, lost
    /// removals are repeated.
    fn trim(&mut self, tables: &Tables, now: Duration) -> Result<()> {
        while self.state.queue.is_empty()
            && let Some(removals) = self.next_removals(tables, TRIM_BATCH_ENTRIES)
        {
            self.space.admit(SpaceEffect::Shrink, tables, now)?;
            let (through, rows) = (removals.through, removals.len());
            let mut batch =
                tables.begin_batch(PersistMode::Buffer).map_err(|error| self.record_failure(error))?;
            removals.add_to(&mut batch, tables);
            if let Err(error) = batch.commit() {
                return Err(self.record_failure(map_fjall_error(&error)));
            }
            self.state.trimmed.store(through, Ordering::SeqCst);
            self.reclaim.count_removed(rows);
            self.rotate(tables);
            self.start_step();
        }
        Ok(())
    }

    /// Drops trimmed tables of the log. While an LSM compaction runs, defers the drop for at most
    /// [`MAX_DEFERRED_TICKS`] ticks.
    fn drop_tables(&mut self, tables: &Tables) -> Result<()> {
        if tables.database.active_compactions() > 0 && self.deferred_ticks < MAX_DEFERRED_TICKS {
            self.deferred_ticks += 1;
            return Ok(());
        }
        self.deferred_ticks = 0;
        trim::drop_tables(tables, self.state.trimmed.load(Ordering::SeqCst)).map(|_| ())
    }

    /// Finishes the waiting commits, rejects waiting compactions and maintenance, and closes the files.
    fn close(&mut self, now: Duration) {
        let requests = self.state.queue.close();
        self.commit(requests.commits, now);
        for command in requests.commands {
            match command {
                WriterCommand::Compact { answer, .. } | WriterCommand::Maintain { answer } => {
                    let _ = answer.send(Err(Error::closed()));
                }
                WriterCommand::Close { answer } => {
                    let _ = answer.send(());
                }
            }
        }
        self.state.set_closed();
        if let Some(tables) = self.state.tables_if_open() {
            let flushed = self.rotation.flushed(&tables, self.revision);
            let compacted = self.state.compacted.load(Ordering::SeqCst);
            let persisted = tables
                .database
                .persist(PersistMode::SyncAll)
                .map_err(|error| map_fjall_error(&error))
                .and_then(|()| self.write_mark(MarkValues { revision: self.revision, compacted, flushed }));
            if let Err(error) = persisted {
                tracing::warn!(%error, "final sync of the storage engine failed; acknowledged commits are safe");
            }
        }
        self.detach_tables();
        if let Err(error) = self.lock.unlock() {
            tracing::warn!(%error, "unlocking the data directory failed; the end of the process releases the lock");
        }
    }
}
