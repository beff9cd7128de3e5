//! Reflector of the garbage collector: feeds all changes of the store into the index in order.
//!
//! # Contract
//!
//! [`follow`] reads the whole store once, at one revision and by pages, then every change after this
//! revision. When the reflector falls behind the retained history, it reads the store again; the old index
//! stays in use until the new index is complete.
//!
//! INVARIANT (no missed dependents): when [`Collector::wait_until_indexed`] returns without an error, the
//! index contains every reference that was stored before the call. The collector waits in this way before
//! each removal of an owner's finalizer.

use std::sync::Arc;
use std::time::Duration;

use storage::{Change, Result, Revision, Store};
use tokio::sync::watch;

use super::index::{Index, WorkItem};
use super::owners::{look_up_owner, remote_kind};
use super::ownership_data::{DeletionState, OwnerState, OwnershipData, may_have_owners_or_deletion};
use super::{Collector, WorkError};

/// Maximum number of objects in one read of the store.
const PAGE: usize = 2_000;
/// Pause after a failed read or a failed watch.
const PAUSE: Duration = Duration::from_secs(1);
/// Delay after which the collector completes a deletion that takes two writes and stopped after the first.
const FINISH_AFTER: Duration = Duration::from_secs(5);
/// Maximum wait until the index contains a revision; then the work that needs the revision is retried later.
const INDEX_WAIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Follows the store until the process ends. Calls `on_loaded` each time the index has been built.
pub(super) async fn follow(collector: Arc<Collector>, on_loaded: impl Fn()) {
    loop {
        let result = follow_once(&collector, &on_loaded).await;
        if let Err(error) = result {
            tracing::debug!(%error, "garbage collector watch failed; reading the store again");
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn follow_once(collector: &Collector, on_loaded: &impl Fn()) -> Result<()> {
    let revision = load(collector).await?;
    collector.progress.send_replace(revision.0);
    on_loaded();
    let mut watch = collector.api_state().store.watch("", revision).await?;
    loop {
        let changes = watch.next().await?;
        collector.queue.wait_for_capacity().await;
        for change in &changes {
            collector.apply(change).await;
        }
        if let Some(last) = changes.last() {
            collector.progress.send_replace(last.revision.0);
        }
    }
}

/// Builds the index from all stored objects. Returns the revision of the index.
async fn load(collector: &Collector) -> Result<Revision> {
    let mut index = Index::default();
    let mut work = Vec::new();
    let mut snapshot_revision = None;
    let mut start = String::new();
    // Deferred work can be dropped, because the scan of the stored objects finds it again.
    drop(collector.unserved.take());
    loop {
        let page = collector.api_state().store.range("", &start, PAGE, snapshot_revision).await?;
        let revision = page.revision;
        snapshot_revision = Some(revision);
        for row in &page.rows {
            if let Some(ownership) = collector.ownership(&row.key, &row.value) {
                index.apply(&row.key, None, Some(&ownership), false, &mut work);
                if ownership.deletion_state == Some(DeletionState::Complete) {
                    work.push(WorkItem::Finish(Arc::clone(&row.key)));
                }
                collector.drop_needless_examination(&mut work, &row.key, &ownership).await;
            }
        }
        match page.rows.last() {
            Some(last) if page.more => start = format!("{}\0", last.key),
            _ => {
                *collector.index.lock() = index;
                work.into_iter().for_each(|work| collector.queue.add(work));
                return Ok(revision);
            }
        }
        tokio::task::yield_now().await;
    }
}

/// Waits until the index has applied every change up to a revision. Returns false if the index ended.
///
/// A revision of the cache can have no change, for example after a write below another prefix of etcd. The history shows
/// that no change is missing.
async fn has_applied(store: &dyn Store, mut progress: watch::Receiver<u64>, revision: Revision) -> bool {
    loop {
        let applied = Revision(*progress.borrow_and_update());
        if applied >= revision || has_no_change(store, applied, revision).await {
            return true;
        }
        if progress.changed().await.is_err() {
            return false;
        }
    }
}

/// Whether the history has no change after the revision `after` up to `upto`.
async fn has_no_change(store: &dyn Store, mut after: Revision, upto: Revision) -> bool {
    while after < upto {
        match store.history("", after, upto, 1).await {
            Ok(range) if range.changes.is_empty() && range.through > after => after = range.through,
            _ => return false,
        }
    }
    true
}

impl Collector {
    /// Returns the ownership data of a stored object. Returns None if it has neither owners nor a deletion timestamp,
    /// is an event, or cannot be decoded.
    fn ownership(&self, key: &str, stored: &[u8]) -> Option<OwnershipData> {
        if !may_have_owners_or_deletion(stored) || self.is_ignored(key) {
            return None;
        }
        let ownership = OwnershipData::parse(stored);
        if ownership.is_none() {
            tracing::error!(key, "stored object cannot be decoded; the garbage collector ignores its owners");
        }
        ownership
    }

    /// Applies a change of the store to the index, and queues the resulting work.
    async fn apply(&self, change: &Change) {
        let key = &change.key;
        let is_deleted = change.new.is_none();
        if is_deleted {
            self.unserved.remove_object(key);
        }
        // A deleted object may be an owner, so its uid is read even if it has no owners.
        let before = change.old.as_ref().and_then(|row| match is_deleted {
            true if !self.is_ignored(key) => OwnershipData::parse(&row.value),
            _ => self.ownership(key, &row.value),
        });
        let after = change.new.as_ref().and_then(|new| self.ownership(key, new));
        if before.is_none() && after.is_none() {
            return;
        }
        let mut work = Vec::new();
        self.index.lock().apply(key, before.as_ref(), after.as_ref(), is_deleted, &mut work);
        if let Some(after) = &after {
            self.drop_needless_examination(&mut work, key, after).await;
            let state_before = before.and_then(|ownership| ownership.deletion_state);
            if after.deletion_state == Some(DeletionState::Complete) && state_before != after.deletion_state {
                self.queue.add_after(WorkItem::Finish(Arc::clone(key)), FINISH_AFTER);
            }
        }
        work.into_iter().for_each(|work| self.queue.add(work));
    }

    /// Drops the examination of an object whose owners all exist at this server.
    ///
    /// The owners are looked up before the examination is queued, so a store full of such objects does not
    /// fill the queue.
    async fn drop_needless_examination(
        &self,
        work: &mut Vec<WorkItem>,
        key: &str,
        ownership: &OwnershipData,
    ) {
        let is_examination =
            |work: &WorkItem| matches!(work, WorkItem::Examine(examined) if **examined == *key);
        if !work.iter().any(is_examination) {
            return;
        }
        let namespace = self.namespace(key);
        for owner in &ownership.owners {
            if remote_kind(self.actor.aggregation(), owner).is_some() {
                return;
            }
            match look_up_owner(self.api_state(), owner, &namespace).await {
                Ok(OwnerState::Exists) => {}
                _ => return,
            }
        }
        work.retain(|work| !is_examination(work));
    }

    /// Waits until the index contains every change that a client can have seen.
    ///
    /// # Errors
    ///
    /// The index does not contain the revision within [`INDEX_WAIT_TIMEOUT`].
    pub(super) async fn wait_until_indexed(&self) -> Result<(), WorkError> {
        // A client can read a change from the watch cache before the store publishes the revision.
        let revision = self.api_state().cache.revision();
        let store = &*self.api_state().store;
        let reached = has_applied(store, self.progress.subscribe(), revision);
        match tokio::time::timeout(INDEX_WAIT_TIMEOUT, reached).await {
            Ok(true) => Ok(()),
            _ => Err(WorkError::Failed(format!("the index of owners has not reached revision {revision}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use storage::{CommitOutcome, Error, Op, Page, RevisionRange, Row, Watch};

    use super::*;

    /// A store with one change, at this revision.
    struct OneChange(Revision);

    #[async_trait]
    impl Store for OneChange {
        fn revision(&self) -> Revision {
            self.0
        }

        fn compacted(&self) -> Revision {
            Revision(0)
        }

        async fn get(&self, _: &str, _: Option<Revision>) -> Result<Option<Row>> {
            Ok(None)
        }

        async fn range(&self, _: &str, _: &str, _: usize, _: Option<Revision>) -> Result<Page> {
            Ok(Page::default())
        }

        async fn commit(&self, _: &str, _: Op) -> Result<CommitOutcome> {
            Err(Error::Unavailable("a store without writes".to_owned()))
        }

        async fn watch(&self, _: &str, _: Revision) -> Result<Box<dyn Watch>> {
            Err(Error::Unavailable("a store without watches".to_owned()))
        }

        async fn history(&self, _: &str, after: Revision, upto: Revision, _: usize) -> Result<RevisionRange> {
            if after < self.0 && self.0 <= upto {
                let change = Change { key: "a".into(), old: None, new: None, revision: self.0 };
                return Ok(RevisionRange { changes: vec![change], through: self.0 });
            }
            // The store reads a long range in steps.
            Ok(RevisionRange { changes: Vec::new(), through: Revision(upto.0.min(after.0 + 2)) })
        }

        async fn compact(&self, _: Revision) -> Result<()> {
            Ok(())
        }

        fn health(&self) -> Result<()> {
            Ok(())
        }

        async fn close(&self) {}
    }

    #[tokio::test]
    async fn index_is_complete_at_a_revision_without_a_change() {
        let store = OneChange(Revision(5));
        let progress = watch::Sender::new(3);
        let applied = has_applied(&store, progress.subscribe(), Revision(9));
        tokio::pin!(applied);
        let waited = tokio::time::timeout(Duration::from_millis(50), applied.as_mut()).await;
        assert!(waited.is_err(), "the change of revision 5 is not applied");
        progress.send_replace(5);
        assert!(applied.await, "no change follows up to revision 9");
        drop(progress);
        // The sender is dropped.
        let ended = |at| watch::Sender::new(at).subscribe();
        let (complete, incomplete) = (ended(5), ended(4));
        assert!(has_applied(&store, complete, Revision(9)).await);
        assert!(!has_applied(&store, incomplete, Revision(9)).await, "the index ended");
    }
}
