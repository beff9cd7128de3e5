//! The durable engine of one process, on fjall's LSM trees. `FORMAT.md` describes what is on disk.
//!
//! # Contract
//!
//! [`Store`], and besides: one process for a directory; an identity written when the store is made; history kept for a
//! time and then trimmed; a quota and a reserve on the disk that refuse writes with `Full` and end by themselves. Needs a
//! tokio runtime: ranges and old history are read on its blocking threads.
//!
//! # Invariants
//!
//! INVARIANT (acknowledged is durable), INVARIANT (refused is absent): `writer`.
//! INVARIANT (no silent loss): `recovery`, `mark`.
//! INVARIANT (compaction is enforced): `state`.
//! Never used of fjall: key-value separation, `clear()`, its own rotation of memtables, a keyspace for each kind.
//!
//! # Concurrency
//!
//! The writer thread owns the mark, the revision and every write. Readers take the tables from `state`, whose locks
//! are held for a moment only. The watchdog only looks.

mod database;
mod files;
mod hot;
mod layout;
mod mark;
pub mod offline;
mod queue;
mod reader;
mod recent;
mod recovery;
mod rotation;
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
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use apimachinery::clock::Clock;
use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use self::database::Tables;
use self::files::Trouble;
use self::hot::Hot;
use self::mark::{Mark, MarkError, Values};
use self::queue::{Commit, Errand};
use self::rotation::Rotation;
use self::space::Space;
use self::state::{State, closed};
use self::stream::Stream;
use self::survey::Survey;
use self::trim::{Reclaim, Retention};
use self::watchdog::{Limits, Watchdog};
use self::writer::{Files, Writer};
use crate::{Committed, Error, Observer, Op, Page, Result, Revision, Row, Store, Stretch, Watch, check_size};

/// Whose store it is: a store that was made for one is not opened for another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The name of the names preset.
    pub preset: String,
    /// The API domain.
    pub api_domain: String,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "names `{}` and API domain `{}`", self.preset, self.api_domain)
    }
}

/// How a store is opened.
#[derive(Clone)]
pub struct Options {
    /// Where it is; made when it is not there.
    pub dir: PathBuf,
    /// Whose it is.
    pub identity: Identity,
    /// Time, for what follows.
    pub clock: Arc<dyn Clock>,
    /// How long history is kept for reads at old revisions and for watches.
    pub history_retention: Duration,
    /// Bytes of data above which creates and updates are refused.
    pub quota_bytes: Option<u64>,
    /// Bytes that are kept free on the disk, for journals, memtables and one compaction.
    pub reserve_bytes: u64,
    /// Bytes of blocks that are kept in memory.
    pub cache_bytes: u64,
    /// Bytes at which a memtable is sealed and flushed.
    pub memtable_bytes: u64,
    /// Bytes of rows that are kept in memory for the writer.
    pub hot_bytes: usize,
    /// Bytes of the newest changes that are kept in memory for watches.
    pub recent_bytes: usize,
    /// How long flushing or the writer may stand still.
    pub stall_after: Duration,
    /// What is done then, with the reason. The process must end: what stands still does not come back.
    pub on_stall: Arc<dyn Fn(&str) + Send + Sync>,
}

impl Options {
    /// The defaults for a store in a directory.
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
            hot_bytes: 8 << 20,
            recent_bytes: 1 << 20,
            stall_after: Duration::from_secs(60),
            on_stall: Arc::new(end_process),
        }
    }
}

/// Ends the process with status 70 (an internal software error, as sysexits has it).
fn end_process(reason: &str) {
    tracing::error!(reason, "the store stands still, the process ends and must be started again");
    std::process::exit(70)
}

/// Why a store was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it.
    #[error("the store in `{}` is in use by another process", .0.display())]
    Locked(PathBuf),
    /// It was made for somebody else.
    #[error("the store was made with {stored}, it cannot be opened with {asked}")]
    Identity {
        /// Whose it is.
        stored: Identity,
        /// Who asked.
        asked: Identity,
    },
    /// It was written by a newer release.
    #[error("the store has format {found}, this release knows formats up to {known}")]
    Format {
        /// What was found.
        found: u32,
        /// What is known.
        known: u32,
    },
    /// It is to be repaired, and neither it nor the caller says whose it is.
    #[error("the store does not say whose it is any more")]
    Unidentified,
    /// What is on disk is not what was acknowledged, or cannot be used.
    #[error("the store cannot be opened: {0}")]
    Store(#[from] Error),
    /// The operating system refused.
    #[error("the files of the store cannot be used: {0}")]
    Io(#[from] io::Error),
}

/// Numbers for metrics and benches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// The newest revision.
    pub revision: u64,
    /// The newest revision whose history is given up.
    pub compacted: u64,
    /// The revision up to which what is given up is removed.
    pub trimmed: u64,
    /// Memtables sealed since start.
    pub rotations: u64,
    /// Sealed memtables that are not in a table yet.
    pub sealed_memtables: usize,
    /// Bytes of memtables, sealed ones too.
    pub memtable_bytes: u64,
    /// Journal files.
    pub journals: usize,
    /// Bytes of journal files; a new one is 64 MiB of which most is not there yet.
    pub journal_bytes: u64,
    /// Bytes of tables.
    pub table_bytes: u64,
    /// Table files.
    pub tables: usize,
}

/// See the module.
pub struct FjallStore {
    state: Arc<State>,
    writer: Mutex<Option<JoinHandle<()>>>,
    watchdog: Mutex<Option<Watchdog>>,
}

impl FjallStore {
    /// Opens a store, or makes it where there is none. The observer sees what is written from now on, not what is there.
    pub fn open(options: Options, observer: Arc<dyn Observer>) -> Result<FjallStore, OpenError> {
        make_dirs(&options.dir)?;
        let lock = lock(&options.dir)?;
        let files = Files {
            database: options.dir.join("fjall"),
            mark: options.dir.join("mark"),
            cache_bytes: options.cache_bytes,
            memtable_bytes: options.memtable_bytes,
        };
        let mark = read_mark(&files.mark)?;
        match &mark {
            Some(mark) => look(&options.dir, &mark.values())?,
            None => files::remove_unmade(&files.database)?,
        }
        let tables = Tables::open(&files.database, options.cache_bytes)?;
        let mut mark = match mark {
            Some(mark) => mark,
            None => first_mark(&tables, &options)?,
        };
        recovery::check_identity(&tables, &options.identity)?;
        let standing = recovery::compare(&tables, mark.values())?;
        let flushed = mark.values().flushed;
        let values = Values { revision: standing.revision, compacted: standing.compacted, flushed };
        if values != mark.values() {
            mark.write(values)?;
        }
        let state = Arc::new(State::new(tables, standing, options.recent_bytes));
        let limits = Limits::new(options.stall_after, options.memtable_bytes);
        let watchdog = Watchdog::start(state.clone(), options.clock.clone(), limits, options.on_stall)?;
        let writer = Writer {
            state: state.clone(),
            observer,
            mark,
            revision: standing.revision,
            retention: Retention::new(options.history_retention),
            rotation: Rotation::new(options.memtable_bytes, flushed),
            reclaim: Reclaim::default(),
            space: Space::new(options.dir, options.reserve_bytes, options.quota_bytes),
            hot: Hot::new(options.hot_bytes),
            failure: None,
            untrimmable: false,
            ticked: options.clock.monotonic(),
            deferred: 0,
            clock: options.clock,
            files,
            lock,
        };
        let thread = std::thread::Builder::new().name("store-writer".to_owned());
        let writer = thread.spawn(move || writer.run())?;
        Ok(FjallStore { state, writer: Mutex::new(Some(writer)), watchdog: Mutex::new(Some(watchdog)) })
    }

    /// Does at once what is else done once a second: gives up old history, trims, and notes what is flushed.
    pub async fn maintain(&self) -> Result<()> {
        let (answer, answered) = oneshot::channel();
        self.errand(Errand::Maintain { answer })?;
        answered.await.map_err(|_| closed())?
    }

    /// Numbers of now; zeros while the database is reopened.
    pub fn stats(&self) -> Stats {
        let mut stats = Stats {
            revision: *self.state.published.borrow(),
            compacted: self.state.compacted.load(Ordering::SeqCst),
            trimmed: self.state.trimmed.load(Ordering::SeqCst),
            rotations: self.state.rotations.load(Ordering::SeqCst),
            ..Stats::default()
        };
        if let Some(tables) = self.state.tables_if_open() {
            stats.sealed_memtables = tables.sealed();
            stats.memtable_bytes = tables.database.write_buffer_size();
            stats.journals = tables.database.journal_count();
            stats.journal_bytes = tables.database.journal_disk_space().unwrap_or_default();
            stats.table_bytes = tables.table_bytes();
            stats.tables = tables.keyspaces().iter().map(|keyspace| keyspace.table_count()).sum();
        }
        stats
    }

    fn errand(&self, errand: Errand) -> Result<()> {
        self.state.queue.errand(errand).map_err(|_| closed())
    }

    /// Waits for the threads, which have been told to end.
    fn join(&self) {
        if let Some(writer) = self.writer.lock().take()
            && writer.join().is_err()
        {
            tracing::error!("the writer of the store panicked");
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
        // One key is a few blocks, most of them in memory: cheaper here than on another thread.
        self.state.read(at, |tables, revision| reader::row_at(tables, key, revision)).map(|(row, _)| row)
    }

    async fn range(&self, prefix: &str, start: &str, limit: usize, at: Option<Revision>) -> Result<Page> {
        let (state, prefix, start) = (self.state.clone(), prefix.to_owned(), start.to_owned());
        let read = move || {
            let read = |tables: &_, revision| reader::range_at(tables, &prefix, &start, limit, revision);
            let ((rows, more), revision) = state.read(at, read)?;
            Ok(Page { rows, revision, more })
        };
        tokio::task::spawn_blocking(read).await.map_err(|error| Error::Unavailable(error.to_string()))?
    }

    async fn commit(&self, key: &str, op: Op) -> Result<Committed> {
        check_size(key, &op)?;
        let (answer, answered) = oneshot::channel();
        self.state.queue.commit(Commit { key: key.into(), op, answer }).map_err(|_| closed())?;
        answered.await.map_err(|_| closed())?
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>> {
        self.state.check_open()?;
        self.state.check_readable(after)?;
        Ok(Box::new(Stream::new(self.state.clone(), prefix, after)))
    }

    async fn history(&self, prefix: &str, after: Revision, upto: Revision) -> Result<Stretch> {
        self.state.check_open()?;
        self.state.check_readable(after)?;
        self.state.check_readable(upto.max(after))?;
        let (changes, through) =
            Stream::new(self.state.clone(), prefix, after).history(upto.max(after).0).await?;
        Ok(Stretch { changes, through: Revision(through) })
    }

    async fn compact(&self, upto: Revision) -> Result<()> {
        let (answer, answered) = oneshot::channel();
        self.errand(Errand::Compact { upto, answer })?;
        answered.await.map_err(|_| closed())?
    }

    fn health(&self) -> Result<()> {
        self.state.check_open()?;
        self.state.why_down().map_or(Ok(()), Err)
    }

    async fn close(&self) {
        let (answer, answered) = oneshot::channel();
        if self.errand(Errand::Close { answer }).is_ok() {
            // An error says that the writer is gone, which is what is wanted.
            let _ = answered.await;
        }
        self.join();
    }
}

impl Drop for FjallStore {
    fn drop(&mut self) {
        let (answer, _) = oneshot::channel();
        // An error says that it is closed already.
        let _ = self.errand(Errand::Close { answer });
        self.join();
    }
}

/// Makes a directory and those above it, each synced in the one it is in.
fn make_dirs(dir: &Path) -> io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    let parent = match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    make_dirs(parent)?;
    match std::fs::create_dir(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    File::open(parent)?.sync_all()
}

/// One process for a directory: the lock goes with the process, whatever ends it.
fn lock(dir: &Path) -> Result<File, OpenError> {
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(dir.join("lock"))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::Locked(dir.to_owned())),
        Err(TryLockError::Error(error)) => Err(error.into()),
    }
}

/// Opens the mark; None when there is none.
fn read_mark(path: &Path) -> Result<Option<Mark>, OpenError> {
    Mark::open(path).map_err(|error| match error {
        MarkError::Io(error) => OpenError::Io(error),
        MarkError::Unreadable => Error::Corrupt(error.to_string()).into(),
    })
}

/// Makes the mark. It is made last when a store is made: where it is missing, making was not finished, and then nothing
/// was ever written.
fn first_mark(tables: &Tables, options: &Options) -> Result<Mark, OpenError> {
    if tables.log.last_key_value().is_some() {
        return Err(Error::Corrupt("the mark file is missing".to_owned()).into());
    }
    if !recovery::is_founded(tables)? {
        recovery::found(tables, &options.identity)?;
    }
    Ok(Mark::create(&options.dir, "mark", Values::default())?)
}

/// Looks at the files before fjall opens them, and says what is lost when they are damaged.
fn look(dir: &Path, mark: &Values) -> Result<(), Error> {
    let (what, doubtful) = match files::verify(&dir.join("fjall"), mark) {
        Ok(None) => return Ok(()),
        Ok(Some(doubt)) => (doubt, true),
        Err(Trouble::Unreadable(error)) => return Err(error),
        Err(Trouble::Damaged(what) | Trouble::Lost(what)) => (what, false),
    };
    let lost = match Survey::of(dir) {
        Ok(survey) if doubtful && survey.is_sound() => return Ok(()),
        Ok(survey) if survey.lost.is_nothing() => "no change is lost".to_owned(),
        Ok(survey) => survey.lost.to_string().trim_end().replace('\n', "; "),
        Err(error) => format!("what is lost is not known: {error}"),
    };
    Err(Error::Corrupt(format!(
        "{what}; {lost}; `apid store repair` makes a store of everything that can be read"
    )))
}
