//! Storage: a small etcd for one process. An ordered key space, one revision counter, history, watches; and the
//! watch cache that sits over any engine.
//!
//! # Contract
//!
//! See [`Store`], method by method. Keys are UTF-8 and ordered by bytes; values are opaque bytes that this crate never
//! reads: it knows no kind. Stored values hold no resourceVersion: the revision of a row is beside it.
//!
//! # Invariants
//!
//! INVARIANT (acknowledged is durable): [`Store::commit`] answers after the write is synced to the medium.
//! INVARIANT (one history): the order of watch events, the revisions of lists and the results of commits agree; each
//! revision is one change of one key, and revisions strictly increase.
//! INVARIANT (observed before answered): the [`Observer`] has seen a change when its commit is answered, in revision
//! order, never twice, never a change that is not durable.
//!
//! # Reference
//!
//! design section 5; etcd's KV and watch guarantees (ordered, unique, atomic, reliable, resumable, bookmarkable).

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

pub mod cache;
pub mod conformance;
pub mod engine;
mod observers;

pub use observers::Observers;

/// The store's one counter. 0 is before the first write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Revision(pub u64);

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A stored object. `Debug` shows how long values are and not what they are: some are secrets.
#[derive(Clone, PartialEq, Eq)]
pub struct Row {
    /// Its key.
    pub key: Arc<str>,
    /// Its bytes, as they were committed.
    pub value: Bytes,
    /// The revision of its last write.
    pub revision: Revision,
}

impl fmt::Debug for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Row")
            .field("key", &self.key)
            .field("value", &Hidden(&self.value))
            .field("revision", &self.revision)
            .finish()
    }
}

/// Bytes of which only the number is shown.
struct Hidden<'a>(&'a Bytes);

impl fmt::Debug for Hidden<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// What a commit does to its key.
#[derive(Clone, PartialEq, Eq)]
pub enum Op {
    /// The key must not exist.
    Create(Bytes),
    /// The key must be at the revision.
    Update(Bytes, Revision),
    /// The key must be at the revision.
    Delete(Revision),
}

impl fmt::Debug for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Create(value) => f.debug_tuple("Create").field(&Hidden(value)).finish(),
            Op::Update(value, at) => f.debug_tuple("Update").field(&Hidden(value)).field(at).finish(),
            Op::Delete(at) => f.debug_tuple("Delete").field(at).finish(),
        }
    }
}

/// The result of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The revision of this change; for a delete the revision at which the key ceased to be.
    pub revision: Revision,
}

/// One change in the history.
#[derive(Clone, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub key: Arc<str>,
    /// The row before; None for a create.
    pub old: Option<Row>,
    /// The bytes after; None for a delete.
    pub new: Option<Bytes>,
    /// The revision of the change.
    pub revision: Revision,
}

impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Change")
            .field("key", &self.key)
            .field("old", &self.old)
            .field("new", &self.new.as_ref().map(Hidden))
            .field("revision", &self.revision)
            .finish()
    }
}

/// A part of a range, in key order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The rows.
    pub rows: Vec<Row>,
    /// The revision the rows are of.
    pub revision: Revision,
    /// Whether rows of the prefix follow after the last one.
    pub more: bool,
}

/// A stretch of the past of a prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stretch {
    /// The changes, in revision order.
    pub changes: Vec<Change>,
    /// They are all at or before this revision.
    pub through: Revision,
}

/// Why the store did not do it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Update or delete of a key that does not exist.
    #[error("key `{0}` does not exist")]
    NotFound(Arc<str>),
    /// Create of a key that exists.
    #[error("key `{}` exists at revision {}", .0.key, .0.revision)]
    Exists(Box<Row>),
    /// The key is at another revision than expected. Carries the current row, so that a retry needs no read.
    #[error("key `{}` is at revision {}", .0.key, .0.revision)]
    Conflict(Box<Row>),
    /// The revision asked for is older than the history kept.
    #[error("revision {asked} is compacted: history begins after {compacted}")]
    Compacted {
        /// What was asked for.
        asked: Revision,
        /// The newest revision whose history is gone.
        compacted: Revision,
    },
    /// The revision asked for has not happened yet.
    #[error("revision {asked} is in the future: the store is at {current}")]
    Future {
        /// What was asked for.
        asked: Revision,
        /// The newest revision.
        current: Revision,
    },
    /// The value is larger than [`MAX_VALUE`], or the key than [`MAX_KEY`]. Carries its bytes.
    #[error("{0} bytes are more than a row may hold")]
    TooLarge(usize),
    /// Disk or quota is full: reads go on, writes are refused until there is room.
    #[error("storage is full: {0}")]
    Full(String),
    /// The store cannot serve now; try again. When a commit answers this, its outcome is unknown: read before retrying.
    #[error("storage is unavailable: {0}")]
    Unavailable(String),
    /// What is on disk is not what was written: a checksum failed or a revision is missing.
    #[error("storage is corrupt: {0}")]
    Corrupt(String),
}

/// The result of this crate's operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Bytes of the largest value: a 3 MiB body with room for what the server adds.
pub const MAX_VALUE: usize = 4 * 1024 * 1024;

/// Bytes of the longest key.
pub const MAX_KEY: usize = 4096;

/// Whether a row may be as large as this one would be.
fn check_size(key: &str, op: &Op) -> Result<()> {
    let value = match op {
        Op::Create(value) | Op::Update(value, _) => value.len(),
        Op::Delete(_) => 0,
    };
    match (key.len(), value) {
        (length, _) if length > MAX_KEY => Err(Error::TooLarge(length)),
        (_, length) if length > MAX_VALUE => Err(Error::TooLarge(length)),
        _ => Ok(()),
    }
}

/// Sees every change after it is durable and before its commit is answered.
pub trait Observer: Send + Sync + 'static {
    /// The changes of one batch, in revision order. Must be quick and must not call the store's `commit`.
    fn observe(&self, changes: &[Change]);
}

/// An ordered stream of changes.
#[async_trait]
pub trait Watch: Send {
    /// The next changes, in revision order, at least one; waits for them. Cancel-safe. After an error the watch is over:
    /// `Compacted` when the reader fell behind the history, `Unavailable` when the store closed.
    async fn next(&mut self) -> Result<Vec<Change>>;
}

/// The contract of every engine; `conformance` shows it on each.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// The newest revision that the observer has seen. Monotonic; at least that of every commit answered so far. While
    /// the observer runs, reads at the revisions that it is shown are answered already.
    fn revision(&self) -> Revision;

    /// The newest revision whose history is gone: reads at it or later work, older ones are `Compacted`.
    fn compacted(&self) -> Revision;

    /// The row of a key at a revision, or now. `Compacted` and `Future` when the revision is not to be had.
    async fn get(&self, key: &str, at: Option<Revision>) -> Result<Option<Row>>;

    /// Rows whose key begins with `prefix` and is not before `start` (itself a full key; `""` begins at the prefix), in
    /// key order, at most `limit` (0: all), at a revision or now. All pages read at one revision are one snapshot.
    async fn range(&self, prefix: &str, start: &str, limit: usize, at: Option<Revision>) -> Result<Page>;

    /// Writes one key. Answers after the change is durable and observed. Commits that wait at the same moment are
    /// synced together; each succeeds or fails by itself. If the future is dropped the write may still happen.
    async fn commit(&self, key: &str, op: Op) -> Result<Committed>;

    /// Changes of keys that begin with `prefix`, after a revision: first those that have happened, then those to come.
    /// None is delivered before the observer has seen it. `Compacted` when the history after the revision is not kept
    /// whole any more, `Future` when the revision has not happened.
    async fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>>;

    /// Changes of keys that begin with `prefix`, after a revision and at or before `upto`: at least the first of them, as
    /// many as are read at once. Waits for none to come. [`Stretch::through`] is later than `after` unless nothing lies
    /// between. `Compacted` and `Future` as for the two revisions in [`Store::get`].
    async fn history(&self, prefix: &str, after: Revision, upto: Revision) -> Result<Stretch>;

    /// Gives up history at and before a revision. Newest rows always stay. Never moves back: an older revision than
    /// the compacted one changes nothing. `Future` when the revision has not happened.
    async fn compact(&self, upto: Revision) -> Result<()>;

    /// Whether the store is in order, and if not why. A full disk is no failure: reads go on, and only commits answer
    /// it. Cheap: health checks ask it.
    fn health(&self) -> Result<()>;

    /// Finishes waiting commits, syncs and closes. Later calls answer `Unavailable`.
    async fn close(&self);
}
