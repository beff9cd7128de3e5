//! The memory engine: a simple reference model of [`Store`], for tests and for comparison with the other
//! engines.
//!
//! # Contract
//!
//! The engine implements all of [`Store`], without persistence. Each batch contains one commit.
//!
//! # Concurrency
//!
//! A commit holds `commit_lock` until the observer returns: changes are observed in order. The engine holds
//! `state` only during an access: the observer may read the store. Lock order: `commit_lock`, then `state`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use crate::{
    Change, CommitOutcome, Error, Held, Observer, Op, Page, Result, Revision, RevisionRange, Row, Store,
    Watch, check_size,
};

/// The in-memory store; see the module documentation.
pub struct MemoryStore {
    shared: Arc<MemoryShared>,
    observer: Arc<dyn Observer>,
    commit_lock: Mutex<()>,
    is_shared: bool,
    /// The next call before a commit of a key with a prefix.
    before_commit: Mutex<Option<(String, CommitHook)>>,
}

type CommitHook = Box<dyn FnOnce(&MemoryStore) + Send>;

struct MemoryShared {
    state: RwLock<MemoryState>,
    /// The newest revision visible to readers; set after the observer has seen the change.
    published: watch::Sender<u64>,
    closed: AtomicBool,
}

#[derive(Default)]
struct MemoryState {
    /// Key, then revision, then value; None is a tombstone.
    versions: BTreeMap<Arc<str>, BTreeMap<u64, Option<Bytes>>>,
    /// Every change after `compacted`, by revision.
    history: BTreeMap<u64, Change>,
    revision: u64,
    compacted: u64,
}

impl MemoryStore {
    /// An empty store that reports itself as shared, for tests of several servers. One observer serves all of them.
    pub fn of_several_servers(observer: Arc<dyn Observer>) -> Self {
        MemoryStore { is_shared: true, ..MemoryStore::new(observer) }
    }

    /// An empty store.
    pub fn new(observer: Arc<dyn Observer>) -> Self {
        let shared = MemoryShared {
            state: RwLock::default(),
            published: watch::Sender::new(0),
            closed: AtomicBool::new(false),
        };
        MemoryStore {
            shared: Arc::new(shared),
            observer,
            commit_lock: Mutex::new(()),
            is_shared: false,
            before_commit: Mutex::new(None),
        }
    }

    /// Calls a function once, just before the next commit of a key with a prefix: the changes of another server.
    pub fn before_commit(&self, prefix: &str, change: impl FnOnce(&MemoryStore) + Send + 'static) {
        *self.before_commit.lock() = Some((prefix.to_owned(), Box::new(change)));
    }

    fn write(&self, key: &str, op: Op, held: &[Held]) -> Result<CommitOutcome> {
        let _commit_lock = self.commit_lock.lock();
        self.shared.check_open()?;
        let change = {
            let mut state = self.shared.state.write();
            let change = state.decide(key, op)?;
            state.check_held(held)?;
            state.apply(&change);
            change
        };
        let revision = change.revision;
        self.observer.observe(&[change]);
        self.shared.published.send_replace(revision.0);
        Ok(CommitOutcome { revision })
    }
}

impl MemoryShared {
    fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(Error::closed());
        }
        Ok(())
    }

    /// Returns the revision of a read: `at` after a check that it is readable, or the published revision if
    /// `at` is None.
    fn resolve_revision(&self, state: &MemoryState, at: Option<Revision>) -> Result<u64> {
        let Some(requested) = at else { return Ok(*self.published.borrow()) };
        if requested.0 > state.revision {
            return Err(Error::Future { requested, current: Revision(state.revision) });
        }
        if requested.0 < state.compacted {
            return Err(Error::Compacted { requested, compacted: Revision(state.compacted) });
        }
        Ok(requested.0)
    }

    /// The changes of a prefix after a readable revision, up to another.
    fn changes(&self, prefix: &str, after: u64, upto: u64) -> Result<Vec<Change>> {
        let state = self.state.read();
        self.resolve_revision(&state, Some(Revision(after)))?;
        self.resolve_revision(&state, Some(Revision(upto)))?;
        let later = state.history.range(after + 1..).map(|(_, change)| change);
        let changes = later.take_while(|change| change.revision.0 <= upto);
        Ok(changes.filter(|change| change.key.starts_with(prefix)).cloned().collect())
    }
}

impl MemoryState {
    /// The row of a key at a revision.
    fn row(&self, key: &str, at: u64) -> Option<Row> {
        let (key, versions) = self.versions.get_key_value(key)?;
        let (revision, value) = versions.range(..=at).next_back()?;
        Some(Row { key: key.clone(), value: value.clone()?, revision: Revision(*revision) })
    }

    /// Checks the preconditions of an operation and returns its change.
    fn decide(&self, key: &str, op: Op) -> Result<Change> {
        let current = self.row(key, u64::MAX);
        let key: Arc<str> = key.into();
        let revision = Revision(self.revision + 1);
        match (op, current) {
            (Op::Create(new), None) => Ok(Change { key, old: None, new: Some(new), revision }),
            (Op::Create(_), Some(row)) => Err(Error::Exists(Box::new(row))),
            (Op::Update(..) | Op::Delete(_), None) => Err(Error::NotFound(key)),
            (Op::Update(_, expected) | Op::Delete(expected), Some(row)) if row.revision != expected => {
                Err(Error::Conflict(Box::new(row)))
            }
            (Op::Update(new, _), old) => Ok(Change { key, old, new: Some(new), revision }),
            (Op::Delete(_), old) => Ok(Change { key, old, new: None, revision }),
        }
    }

    /// Checks that keys are at their revisions.
    fn check_held(&self, held: &[Held]) -> Result<()> {
        let is_held =
            |held: &Held| self.row(&held.key, u64::MAX).is_some_and(|row| row.revision == held.revision);
        held.iter().find(|held| !is_held(held)).map_or(Ok(()), |held| Err(held.lost()))
    }

    fn apply(&mut self, change: &Change) {
        self.revision = change.revision.0;
        self.versions.entry(change.key.clone()).or_default().insert(change.revision.0, change.new.clone());
        self.history.insert(change.revision.0, change.clone());
    }

    /// Removes the versions and history that no read at or after `upto` needs.
    fn compact(&mut self, upto: u64) {
        self.compacted = upto;
        self.history = self.history.split_off(&(upto + 1));
        self.versions.retain(|_, versions| {
            let newest =
                versions.range(..=upto).next_back().map(|(revision, value)| (*revision, value.is_some()));
            if let Some((revision, live)) = newest {
                let first_kept = if live { revision } else { revision + 1 };
                *versions = versions.split_off(&first_kept);
            }
            !versions.is_empty()
        });
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn revision(&self) -> Revision {
        Revision(*self.shared.published.borrow())
    }

    fn is_shared(&self) -> bool {
        self.is_shared
    }

    fn compacted(&self) -> Revision {
        Revision(self.shared.state.read().compacted)
    }

    async fn get(&self, key: &str, at: Option<Revision>) -> Result<Option<Row>> {
        self.shared.check_open()?;
        let state = self.shared.state.read();
        let at = self.shared.resolve_revision(&state, at)?;
        Ok(state.row(key, at))
    }

    async fn range(&self, prefix: &str, start: &str, limit: usize, at: Option<Revision>) -> Result<Page> {
        self.shared.check_open()?;
        let state = self.shared.state.read();
        let at = self.shared.resolve_revision(&state, at)?;
        let mut page = Page { rows: Vec::new(), revision: Revision(at), more: false };
        for key in state.versions.keys().filter(|key| key.starts_with(prefix) && &***key >= start) {
            let Some(row) = state.row(key, at) else { continue };
            if limit != 0 && page.rows.len() == limit {
                page.more = true;
                break;
            }
            page.rows.push(row);
        }
        Ok(page)
    }

    async fn commit(&self, key: &str, op: Op) -> Result<CommitOutcome> {
        self.commit_holding(key, op, &[]).await
    }

    async fn commit_holding(&self, key: &str, op: Op, held: &[Held]) -> Result<CommitOutcome> {
        check_size(key, &op)?;
        let hook = self.before_commit.lock().take_if(|(prefix, _)| key.starts_with(&**prefix));
        if let Some((_, change)) = hook {
            change(self);
        }
        self.write(key, op, held)
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>> {
        self.shared.check_open()?;
        self.shared.resolve_revision(&self.shared.state.read(), Some(after))?;
        let published = self.shared.published.subscribe();
        Ok(Box::new(MemoryWatch {
            shared: self.shared.clone(),
            prefix: prefix.to_owned(),
            position: after.0,
            published,
        }))
    }

    async fn history(
        &self,
        prefix: &str,
        after: Revision,
        upto: Revision,
        bytes: usize,
    ) -> Result<RevisionRange> {
        self.shared.check_open()?;
        let mut through = upto.max(after);
        let mut changes = self.shared.changes(prefix, after.0, through.0)?;
        let mut total = 0;
        let last = changes.iter().position(|change| {
            total += change.bytes();
            total >= bytes
        });
        if let Some(last) = last {
            changes.truncate(last + 1);
            through = changes.last().map_or(through, |change| change.revision);
        }
        Ok(RevisionRange { changes, through })
    }

    async fn compact(&self, upto: Revision) -> Result<()> {
        let _commit_lock = self.commit_lock.lock();
        self.shared.check_open()?;
        let mut state = self.shared.state.write();
        if upto.0 > state.revision {
            return Err(Error::Future { requested: upto, current: Revision(state.revision) });
        }
        if upto.0 > state.compacted {
            state.compact(upto.0);
        }
        Ok(())
    }

    fn health(&self) -> Result<()> {
        self.shared.check_open()
    }

    async fn close(&self) {
        let _commit_lock = self.commit_lock.lock();
        self.shared.closed.store(true, Ordering::SeqCst);
        self.shared.published.send_modify(|_| ());
    }
}

struct MemoryWatch {
    shared: Arc<MemoryShared>,
    prefix: String,
    position: u64,
    published: watch::Receiver<u64>,
}

#[async_trait]
impl Watch for MemoryWatch {
    async fn next(&mut self) -> Result<Vec<Change>> {
        loop {
            self.shared.check_open()?;
            let upto = *self.published.borrow_and_update();
            if self.position < upto {
                let changes = self.shared.changes(&self.prefix, self.position, upto)?;
                self.position = upto;
                if !changes.is_empty() {
                    return Ok(changes);
                }
            }
            if self.published.changed().await.is_err() {
                return Err(Error::closed());
            }
        }
    }
}
