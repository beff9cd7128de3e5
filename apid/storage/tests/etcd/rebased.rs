//! A store whose revisions begin at 0, over an engine whose revisions begin later.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use storage::{
    Change, CommitOutcome, Error, Held, Observer, Op, Page, Result, Revision, RevisionRange, Row, Store,
    Watch,
};

/// Revisions of the engine minus the base.
#[derive(Clone, Copy)]
struct Base(u64);

impl Base {
    fn down(self, revision: Revision) -> Revision {
        Revision(revision.0.saturating_sub(self.0))
    }

    fn up(self, revision: Revision) -> Revision {
        Revision(revision.0 + self.0)
    }

    fn row(self, row: Row) -> Row {
        Row { revision: self.down(row.revision), ..row }
    }

    fn change(self, change: Change) -> Change {
        let old = change.old.map(|row| self.row(row));
        Change { old, revision: self.down(change.revision), ..change }
    }

    fn error(self, error: Error) -> Error {
        match error {
            Error::Exists(row) => Error::Exists(Box::new(self.row(*row))),
            Error::Conflict(row) => Error::Conflict(Box::new(self.row(*row))),
            Error::Compacted { requested, compacted } => {
                Error::Compacted { requested: self.down(requested), compacted: self.down(compacted) }
            }
            Error::Future { requested, current } => {
                Error::Future { requested: self.down(requested), current: self.down(current) }
            }
            other => other,
        }
    }

    fn result<T>(self, result: Result<T>, convert: impl FnOnce(T) -> T) -> Result<T> {
        result.map(convert).map_err(|error| self.error(error))
    }

    fn page(self, page: Page) -> Page {
        Page {
            rows: page.rows.into_iter().map(|row| self.row(row)).collect(),
            revision: self.down(page.revision),
            ..page
        }
    }
}

pub(super) struct RebasedObserver {
    observer: Arc<dyn Observer>,
    base: AtomicU64,
}

impl RebasedObserver {
    pub(super) fn new(observer: Arc<dyn Observer>) -> Self {
        RebasedObserver { observer, base: AtomicU64::new(0) }
    }

    /// Sets the base before the first change.
    pub(super) fn set_base(&self, base: u64) {
        self.base.store(base, Ordering::SeqCst);
    }
}

impl Observer for RebasedObserver {
    fn observe(&self, changes: &[Change]) {
        let base = Base(self.base.load(Ordering::SeqCst));
        let changes: Vec<Change> = changes.iter().map(|change| base.change(change.clone())).collect();
        self.observer.observe(&changes);
    }
}

pub(super) struct Rebased<S> {
    engine: S,
    base: Base,
}

impl<S: Store> Rebased<S> {
    pub(super) fn new(engine: S, base: u64) -> Self {
        Rebased { engine, base: Base(base) }
    }
}

#[async_trait]
impl<S: Store> Store for Rebased<S> {
    fn revision(&self) -> Revision {
        self.base.down(self.engine.revision())
    }

    fn compacted(&self) -> Revision {
        self.base.down(self.engine.compacted())
    }

    async fn get(&self, key: &str, at: Option<Revision>) -> Result<Option<Row>> {
        let found = self.engine.get(key, at.map(|at| self.base.up(at))).await;
        self.base.result(found, |row| row.map(|row| self.base.row(row)))
    }

    async fn range(&self, prefix: &str, start: &str, limit: usize, at: Option<Revision>) -> Result<Page> {
        let page = self.engine.range(prefix, start, limit, at.map(|at| self.base.up(at))).await;
        self.base.result(page, |page| self.base.page(page))
    }

    async fn rows_within(
        &self,
        prefix: &str,
        start: &str,
        limit: usize,
        bytes: usize,
        at: Revision,
    ) -> Result<Page> {
        let page = self.engine.rows_within(prefix, start, limit, bytes, self.base.up(at)).await;
        self.base.result(page, |page| self.base.page(page))
    }

    async fn commit(&self, key: &str, op: Op) -> Result<CommitOutcome> {
        self.commit_holding(key, op, &[]).await
    }

    async fn commit_holding(&self, key: &str, op: Op, held: &[Held]) -> Result<CommitOutcome> {
        let op = match op {
            Op::Update(value, at) => Op::Update(value, self.base.up(at)),
            Op::Delete(at) => Op::Delete(self.base.up(at)),
            create => create,
        };
        let up = |held: &Held| Held { key: held.key.clone(), revision: self.base.up(held.revision) };
        let held: Vec<Held> = held.iter().map(up).collect();
        let outcome = self.engine.commit_holding(key, op, &held).await;
        self.base.result(outcome, |outcome| CommitOutcome { revision: self.base.down(outcome.revision) })
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>> {
        let watch = self.engine.watch(prefix, self.base.up(after)).await;
        let watch = watch.map_err(|error| self.base.error(error))?;
        Ok(Box::new(RebasedWatch { watch, base: self.base }))
    }

    async fn history(
        &self,
        prefix: &str,
        after: Revision,
        upto: Revision,
        bytes: usize,
    ) -> Result<RevisionRange> {
        let range = self.engine.history(prefix, self.base.up(after), self.base.up(upto), bytes).await;
        self.base.result(range, |range| RevisionRange {
            changes: range.changes.into_iter().map(|change| self.base.change(change)).collect(),
            through: self.base.down(range.through),
        })
    }

    async fn compact(&self, upto: Revision) -> Result<()> {
        self.base.result(self.engine.compact(self.base.up(upto)).await, |()| ())
    }

    fn health(&self) -> Result<()> {
        self.engine.health()
    }

    async fn close(&self) {
        self.engine.close().await;
    }
}

struct RebasedWatch {
    watch: Box<dyn Watch>,
    base: Base,
}

#[async_trait]
impl Watch for RebasedWatch {
    async fn next(&mut self) -> Result<Vec<Change>> {
        let changes = self.watch.next().await;
        self.base
            .result(changes, |changes| changes.into_iter().map(|change| self.base.change(change)).collect())
    }
}
