//! Storage: a single-process equivalent of etcd, with a watch cache.
//!
//! The store has an ordered key space, one revision counter, history and watches. The watch cache works over
//! any engine.
//!
//! # Contract
//!
//! [`Store`] documents the contract, method by method. Keys are UTF-8 and ordered by bytes. Values are opaque
//! bytes: this crate knows no kind. Stored values hold no resourceVersion: the engine stores the revision
//! beside the value.
//!
//! # Invariants
//!
//! INVARIANT (acknowledged is durable): [`Store::commit`] returns success after the write is synced to the
//! medium.
//! INVARIANT (one history): the order of watch events, the revisions of lists and the results of commits
//! agree. Each revision is one change of one key; in etcd an expired lease changes several keys at one revision, which
//! then stay together. Revisions strictly increase.
//! INVARIANT (observed before acknowledged): the [`Observer`] has seen a change when its commit returns. The
//! observer sees changes in revision order, never twice, and only durable ones.
//!
//! # Reference
//!
//! etcd's KV and watch guarantees (ordered, unique, atomic, reliable, resumable, bookmarkable).

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

pub mod cache;
mod claims;
pub mod conformance;
pub mod engine;
pub mod form;
mod lease;
mod newest_reads;
mod observers;
mod page_filling;
mod unreadable;

pub use claims::{CLAIM_LIFETIME, CLAIMS, Claim, Held};
pub use lease::HistoryLease;
pub use newest_reads::{NewestRead, NewestReads};
pub use observers::Observers;
pub use page_filling::PageFilling;
pub use unreadable::{ENCRYPTED_PREFIX, IDENTITY_READ_ENCRYPTED, unreadable_reason, unreadable_value};

/// A revision: each change has the next number. 0 is the state before the first write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Revision(pub u64);

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A stored object. `Debug` shows only the length of the value, because some values are secrets.
#[derive(Clone, PartialEq, Eq)]
pub struct Row {
    /// The key.
    pub key: Arc<str>,
    /// The committed bytes, unchanged.
    pub value: Bytes,
    /// The revision of the last write.
    pub revision: Revision,
}

impl Row {
    /// The bytes of the key and the value.
    pub fn size(&self) -> usize {
        self.key.len().saturating_add(self.value.len())
    }
}

impl fmt::Debug for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Row")
            .field("key", &self.key)
            .field("value", &RedactedBytes(&self.value))
            .field("revision", &self.revision)
            .finish()
    }
}

/// Bytes. Their `Debug` output shows only the length.
struct RedactedBytes<'a>(&'a Bytes);

impl fmt::Debug for RedactedBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// The operation of a commit on its key.
#[derive(Clone, PartialEq, Eq)]
pub enum Op {
    /// Creates the key. The key must not exist.
    Create(Bytes),
    /// Replaces the value. The key must be at the given revision.
    Update(Bytes, Revision),
    /// Deletes the key. The key must be at the given revision.
    Delete(Revision),
}

impl Op {
    /// Size of the new value in bytes; 0 for a delete.
    fn value_length(&self) -> usize {
        match self {
            Op::Create(value) | Op::Update(value, _) => value.len(),
            Op::Delete(_) => 0,
        }
    }

    /// Whether the new value is encrypted.
    fn is_encrypted(&self) -> bool {
        match self {
            Op::Create(value) | Op::Update(value, _) => value.starts_with(ENCRYPTED_PREFIX),
            Op::Delete(_) => false,
        }
    }
}

impl fmt::Debug for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Create(value) => f.debug_tuple("Create").field(&RedactedBytes(value)).finish(),
            Op::Update(value, at) => f.debug_tuple("Update").field(&RedactedBytes(value)).field(at).finish(),
            Op::Delete(at) => f.debug_tuple("Delete").field(at).finish(),
        }
    }
}

/// The result of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitOutcome {
    /// The revision of the change. For a delete: the revision of the deletion.
    pub revision: Revision,
}

/// One change in the history.
#[derive(Clone, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub key: Arc<str>,
    /// The row before the change; None for a create.
    pub old: Option<Row>,
    /// The bytes after the change; None for a delete.
    pub new: Option<Bytes>,
    /// The revision of the change.
    pub revision: Revision,
}

impl Change {
    /// Size in memory, in bytes, with the key and both values.
    pub fn bytes(&self) -> usize {
        let old = self.old.as_ref().map_or(0, |row| row.value.len());
        let new = self.new.as_ref().map_or(0, |value| value.len());
        size_of::<Change>() + self.key.len() + old + new
    }
}

impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Change")
            .field("key", &self.key)
            .field("old", &self.old)
            .field("new", &self.new.as_ref().map(RedactedBytes))
            .field("revision", &self.revision)
            .finish()
    }
}

/// A page of a range, in key order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The rows.
    pub rows: Vec<Row>,
    /// The revision at which the rows were read.
    pub revision: Revision,
    /// Whether more rows of the prefix follow the last row.
    pub more: bool,
}

/// The changes of a prefix in a range of revisions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RevisionRange {
    /// The changes, in revision order.
    pub changes: Vec<Change>,
    /// The upper end of the range: `changes` is complete up to this revision.
    pub through: Revision,
}

/// The reason why a store operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Update or delete of a key that does not exist.
    #[error("key `{0}` does not exist")]
    NotFound(Arc<str>),
    /// Create of a key that exists.
    #[error("key `{}` exists at revision {}", .0.key, .0.revision)]
    Exists(Box<Row>),
    /// The key is not at the expected revision. Carries the current row, so that a retry needs no read.
    #[error("key `{}` is at revision {}", .0.key, .0.revision)]
    Conflict(Box<Row>),
    /// The requested revision is older than the retained history.
    #[error("revision {requested} is compacted: history begins after {compacted}")]
    Compacted {
        /// The requested revision.
        requested: Revision,
        /// The compacted revision: the newest revision whose history is removed.
        compacted: Revision,
    },
    /// The requested revision is newer than the newest revision.
    #[error("revision {requested} is in the future: the store is at {current}")]
    Future {
        /// The requested revision.
        requested: Revision,
        /// The newest revision.
        current: Revision,
    },
    /// The value is larger than [`MAX_VALUE`] or the key longer than [`MAX_KEY`]. Carries the size in bytes.
    #[error("a key or value of {} bytes is too large (maximum: key {}, value {})", .0, MAX_KEY, MAX_VALUE)]
    TooLarge(usize),
    /// A key that the write holds is not at its revision any more. Nothing was written, nor will be.
    #[error("key `{0}` changed before the write that requires it; nothing was written")]
    Lost(Arc<str>),
    /// The disk or the quota is full. Reads continue; writes that need space are rejected until there is
    /// space.
    #[error("storage is full: {0}")]
    Full(String),
    /// The store is temporarily unavailable. The outcome of a commit with this error is unknown: read before
    /// a retry.
    #[error("storage is unavailable: {0}")]
    Unavailable(String),
    /// The files are damaged: a checksum failed or a revision is missing.
    #[error("storage is corrupt: {0}")]
    Corrupt(String),
}

impl Error {
    /// The error of every operation on a closed store.
    pub(crate) fn closed() -> Self {
        Error::Unavailable("the store is closed".to_owned())
    }
}

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Maximum size of a value in bytes: a 3 MiB request body plus the fields that the server adds.
pub const MAX_VALUE: usize = 4 * 1024 * 1024;

/// Maximum number of bytes that encryption adds to a value of at most [`MAX_VALUE`].
pub const MAX_ENCRYPTION_OVERHEAD: usize = 48 * 1024;

/// Maximum length of a key in bytes.
pub const MAX_KEY: usize = 4096;

/// Checks the key and the value against [`MAX_KEY`] and [`MAX_VALUE`].
///
/// An encrypted value may exceed [`MAX_VALUE`] by [`MAX_ENCRYPTION_OVERHEAD`]. The layer that encrypts checks the
/// plain value.
///
/// # Errors
///
/// `TooLarge`.
pub fn check_size(key: &str, op: &Op) -> Result<()> {
    let overhead = if op.is_encrypted() { MAX_ENCRYPTION_OVERHEAD } else { 0 };
    match (key.len(), op.value_length()) {
        (length, _) if length > MAX_KEY => Err(Error::TooLarge(length)),
        (_, length) if length > MAX_VALUE + overhead => Err(Error::TooLarge(length)),
        _ => Ok(()),
    }
}

/// Statistics for metrics and benchmarks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// The newest revision.
    pub revision: u64,
    /// The compacted revision.
    pub compacted: u64,
    /// The revision up to which superseded versions are removed.
    pub trimmed: u64,
    /// Number of memtables sealed since start.
    pub rotations: u64,
    /// Number of sealed memtables that are not flushed to a table yet.
    pub sealed_memtables: usize,
    /// Size in bytes of all memtables, including sealed ones.
    pub memtable_bytes: u64,
    /// Number of journal files.
    pub journals: usize,
    /// Size of the journal files in bytes. A new file is 64 MiB and sparse.
    pub journal_bytes: u64,
    /// Size of the tables in bytes.
    pub table_bytes: u64,
    /// Number of table files.
    pub tables: usize,
}

/// Receives every change after the change is durable and before its commit returns.
pub trait Observer: Send + Sync + 'static {
    /// Receives the changes of one batch, in revision order. Must be fast and must not call `commit` of the
    /// store.
    fn observe(&self, changes: &[Change]);

    /// Learns that all changes up to a revision were observed, when the revision has no change of its own. Engines whose
    /// revisions all have changes never call this method.
    fn progress(&self, _through: Revision) {}
}

/// A stream of changes in revision order.
#[async_trait]
pub trait Watch: Send {
    /// Waits for the next changes and returns at least one, in revision order. Cancel-safe. An error ends the
    /// watch: `Compacted` when the watch fell behind the history, `Unavailable` when the store closed.
    async fn next(&mut self) -> Result<Vec<Change>>;
}

/// The contract of every engine; the `conformance` suite checks each engine.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// The store below, if this store is a layer that leaves revisions unchanged. The optional methods ask it, except those
    /// that return rows.
    fn inner(&self) -> Option<&dyn Store> {
        None
    }

    /// The newest published revision: the observer has returned from every change up to it.
    ///
    /// Monotonic, and at least the revision of every completed commit. The observer can have received later
    /// changes. The store already serves reads at their revisions, except while it recovers from a failed
    /// write: then reads return `Unavailable`.
    fn revision(&self) -> Revision;

    /// Whether other processes write to the store, so that [`Store::revision`] may be older than their writes.
    fn is_shared(&self) -> bool {
        self.inner().is_some_and(|inner| inner.is_shared())
    }

    /// The newest revision of the store at some time during the call, also of writes by other processes, after it is
    /// published here. A read that follows is never older than a write that ended before the call.
    ///
    /// # Errors
    ///
    /// The store does not answer.
    async fn newest_revision(&self) -> Result<Revision> {
        match self.inner() {
            Some(inner) => inner.newest_revision().await,
            None => Ok(self.revision()),
        }
    }

    /// Tells the engine that a reader waits until a revision is published, which may have no change of its own.
    fn expect_revision(&self, revision: Revision) {
        if let Some(inner) = self.inner() {
            inner.expect_revision(revision);
        }
    }

    /// The newest revision whose history is removed. Reads at or after this revision work; older reads return
    /// `Compacted`.
    fn compacted(&self) -> Revision;

    /// The row of a key at a revision, or at the current revision.
    ///
    /// # Errors
    ///
    /// `Compacted` or `Future` when the revision is not readable.
    async fn get(&self, key: &str, at: Option<Revision>) -> Result<Option<Row>>;

    /// Reads the rows of a prefix from a start key, in key order, at a revision or at the current revision.
    ///
    /// The key of each row begins with `prefix` and is not before `start`. `start` is a full key; `""` begins
    /// at the prefix. `limit` is the maximum number of rows; 0 means all. All pages read at one revision are
    /// one snapshot.
    ///
    /// An engine may order the resources of a prefix that covers several of them in its own way. `start` then continues
    /// in this order, and each page ends where the next one begins.
    async fn range(&self, prefix: &str, start: &str, limit: usize, at: Option<Revision>) -> Result<Page>;

    /// As [`Store::range`] at a revision, with a limit in bytes.
    ///
    /// Returns as many rows as fit in `bytes` bytes of keys and values, and at least one if any exists.
    ///
    /// # Errors
    ///
    /// `Compacted` or `Future` when the revision is not readable.
    async fn rows_within(
        &self,
        prefix: &str,
        start: &str,
        limit: usize,
        bytes: usize,
        at: Revision,
    ) -> Result<Page> {
        let mut filling = PageFilling::new(start, limit, bytes, at);
        loop {
            let next = self.range(prefix, filling.start(), 1, Some(at)).await?;
            match filling.include(next) {
                ControlFlow::Break(page) => return Ok(page),
                ControlFlow::Continue(rest) => filling = rest,
            }
        }
    }

    /// As [`Store::rows_within`] without a limit of rows, with the bytes as an embedded store holds them: encrypted values
    /// stay encrypted. For backups.
    ///
    /// # Errors
    ///
    /// As [`Store::rows_within`].
    async fn stored_rows_within(
        &self,
        prefix: &str,
        start: &str,
        bytes: usize,
        at: Revision,
    ) -> Result<Page> {
        self.rows_within(prefix, start, 0, bytes, at).await
    }

    /// The bytes in a backup for a value: encrypted, if the rules of the encryption cover the key.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the provider cannot encrypt now; `Corrupt` for the value of an unreadable object.
    fn archived_value(&self, key: &str, value: &Bytes) -> Result<Bytes> {
        match self.inner() {
            Some(inner) => inner.archived_value(key, value),
            None => Ok(value.clone()),
        }
    }

    /// Whether an unchanged write of a key changes its stored bytes, because another key or another provider
    /// encrypted them. False if the key does not exist, and without encryption.
    ///
    /// # Errors
    ///
    /// The key cannot be read.
    async fn is_stale(&self, key: &str) -> Result<bool> {
        match self.inner() {
            Some(inner) => inner.is_stale(key).await,
            None => Ok(false),
        }
    }

    /// Retains the history at and after a revision until the lease is dropped, even beyond the history
    /// retention.
    ///
    /// The revision must be readable. [`Store::compact`] ignores leases.
    fn lease_history(&self, from: Revision) -> HistoryLease {
        self.inner().map(|inner| inner.lease_history(from)).unwrap_or_default()
    }

    /// Writes one key and returns after the change is durable and observed.
    ///
    /// Group commit: concurrent commits share a batch, which is synced once. A failed precondition rejects
    /// only its own commit; a failed write fails all commits of the batch. Dropping the future does not
    /// cancel the write.
    async fn commit(&self, key: &str, op: Op) -> Result<CommitOutcome>;

    /// As [`Store::commit`], if each key of `held` is still at its revision. The check and the write are one step.
    ///
    /// # Errors
    ///
    /// Those of a commit; `Lost` if a key is not held any more: then the write is never applied.
    async fn commit_holding(&self, key: &str, op: Op, held: &[Held]) -> Result<CommitOutcome> {
        match held {
            [] => self.commit(key, op).await,
            _ => Err(Error::Unavailable("this store cannot hold keys for a write".to_owned())),
        }
    }

    /// Watches keys that begin with `prefix`: first past changes after the revision, then new changes.
    ///
    /// The observer has seen every delivered change.
    ///
    /// # Errors
    ///
    /// `Compacted` when the history after the revision is incomplete, `Future` when the revision does not
    /// exist yet.
    async fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>>;

    /// Changes of keys that begin with `prefix`, after a revision and at or before `upto`.
    ///
    /// One call may return a part of the changes, or none: the caller continues after
    /// [`RevisionRange::through`], which is later than `after` if `upto` is later than `after`. A part ends
    /// with the change that brings the size of the part ([`Change::bytes`]) to `bytes` or more. Never waits for new changes.
    ///
    /// # Errors
    ///
    /// `Compacted` or `Future` when `after` or `upto` is not readable.
    async fn history(
        &self,
        prefix: &str,
        after: Revision,
        upto: Revision,
        bytes: usize,
    ) -> Result<RevisionRange>;

    /// Compacts the history at and before a revision. The newest rows always stay.
    ///
    /// Compaction never moves back: a revision older than the compacted one changes nothing.
    ///
    /// # Errors
    ///
    /// `Future` when the revision does not exist yet.
    async fn compact(&self, upto: Revision) -> Result<()>;

    /// Returns the reason why the store is unhealthy, if it is. The call is cheap: health checks call it
    /// often.
    ///
    /// A full disk is not a failure: reads continue, and only commits return `Full`. See
    /// [`Store::full_reason`].
    fn health(&self) -> Result<()>;

    /// Returns the reason why the store is not ready for requests, if it is not. As cheap as [`Store::health`].
    fn readiness(&self) -> Result<()> {
        self.inner().map_or_else(|| self.health(), |inner| inner.readiness())
    }

    /// The reason why commits that need space return `Full`, for health checks. None for engines without a
    /// limit.
    fn full_reason(&self) -> Option<String> {
        self.inner()?.full_reason()
    }

    /// The current statistics. Engines without files report the revisions only.
    fn stats(&self) -> Stats {
        let revisions =
            || Stats { revision: self.revision().0, compacted: self.compacted().0, ..Stats::default() };
        self.inner().map_or_else(revisions, |inner| inner.stats())
    }

    /// Finishes waiting commits, syncs and closes the store. Later calls return `Unavailable`.
    async fn close(&self);
}
