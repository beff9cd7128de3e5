//! A fake store: the whole history in one list, written by the test, with gates to pause reads.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::*;

pub(super) struct FakeStore {
    this: Weak<FakeStore>,
    history: Mutex<History>,
    writer: Mutex<()>,
    observer: Arc<dyn Observer>,
    /// True: a change is readable before the observer sees it. False: the observer sees it first.
    pub(super) readable_first: AtomicBool,
    changed: Notify,
    failing: AtomicBool,
    gate: tokio::sync::Mutex<()>,
    read: AtomicUsize,
}

#[derive(Default)]
struct History {
    changes: Vec<Change>,
    compacted: Revision,
}

impl FakeStore {
    pub(super) fn new(observer: Arc<dyn Observer>) -> Arc<Self> {
        Arc::new_cyclic(|this| FakeStore {
            this: Weak::clone(this),
            history: Mutex::default(),
            writer: Mutex::default(),
            observer,
            readable_first: AtomicBool::new(true),
            changed: Notify::new(),
            failing: AtomicBool::new(false),
            gate: tokio::sync::Mutex::new(()),
            read: AtomicUsize::new(0),
        })
    }

    /// Writes one batch that sets or deletes keys. Deleting an absent key is no change.
    pub(super) fn write(&self, batch: &[(&str, Option<&str>)]) {
        let _writer = self.writer.lock();
        if self.readable_first.load(Ordering::SeqCst) {
            let changes = self.write_unobserved(batch);
            std::thread::yield_now();
            self.observer.observe(&changes);
        } else {
            let changes = self.changes_of(batch);
            self.observer.observe(&changes);
            std::thread::yield_now();
            self.publish(&changes);
        }
    }

    /// Makes one batch readable without observing it.
    pub(super) fn write_unobserved(&self, batch: &[(&str, Option<&str>)]) -> Vec<Change> {
        let changes = self.changes_of(batch);
        self.publish(&changes);
        changes
    }

    fn publish(&self, changes: &[Change]) {
        self.history.lock().changes.extend_from_slice(changes);
        self.changed.notify_waiters();
    }

    fn changes_of(&self, batch: &[(&str, Option<&str>)]) -> Vec<Change> {
        let mut rows = self.rows(None);
        let mut revision = self.newest();
        let mut changes = Vec::new();
        for (key, value) in batch {
            let old = rows.get(*key).cloned();
            if old.is_none() && value.is_none() {
                continue;
            }
            revision.0 += 1;
            let key: Arc<str> = Arc::from(*key);
            let new = value.map(|value| Bytes::copy_from_slice(value.as_bytes()));
            match &new {
                Some(value) => {
                    let row = Row { key: Arc::clone(&key), value: value.clone(), revision };
                    rows.insert(key.to_string(), row)
                }
                None => rows.remove(&*key),
            };
            changes.push(Change { key, old, new, revision });
        }
        changes
    }

    pub(super) fn changes(&self) -> Vec<Change> {
        self.history.lock().changes.clone()
    }

    pub(super) fn newest(&self) -> Revision {
        Revision(self.history.lock().changes.len() as u64)
    }

    /// The rows at a revision, computed from the history.
    pub(super) fn rows(&self, at: Option<Revision>) -> BTreeMap<String, Row> {
        let mut rows = BTreeMap::new();
        for change in
            self.history.lock().changes.iter().filter(|change| at.is_none_or(|at| change.revision <= at))
        {
            match &change.new {
                Some(value) => {
                    let row =
                        Row { key: change.key.clone(), value: value.clone(), revision: change.revision };
                    rows.insert(change.key.to_string(), row)
                }
                None => rows.remove(&*change.key),
            };
        }
        rows
    }

    pub(super) fn compact_now(&self, upto: Revision) {
        self.history.lock().compacted = upto;
    }

    pub(super) fn fail_next_range(&self) {
        self.failing.store(true, Ordering::SeqCst);
    }

    /// Returns a guard. Reads of ranges wait until the guard is dropped.
    pub(super) fn close_gate(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.gate.try_lock().unwrap()
    }

    /// Returns the number of reads of history ranges so far.
    pub(super) fn history_reads(&self) -> usize {
        self.read.load(Ordering::SeqCst)
    }

    fn check(&self, at: Option<Revision>) -> Result<Revision> {
        let current = self.newest();
        let compacted = self.history.lock().compacted;
        match at {
            Some(requested) if requested < compacted => Err(Error::Compacted { requested, compacted }),
            Some(requested) if requested > current => Err(Error::Future { requested, current }),
            _ => Ok(at.unwrap_or(current)),
        }
    }
}

#[async_trait]
impl Store for FakeStore {
    fn revision(&self) -> Revision {
        self.newest()
    }

    fn compacted(&self) -> Revision {
        self.history.lock().compacted
    }

    async fn get(&self, key: &str, at: Option<Revision>) -> Result<Option<Row>> {
        let at = self.check(at)?;
        Ok(self.rows(Some(at)).remove(key))
    }

    async fn range(&self, prefix: &str, start: &str, limit: usize, at: Option<Revision>) -> Result<Page> {
        drop(self.gate.lock().await);
        if self.failing.swap(false, Ordering::SeqCst) {
            return Err(Error::Unavailable("injected failure".to_owned()));
        }
        let revision = self.check(at)?;
        // Pages of two rows split a load into several reads.
        let limit = if limit == 0 { usize::MAX } else { limit.min(2) };
        let mut rows: Vec<Row> = self.rows(Some(revision)).into_values().collect();
        rows.retain(|row| row.key.starts_with(prefix) && *row.key >= *start);
        let more = rows.len() > limit;
        rows.truncate(limit);
        Ok(Page { rows, revision, more })
    }

    async fn commit(&self, _key: &str, _op: Op) -> Result<CommitOutcome> {
        Err(Error::Unavailable("tests write directly".to_owned()))
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>> {
        self.check(Some(after))?;
        let fake =
            self.this.upgrade().ok_or_else(|| Error::Unavailable("the store was dropped".to_owned()))?;
        Ok(Box::new(FakeWatch { fake, prefix: prefix.to_owned(), position: after }))
    }

    async fn history(
        &self,
        prefix: &str,
        after: Revision,
        upto: Revision,
        bytes: usize,
    ) -> Result<RevisionRange> {
        self.check(Some(after))?;
        self.check(Some(upto))?;
        self.read.fetch_add(1, Ordering::SeqCst);
        let changes = self.changes();
        let mut through = upto.max(after);
        let (mut found, mut found_bytes) = (Vec::new(), 0);
        // Ranges of five entries split catching up into several reads.
        for (scanned, change) in
            changes.into_iter().filter(|c| c.revision > after && c.revision <= upto).enumerate()
        {
            let revision = change.revision;
            if change.key.starts_with(prefix) {
                found_bytes += change.bytes();
                found.push(change);
            }
            if scanned == 4 || found_bytes >= bytes {
                through = revision;
                break;
            }
        }
        Ok(RevisionRange { changes: found, through })
    }

    async fn compact(&self, upto: Revision) -> Result<()> {
        self.history.lock().compacted = upto;
        Ok(())
    }

    fn health(&self) -> Result<()> {
        Ok(())
    }

    async fn close(&self) {}
}

struct FakeWatch {
    fake: Arc<FakeStore>,
    prefix: String,
    position: Revision,
}

#[async_trait]
impl Watch for FakeWatch {
    async fn next(&mut self) -> Result<Vec<Change>> {
        let fake = Arc::clone(&self.fake);
        loop {
            let changed = fake.changed.notified();
            fake.check(Some(self.position))?;
            let mut changes = fake.changes();
            changes.retain(|change| change.revision > self.position && change.key.starts_with(&self.prefix));
            changes.truncate(3);
            if let Some(last) = changes.last() {
                self.position = last.revision;
                return Ok(changes);
            }
            changed.await;
        }
    }
}
