//! What the writer, readers and watches of one store share: where the tables are, and how far history has come.
//!
//! # Invariants
//!
//! INVARIANT (one history): `durable` moves when a batch is synced and marked, `published` when the observer has seen
//! it. Reads now are of `published`; reads at a revision up to `durable` are answered, because the observer may hand
//! such revisions out. Watches deliver up to `published`.
//!
//! INVARIANT (compaction is enforced): a read is checked against `compacted` after it has read. `compacted` moves
//! before anything is removed, so that a read that may have missed a removed row is refused or repeated.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use super::database::Tables;
use super::queue::Queue;
use super::recent::Recent;
use super::recovery::Standing;
use crate::{Error, Result, Revision};

/// See the module.
pub(super) struct State {
    /// None while the database is reopened and after it is closed.
    tables: RwLock<Option<Arc<Tables>>>,
    pub(super) durable: AtomicU64,
    pub(super) published: watch::Sender<u64>,
    pub(super) compacted: AtomicU64,
    /// Up to here superseded versions are removed.
    pub(super) trimmed: AtomicU64,
    pub(super) recent: Mutex<Recent>,
    /// Why the store does not serve, beyond its being closed.
    down: RwLock<Option<Error>>,
    closed: AtomicBool,
    pub(super) queue: Queue,
    /// When the writer began what it does now, in milliseconds of the clock plus one; 0 when it waits.
    pub(super) busy_since: AtomicU64,
    /// Memtables that the writer sealed, for statistics.
    pub(super) rotations: AtomicU64,
}

impl State {
    /// Of a store that was found at these revisions.
    pub(super) fn new(tables: Tables, standing: Standing, recent_bytes: usize) -> Self {
        let Standing { revision, compacted, trimmed } = standing;
        State {
            tables: RwLock::new(Some(Arc::new(tables))),
            durable: AtomicU64::new(revision),
            published: watch::Sender::new(revision),
            compacted: AtomicU64::new(compacted),
            trimmed: AtomicU64::new(trimmed),
            recent: Mutex::new(Recent::new(revision, recent_bytes)),
            down: RwLock::new(None),
            closed: AtomicBool::new(false),
            queue: Queue::default(),
            busy_since: AtomicU64::new(0),
            rotations: AtomicU64::new(0),
        }
    }

    /// The tables, or why there are none.
    pub(super) fn tables(&self) -> Result<Arc<Tables>> {
        if let Some(tables) = self.tables.read().as_ref() {
            return Ok(tables.clone());
        }
        Err(self.why_down().unwrap_or_else(closed))
    }

    /// The tables while nobody can say why they are away: for the guard and statistics.
    pub(super) fn tables_if_open(&self) -> Option<Arc<Tables>> {
        self.tables.read().clone()
    }

    /// Takes the tables away from readers, or gives them back.
    pub(super) fn replace_tables(&self, tables: Option<Arc<Tables>>) -> Option<Arc<Tables>> {
        std::mem::replace(&mut *self.tables.write(), tables)
    }

    /// Says why the store does not serve; None when it does.
    pub(super) fn set_down(&self, why: Option<Error>) {
        *self.down.write() = why;
    }

    /// Why the store does not serve.
    pub(super) fn why_down(&self) -> Option<Error> {
        self.down.read().clone()
    }

    /// Ends the store: watches and waiting calls hear of it.
    pub(super) fn set_closed(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.published.send_modify(|_| ());
    }

    /// Whether calls are still answered.
    pub(super) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::SeqCst) { Err(closed()) } else { Ok(()) }
    }

    /// Whether a revision can be read.
    pub(super) fn check_readable(&self, asked: Revision) -> Result<()> {
        let current = Revision(self.durable.load(Ordering::SeqCst));
        if asked > current {
            return Err(Error::Future { asked, current });
        }
        self.check_kept(asked)
    }

    fn check_kept(&self, asked: Revision) -> Result<()> {
        let compacted = Revision(self.compacted.load(Ordering::SeqCst));
        if asked < compacted { Err(Error::Compacted { asked, compacted }) } else { Ok(()) }
    }

    /// Reads at a revision or now, and says which revision it was.
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
            match self.check_kept(revision) {
                Ok(()) => return Ok((found?, revision)),
                Err(error) if at.is_some() => return Err(error),
                // History was compacted up to a later revision while this read ran: that one can be read now.
                Err(_) => {}
            }
        }
    }
}

/// The answer of a closed store.
pub(super) fn closed() -> Error {
    Error::Unavailable("the store is closed".to_owned())
}
