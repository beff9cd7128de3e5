//! Reflector of the garbage collector: feeds all changes of the store into the index in order.
//!
//! # Contract
//!
//! [`follow`] reads the whole store once, at one revision and by pages, then every change after it. When the
//! reflector falls behind the retained history, it reads the store again; the old index stays in use until
//! the new one is complete.
//!
//! INVARIANT (no missed dependents): after [`Collector::wait_until_indexed`] has waited for a revision, the index contains
//! every reference that was stored at or before that revision. Every removal of an owner's finalizer waits
//! this way.

use std::sync::Arc;
use std::time::Duration;

use storage::{Change, Result, Revision};

use super::Collector;
use super::index::{Index, WorkItem};
use super::owners::{OwnerState, locate};
use super::ownership_data::{DeletionState, OwnershipData, may_have_owners_or_deletion};

/// Rows per read.
const PAGE: usize = 2_000;
/// Pause after a failed read.
const PAUSE: Duration = Duration::from_secs(1);
/// Time after which a deletion in two writes counts as interrupted.
const FINISH_AFTER: Duration = Duration::from_secs(5);
/// Timeout of waiting for a revision, after which other work goes first.
const INDEX_WAIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Follows the store until the process ends. Calls `loaded` when the index is complete.
pub(super) async fn follow(collector: Arc<Collector>, loaded: impl Fn()) {
    loop {
        let ended = follow_once(&collector, &loaded).await;
        if let Err(error) = ended {
            tracing::debug!(%error, "garbage collector watch failed; reading the store again");
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn follow_once(collector: &Collector, loaded: &impl Fn()) -> Result<()> {
    let revision = load(collector).await?;
    collector.progress.send_replace(revision.0);
    loaded();
    let mut watch = collector.server_state().store.watch("", revision).await?;
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
    let mut at = None;
    let mut start = String::new();
    // The work follows from the stored objects again.
    drop(collector.unserved.take());
    loop {
        let page = collector.server_state().store.range("", &start, PAGE, at).await?;
        let revision = page.revision;
        at = Some(revision);
        for row in &page.rows {
            if let Some(traces) = collector.traces(&row.key, &row.value) {
                index.apply(&row.key, None, Some(&traces), false, &mut work);
                if traces.ending == Some(DeletionState::Complete) {
                    work.push(WorkItem::Finish(Arc::clone(&row.key)));
                }
                collector.drop_if_owners_exist(&mut work, &row.key, &traces).await;
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

impl Collector {
    /// Returns the owner and deletion data of stored bytes; None for most objects.
    fn traces(&self, key: &str, stored: &[u8]) -> Option<OwnershipData> {
        if !may_have_owners_or_deletion(stored) || self.is_ignored(key) {
            return None;
        }
        let traces = OwnershipData::of(stored);
        if traces.is_none() {
            tracing::error!(key, "stored object cannot be decoded; the garbage collector ignores its owners");
        }
        traces
    }

    async fn apply(&self, change: &Change) {
        let key = &change.key;
        let gone = change.new.is_none();
        if gone {
            self.unserved.remove_object(key);
        }
        // A deleted object may be an owner, so its uid is read even if it has no owners.
        let before = change.old.as_ref().and_then(|row| match gone {
            true if !self.is_ignored(key) => OwnershipData::of(&row.value),
            _ => self.traces(key, &row.value),
        });
        let after = change.new.as_ref().and_then(|new| self.traces(key, new));
        if before.is_none() && after.is_none() {
            return;
        }
        let mut work = Vec::new();
        self.index.lock().apply(key, before.as_ref(), after.as_ref(), gone, &mut work);
        if let Some(after) = &after {
            self.drop_if_owners_exist(&mut work, key, after).await;
            let was = before.and_then(|traces| traces.ending);
            if after.ending == Some(DeletionState::Complete) && was != after.ending {
                self.queue.add_after(WorkItem::Finish(Arc::clone(key)), FINISH_AFTER);
            }
        }
        work.into_iter().for_each(|work| self.queue.add(work));
    }

    /// Drops the examination of an object whose owners all exist.
    ///
    /// The lookup runs here, so that a store full of such objects does not fill the queue.
    async fn drop_if_owners_exist(&self, work: &mut Vec<WorkItem>, key: &str, traces: &OwnershipData) {
        let wanted = |work: &WorkItem| matches!(work, WorkItem::Examine(examined) if **examined == *key);
        if !work.iter().any(wanted) {
            return;
        }
        let namespace = self.namespace(key);
        for owner in &traces.owners {
            match locate(self.server_state(), owner, &namespace).await {
                Ok(OwnerState::Exists) => {}
                _ => return,
            }
        }
        work.retain(|work| !wanted(work));
    }

    /// Waits until the index contains the current revision of the store.
    ///
    /// # Errors
    ///
    /// The index does not reach the revision in time; the work is retried later.
    pub(super) async fn wait_until_indexed(&self) -> Result<(), String> {
        let revision = self.server_state().store.revision().0;
        let mut progress = self.progress.subscribe();
        let reached = progress.wait_for(|now| *now >= revision);
        match tokio::time::timeout(INDEX_WAIT_TIMEOUT, reached).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(format!("the index of owners has not reached revision {revision}")),
        }
    }
}
