//! Test doubles: stores that change some methods of another store.

use async_trait::async_trait;

use crate::{CommitOutcome, Held, Op, Page, Result, Revision, RevisionRange, Row, Store, Watch};

/// A store for tests, which forwards each method that it does not override to another store.
///
/// A layer of the server implements [`Store`] itself, because it must decide about each method that returns rows.
#[async_trait]
pub trait StoreDouble: Send + Sync + 'static {
    /// The other store.
    fn inner(&self) -> &dyn Store;

    /// As [`Store::newest_revision`].
    async fn newest_revision(&self) -> Result<Revision> {
        self.inner().newest_revision().await
    }

    /// As [`Store::get`].
    async fn get(&self, key: &str, at: Option<Revision>) -> Result<Option<Row>> {
        self.inner().get(key, at).await
    }

    /// As [`Store::range`]. Pages with a limit in bytes consist of these pages, too.
    async fn range(&self, prefix: &str, start: &str, limit: usize, at: Option<Revision>) -> Result<Page> {
        self.inner().range(prefix, start, limit, at).await
    }

    /// As [`Store::commit_holding`]. A commit holds no keys.
    async fn commit_holding(&self, key: &str, op: Op, held: &[Held]) -> Result<CommitOutcome> {
        self.inner().commit_holding(key, op, held).await
    }

    /// As [`Store::close`].
    async fn close(&self) {
        self.inner().close().await;
    }
}

#[async_trait]
impl<D: StoreDouble> Store for D {
    fn inner(&self) -> Option<&dyn Store> {
        Some(StoreDouble::inner(self))
    }

    fn revision(&self) -> Revision {
        StoreDouble::inner(self).revision()
    }

    async fn newest_revision(&self) -> Result<Revision> {
        StoreDouble::newest_revision(self).await
    }

    fn compacted(&self) -> Revision {
        StoreDouble::inner(self).compacted()
    }

    async fn get(&self, key: &str, at: Option<Revision>) -> Result<Option<Row>> {
        StoreDouble::get(self, key, at).await
    }

    async fn range(&self, prefix: &str, start: &str, limit: usize, at: Option<Revision>) -> Result<Page> {
        StoreDouble::range(self, prefix, start, limit, at).await
    }

    async fn commit(&self, key: &str, op: Op) -> Result<CommitOutcome> {
        StoreDouble::commit_holding(self, key, op, &[]).await
    }

    async fn commit_holding(&self, key: &str, op: Op, held: &[Held]) -> Result<CommitOutcome> {
        StoreDouble::commit_holding(self, key, op, held).await
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>> {
        StoreDouble::inner(self).watch(prefix, after).await
    }

    async fn history(
        &self,
        prefix: &str,
        after: Revision,
        upto: Revision,
        bytes: usize,
    ) -> Result<RevisionRange> {
        StoreDouble::inner(self).history(prefix, after, upto, bytes).await
    }

    async fn compact(&self, upto: Revision) -> Result<()> {
        StoreDouble::inner(self).compact(upto).await
    }

    fn health(&self) -> Result<()> {
        StoreDouble::inner(self).health()
    }

    async fn close(&self) {
        StoreDouble::close(self).await;
    }
}
