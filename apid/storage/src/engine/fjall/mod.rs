//! The durable engine: one process, on fjall's LSM trees. `FORMAT.md` describes the files.
//!
//! # Contract
//!
//! The engine implements [`Store`] and adds: one process for a directory; an identity written at creation; a
//! history retention with trimming; a quota and a disk reserve. Creates and updates fail with `Full` while
//! the data exceeds the quota or the free disk space is below the reserve. The engine needs a tokio runtime:
//! ranges and old history are read on its blocking threads.
//!
//! # Invariants
//!
//! The modules state the invariants.
//! INVARIANT (acknowledged is durable), INVARIANT (rejected is absent): `writer`.
//! INVARIANT (no silent loss): `recovery`, `high_water_mark`.
//! INVARIANT (compaction is enforced): `state`.
//! Unused parts of fjall: key-value separation, `clear()`, memtable rotation by size, one keyspace for each
//! kind.
//!
//! # Concurrency
//!
//! The writer thread owns the high-water mark, the revision and every write. Readers take the tables from
//! `state`; the locks of `state` are held only briefly. The watchdog only reads.

mod database;
mod files;
mod high_water_mark;
mod layout;
pub mod offline;
mod queue;
mod reader;
mod recent;
mod recovery;
mod rotation;
mod row_cache;
mod space;
mod state;
mod stream;
mod survey;
mod trim;
mod watchdog;
mod writer;

#[cfg(test)]
mod tests;

use std::fmt;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use apimachinery::clock::Clock;
use apimachinery::names::DEFAULT_API_DOMAIN;
use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use self::database::Tables;
use self::files::journal::{self, JournalEnd};
use self::files::{FileProblem, VerifyOutcome};
use self::high_water_mark::{HighWaterMark, HighWaterMarkError, MarkValues};
use self::offline::ArchiveError;
use self::queue::{Commit, WriterCommand};
use self::reader::RowLimits;
use self::rotation::Rotation;
use self::row_cache::RowCache;
use self::space::SpaceCheck;
use self::state::SharedState;
use self::stream::FjallWatch;
use self::survey::Survey;
use self::trim::{Reclaim, Retention};
use self::watchdog::{StallDetector, Watchdog};
use self::writer::{IdleDetector, StoreFiles, Writer};
use crate::{
    CommitOutcome, Error, Held, HistoryLease, Observer, Op, Page, Result, Revision, RevisionRange, Row,
    Stats, Store, Watch, check_size,
};

/// The identity of a store: a store opens only with the identity of its creation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The names preset: `svc` or `kubernetes`.
    pub preset: String,
    /// The API domain: the domain suffix of API groups in the `svc` preset.
    pub api_domain: String,
}

impl Identity {
    /// Returns the flags that select this identity instead of a requested one.
    pub(crate) fn flags(&self, requested: &Identity) -> String {
        if self.api_domain == requested.api_domain {
            format!("--names {}", self.preset)
        } else {
            format!("--names {} --api-domain {}", self.preset, self.api_domain)
        }
    }
}

/// Leaves out the default API domain.
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "names `{}`", self.preset)?;
        if self.api_domain != DEFAULT_API_DOMAIN {
            write!(f, " and API domain `{}`", self.api_domain)?;
        }
        Ok(())
    }
}

/// The options for opening a store.
#[derive(Clone)]
pub struct Options {
    /// The directory of this store; created when it is missing.
    pub dir: PathBuf,
    /// The identity of the store.
    pub identity: Identity,
    /// The clock for retention, periodic maintenance and the watchdog.
    pub clock: Arc<dyn Clock>,
    /// Time for which history is retained, for reads at old revisions and for watches.
    pub history_retention: Duration,
    /// Size of the data in bytes from which on creates and updates are rejected; None means no quota.
    pub quota_bytes: Option<u64>,
    /// Minimum number of free bytes on the disk, for journals, memtables and one LSM compaction. With less
    /// free space, creates and updates are rejected; with less than half of it, deletes and maintenance too.
    pub reserve_bytes: u64,
    /// Size of the block cache in bytes.
    pub cache_bytes: u64,
    /// Size in bytes at which a memtable is sealed and flushed.
    pub memtable_bytes: u64,
    /// Size in bytes of the row cache of the writer.
    pub row_cache_bytes: usize,
    /// Size in bytes of the cache of the newest changes, for watches.
    pub recent_bytes: usize,
    /// Maximum time without progress of a memtable flush or of the writer thread. After it, `on_stall` is
    /// called.
    pub stall_after: Duration,
    /// Called with the reason when a stall is detected. Must end the process: a stalled thread does not
    /// recover.
    pub on_stall: Arc<dyn Fn(&str) + Send + Sync>,
}

impl Options {
    /// The default options for a directory.
    pub fn new(dir: impl Into<PathBuf>, identity: Identity, clock: Arc<dyn Clock>) -> Self {
        Options {
            dir: dir.into(),
            identity,
            clock,
            history_retention: Duration::from_secs(5 * 60),
            quota_bytes: None,
            reserve_bytes: 256 << 20,
            cache_bytes: 4 << 20,
            memtable_bytes: 16 << 20,
            row_cache_bytes: 8 << 20,
            recent_bytes: 1 << 20,
            stall_after: Duration::from_secs(60),
            on_stall: Arc::new(end_process),
        }
    }
}

/// Ends the process with status 70 (`EX_SOFTWARE` of sysexits).
fn end_process(reason: &str) {
    tracing::error!(reason, "storage engine stalled; exiting, restart the process");
    std::process::exit(70)
}

/// The reason why a store failed to open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has the store open.
    #[error("the store in `{}` is in use by another process", .0.display())]
    Locked(PathBuf),
    /// The store was created with another identity.
    #[error(
        "the store was created with {stored} and cannot be opened with {requested}; start with `{}`",
        stored.flags(requested)
    )]
    Identity {
        /// The identity in the store.
        stored: Identity,
        /// The identity in the options.
        requested: Identity,
    },
    /// A newer release wrote the store.
    #[error("the store has format version {found}; this release supports versions up to {known}")]
    Format {
        /// The format version of the store.
        found: u32,
        /// The newest supported format version.
        known: u32,
    },
    /// An operation on a store found none.
    #[error("there is no store in `{}`; name the data directory of a server", .0.display())]
    NotFound(PathBuf),
    /// A new store would replace another one.
    #[error("the store `{}` exists already: move it away, or choose another data directory", .0.display())]
    Exists(PathBuf),
    /// A backup file is not usable.
    #[error("{0}")]
    Archive(#[from] ArchiveError),
    /// A repair found no identity in the store, and the caller gave none.
    #[error("the identity of the store is lost; give the names preset and the API domain")]
    MissingIdentity,
    /// The files are damaged, an acknowledged write is missing, or the storage engine returned another error.
    #[error("the store cannot be opened: {0}")]
    Store(#[from] Error),
    /// The operating system returned an error.
    #[error("the files of the store are not accessible: {0}")]
    Io(#[from] io::Error),
}

/// The durable store; see the module documentation.
pub struct FjallStore {
    state: Arc<SharedState>,
    writer: Mutex<Option<JoinHandle<()>>>,
    watchdog: Mutex<Option<Watchdog>>,
}

impl FjallStore {
    /// Hands a commit to the writer thread, and returns the receiver of its result.
    fn send_commit(
        &self,
        key: &str,
        op: Op,
        held: &[Held],
    ) -> Result<oneshot::Receiver<Result<CommitOutcome>>> {
        check_size(key, &op)?;
        let (answer, result) = oneshot::channel();
        self.state.queue.send_commit(Commit { key: key.into(), op, held: held.to_vec(), answer })?;
        Ok(result)
    }

    /// Opens a store, or creates a store in an empty directory. The observer sees only changes that are
    /// committed after the store is open.
    pub fn open(options: Options, observer: Arc<dyn Observer>) -> Result<FjallStore, OpenError> {
        make_dirs(&options.dir)?;
        let lock = lock(&options.dir)?;
        let files = StoreFiles {
            dir: options.dir.clone(),
            database: options.dir.join("fjall"),
            mark: options.dir.join("mark"),
            cache_bytes: options.cache_bytes,
            memtable_bytes: options.memtable_bytes,
        };
        let mark = read_mark(&files.mark)?;
        let journal_end = match &mark {
            Some(mark) => verify_files(&options.dir, &mark.values())?,
            None => {
                files::remove_interrupted_creation(&files.database)?;
                journal::unacknowledged_end(&files.database)?
            }
        };
        let tables = Tables::open(&files.database, options.cache_bytes, journal_end)?;
        let mut mark = match mark {
            Some(mark) => mark,
            None => create_mark(&tables, &options)?,
        };
        recovery::check_identity(&tables, &options.identity)?;
        let recovered = recovery::compare(&tables, mark.values())?;
        let flushed = mark.values().flushed;
        let values = MarkValues { revision: recovered.revision, compacted: recovered.compacted, flushed };
        if values != mark.values() {
            mark.write(values)?;
        }
        let state = Arc::new(SharedState::new(tables, recovered, options.recent_bytes));
        let detector = StallDetector::new(options.stall_after, options.memtable_bytes);
        let watchdog = Watchdog::start(state.clone(), options.clock.clone(), detector, options.on_stall)?;
        let writer = Writer {
            state: state.clone(),
            observer,
            mark,
            revision: recovered.revision,
            retention: Retention::new(options.history_retention),
            rotation: Rotation::new(options.memtable_bytes, flushed),
            reclaim: Reclaim::default(),
            space: SpaceCheck::new(options.dir, options.reserve_bytes, options.quota_bytes),
            row_cache: RowCache::new(options.row_cache_bytes),
            failure: None,
            trimming_stopped: false,
            last_tick: options.clock.monotonic(),
            deferred_ticks: 0,
            idle: IdleDetector::default(),
            clock: options.clock,
            files,
            lock,
        };
        let thread = std::thread::Builder::new().name("store-writer".to_owned());
        let writer = thread.spawn(move || writer.run())?;
        Ok(FjallStore { state, writer: Mutex::new(Some(writer)), watchdog: Mutex::new(Some(watchdog)) })
    }

    /// Runs the periodic maintenance now: compacts and trims old history, seals memtables if necessary, and
    /// records the flushed revisions.
    pub async fn maintain(&self) -> Result<()> {
        let (answer, response) = oneshot::channel();
        self.state.queue.send_command(WriterCommand::Maintain { answer })?;
        response.await.map_err(|_| Error::closed())?
    }

    /// Reads a range on a blocking thread.
    async fn read_range(
        &self,
        prefix: &str,
        start: &str,
        limits: RowLimits,
        at: Option<Revision>,
    ) -> Result<Page> {
        let (state, prefix, start) = (self.state.clone(), prefix.to_owned(), start.to_owned());
        let read = move || {
            let read = |tables: &_, revision| reader::range_at(tables, &prefix, &start, limits, revision);
            let ((rows, more), revision) = state.read(at, read)?;
            Ok(Page { rows, revision, more })
        };
        tokio::task::spawn_blocking(read).await.map_err(|error| Error::Unavailable(error.to_string()))?
    }

    /// Waits for the end of the writer thread and the watchdog thread.
    fn join(&self) {
        if let Some(writer) = self.writer.lock().take()
            && writer.join().is_err()
        {
            tracing::error!("storage writer thread panicked");
        }
        drop(self.watchdog.lock().take());
    }
}

#[async_trait]
impl Store for FjallStore {
    fn revision(&self) -> Revision {
        Revision(*self.state.published.borrow())
    }

    fn compacted(&self) -> Revision {
        Revision(self.state.compacted.load(Ordering::SeqCst))
    }

    async fn get(&self, key: &str, at: Option<Revision>) -> Result<Option<Row>> {
        // A point read needs a few blocks, most of them cached: cheaper here than on a blocking thread.
        self.state.read(at, |tables, revision| reader::row_at(tables, key, revision)).map(|(row, _)| row)
    }

    async fn range(&self, prefix: &str, start: &str, limit: usize, at: Option<Revision>) -> Result<Page> {
        self.read_range(prefix, start, RowLimits::of_rows(limit), at).await
    }

    async fn rows_within(
        &self,
        prefix: &str,
        start: &str,
        limit: usize,
        bytes: usize,
        at: Revision,
    ) -> Result<Page> {
        self.read_range(prefix, start, RowLimits { bytes, ..RowLimits::of_rows(limit) }, Some(at)).await
    }

    fn lease_history(&self, from: Revision) -> HistoryLease {
        self.state.leases.lease(from)
    }

    async fn commit(&self, key: &str, op: Op) -> Result<CommitOutcome> {
        self.send_commit(key, op, &[])?.await.map_err(|_| Error::closed())?
    }

    async fn commit_holding(&self, key: &str, op: Op, held: &[Held]) -> Result<CommitOutcome> {
        self.send_commit(key, op, held)?.await.map_err(|_| Error::closed())?
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>> {
        self.state.check_open()?;
        self.state.check_readable(after)?;
        Ok(Box::new(FjallWatch::new(self.state.clone(), prefix, after)))
    }

    async fn history(
        &self,
        prefix: &str,
        after: Revision,
        upto: Revision,
        bytes: usize,
    ) -> Result<RevisionRange> {
        self.state.check_open()?;
        self.state.check_readable(after)?;
        self.state.check_readable(upto.max(after))?;
        let (changes, through) =
            FjallWatch::new(self.state.clone(), prefix, after).history(upto.max(after).0, bytes).await?;
        Ok(RevisionRange { changes, through: Revision(through) })
    }

    async fn compact(&self, upto: Revision) -> Result<()> {
        let (answer, response) = oneshot::channel();
        self.state.queue.send_command(WriterCommand::Compact { upto, answer })?;
        response.await.map_err(|_| Error::closed())?
    }

    fn health(&self) -> Result<()> {
        self.state.check_open()?;
        self.state.down_reason().map_or(Ok(()), Err)
    }

    fn full_reason(&self) -> Option<String> {
        self.state.full_reason()
    }

    /// While the database reopens and after it is closed, all values are zero except the revisions and the
    /// number of rotations.
    fn stats(&self) -> Stats {
        let mut stats = Stats {
            revision: *self.state.published.borrow(),
            compacted: self.state.compacted.load(Ordering::SeqCst),
            trimmed: self.state.trimmed.load(Ordering::SeqCst),
            rotations: self.state.rotations.load(Ordering::SeqCst),
            ..Stats::default()
        };
        if let Some(tables) = self.state.tables_if_open() {
            stats.sealed_memtables = tables.sealed_memtables();
            stats.memtable_bytes = tables.database.write_buffer_size();
            stats.journals = tables.database.journal_count();
            stats.journal_bytes = tables.database.journal_disk_space().unwrap_or_default();
            stats.table_bytes = tables.table_bytes();
            stats.tables = tables.keyspaces().iter().map(|keyspace| keyspace.table_count()).sum();
        }
        stats
    }

    async fn close(&self) {
        let (answer, response) = oneshot::channel();
        if self.state.queue.send_command(WriterCommand::Close { answer }).is_ok() {
            // An error means that the writer thread has ended already.
            let _ = response.await;
        }
        self.join();
    }
}

impl Drop for FjallStore {
    fn drop(&mut self) {
        let (answer, _) = oneshot::channel();
        // An error means that the store is closed already.
        let _ = self.state.queue.send_command(WriterCommand::Close { answer });
        self.join();
    }
}

/// Creates a directory and its ancestors with mode 0700, because objects contain secrets. Syncs each parent directory.
fn make_dirs(dir: &Path) -> io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    let parent = parent(dir);
    make_dirs(parent)?;
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    File::open(parent)?.sync_all()
}

/// The directory that contains a path.
fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Returns the result of an access to a file or folder; None when the file or folder does not exist.
fn ignore_not_found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

/// Checks that no process has a store open. A directory without a store is not an error.
///
/// # Errors
///
/// [`OpenError::Locked`], or the lock file is not accessible.
pub fn check_unlocked(dir: &Path) -> Result<(), OpenError> {
    let Some(file) = ignore_not_found(File::open(dir.join("lock")))? else { return Ok(()) };
    // Checks of several processes at the same time do not exclude each other.
    match file.try_lock_shared() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(OpenError::Locked(dir.to_owned())),
        Err(TryLockError::Error(error)) => Err(error.into()),
    }
}

/// Locks the directory for this process. The operating system releases the lock when the process ends.
fn lock(dir: &Path) -> Result<File, OpenError> {
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(dir.join("lock"))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::Locked(dir.to_owned())),
        Err(TryLockError::Error(error)) => Err(error.into()),
    }
}

/// Opens the high-water mark; None when the file is missing.
fn read_mark(path: &Path) -> Result<Option<HighWaterMark>, OpenError> {
    HighWaterMark::open(path).map_err(|error| match error {
        HighWaterMarkError::Io(error) => OpenError::Io(error),
        HighWaterMarkError::Unreadable => Error::Corrupt(error.to_string()).into(),
    })
}

/// Creates the high-water mark, as the last step of creating a store.
///
/// A missing mark means that creation was interrupted, if `log` is empty. Otherwise the mark is lost, and the
/// error is `Corrupt`.
fn create_mark(tables: &Tables, options: &Options) -> Result<HighWaterMark, OpenError> {
    if tables.log.last_key_value().is_some() {
        return Err(Error::Corrupt("the high-water mark file `mark` is missing".to_owned()).into());
    }
    if !recovery::is_initialized(tables)? {
        recovery::initialize(tables, &options.identity)?;
    }
    Ok(HighWaterMark::create(&options.dir, "mark", MarkValues::default())?)
}

/// Verifies the files before fjall opens them, and returns the end of the newest journal. The error message
/// describes the lost data.
fn verify_files(dir: &Path, mark: &MarkValues) -> Result<Option<JournalEnd>, Error> {
    let (problem, is_suspicion, journal_end) = match files::verify(&dir.join("fjall"), mark) {
        Ok(VerifyOutcome { suspicion: None, journal_end }) => return Ok(journal_end),
        Ok(VerifyOutcome { suspicion: Some(suspicion), journal_end }) => (suspicion, true, journal_end),
        Err(FileProblem::Unreadable(error)) => return Err(error),
        Err(FileProblem::Damaged(problem)) => (problem, false, None),
    };
    let lost = match Survey::read(dir) {
        Ok(survey) if is_suspicion && survey.is_sound() => return Ok(journal_end),
        Ok(survey) if survey.lost.is_empty() => "no change is lost".to_owned(),
        Ok(survey) => survey.lost.to_string().trim_end().replace('\n', "; "),
        Err(error) => format!("the lost revisions are unknown: {error}"),
    };
    Err(Error::Corrupt(format!(
        "{problem}; {lost}; run `apid store repair` to create a store from all readable data"
    )))
}
