//! The state that the writer, readers and watches of one store share: the tables and the progress of history.
//!
//! # Invariants
//!
//! INVARIANT (one history): `durable` advances when a batch and its mark are synced, `published` when the
//! observer has seen the batch. Reads without a revision use `published`. Reads at a revision up to `durable`
//! are served, because the observer may hand out such revisions. Watches deliver up to `published`.
//!
//! INVARIANT (compaction is enforced): a read checks `compacted` after it has read. `compacted` advances
//! before any removal, so that a read that may have missed a removed row fails or repeats.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use super::database::Tables;
use super::queue::Queue;
use super::recent::RecentChanges;
use super::recovery::RecoveredRevisions;
use crate::lease::HistoryLeases;
use crate::{Error, Result, Revision};

/// The shared state; see the module documentation.
pub(super) struct SharedState {
    /// None while the database reopens and after it is closed.
    tables: RwLock<Option<Arc<Tables>>>,
    /// The newest synced revision.
    pub(super) durable: AtomicU64,
    /// The newest revision that the observer has seen.
    pub(super) published: watch::Sender<u64>,
    /// The newest revision whose history is removed.
    pub(super) compacted: AtomicU64,
    /// The revision up to which superseded versions are removed.
    pub(super) trimmed: AtomicU64,
    /// The leased revisions: compaction by age stops at the oldest leased revision.
    pub(super) leases: Arc<HistoryLeases>,
    pub(super) recent: Mutex<RecentChanges>,
    /// The reason why the store is unavailable; None for an available or closed store.
    down: RwLock<Option<Error>>,
    /// The reason why the store rejects creates and updates; None while the disk and the quota have space.
    full: RwLock<Option<String>>,
    closed: AtomicBool,
    pub(super) queue: Queue,
    /// Start of the current step of the writer, in clock milliseconds plus one; 0 while the writer waits.
    pub(super) busy_since: AtomicU64,
    /// Number of memtables that the writer sealed, for statistics.
    pub(super) rotations: AtomicU64,
}

impl SharedState {
    /// The state of a store that was recovered at these revisions.
    pub(super) fn new(tables: Tables, recovered: RecoveredRevisions, recent_bytes: usize) -> Self {
        let RecoveredRevisions { revision, compacted, trimmed } = recovered;
        SharedState {
            tables: RwLock::new(Some(Arc::new(tables))),
            durable: AtomicU64::new(revision),
            published: watch::Sender::new(revision),
            compacted: AtomicU64::new(compacted),
            trimmed: AtomicU64::new(trimmed),
            leases: Arc::default(),
            recent: Mutex::new(RecentChanges::new(revision, recent_bytes)),
            down: RwLock::new(None),
            full: RwLock::new(None),
            closed: AtomicBool::new(false),
            queue: Queue::default(),
            busy_since: AtomicU64::new(0),
            rotations: AtomicU64::new(0),
        }
    }

    /// Returns the tables, or the reason why they are absent.
    pub(super) fn tables(&self) -> Result<Arc<Tables>> {
        if let Some(tables) = self.tables.read().as_ref() {
            return Ok(tables.clone());
        }
        Err(self.down_reason().unwrap_or_else(Error::closed))
    }

    /// The tables; None while they are absent, for callers that need no reason: the watchdog and statistics.
    pub(super) fn tables_if_open(&self) -> Option<Arc<Tables>> {
        self.tables.read().clone()
    }

    /// Replaces the tables, and returns the previous ones. After a call with None, reads fail.
    pub(super) fn replace_tables(&self, tables: Option<Arc<Tables>>) -> Option<Arc<Tables>> {
        std::mem::replace(&mut *self.tables.write(), tables)
    }

    /// Sets the reason why the store is unavailable; None means that it is available.
    pub(super) fn set_down(&self, reason: Option<Error>) {
        *self.down.write() = reason;
    }

    /// The reason why the store is unavailable; None for an available or closed store.
    pub(super) fn down_reason(&self) -> Option<Error> {
        self.down.read().clone()
    }

    /// Sets the reason why the store rejects creates and updates; None means that they are accepted. Returns
    /// the previous reason.
    pub(super) fn set_full(&self, reason: Option<String>) -> Option<String> {
        std::mem::replace(&mut *self.full.write(), reason)
    }

    /// The reason why the store rejects creates and updates; None when they are accepted.
    pub(super) fn full_reason(&self) -> Option<String> {
        self.full.read().clone()
    }

    /// Marks the store as closed and wakes watches.
    pub(super) fn set_closed(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.published.send_modify(|_| ());
    }

    /// Returns `Unavailable` when the store is closed.
    pub(super) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::SeqCst) { Err(Error::closed()) } else { Ok(()) }
    }

    /// Returns `Future` for a revision that is not durable yet, and `Compacted` for a compacted one.
    pub(super) fn check_readable(&self, requested: Revision) -> Result<()> {
        let current = Revision(self.durable.load(Ordering::SeqCst));
        if requested > current {
            return Err(Error::Future { requested, current });
        }
        self.check_not_compacted(requested)
    }

    fn check_not_compacted(&self, requested: Revision) -> Result<()> {
        let compacted = Revision(self.compacted.load(Ordering::SeqCst));
        if requested < compacted { Err(Error::Compacted { requested, compacted }) } else { Ok(()) }
    }

    /// Runs a read at the revision `at`, or at the published revision if `at` is None, and returns the result
    /// with the revision used.
    pub(super) fn read<T>(
        &self,
        at: Option<Revision>,
        read: impl Fn(&Tables, u64) -> Result<T>,
    ) -> Result<(T, Revision)> {
        loop {
            self.check_open()?;
            let revision = at.unwrap_or_else(|| Revision(*self.published.borrow()));
            if at.is_some() {
                self.check_readable(revision)?;
            }
            let found = read(&*self.tables()?, revision.0);
            match self.check_not_compacted(revision) {
                Ok(()) => return Ok((found?, revision)),
                Err(error) if at.is_some() => return Err(error),
                // The revision was compacted during this read: repeat the read at the newer published
                // revision.
                Err(_) => {}
            }
        }
    }
}
