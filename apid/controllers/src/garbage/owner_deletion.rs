//! Removal of an owner's finalizer after its dependents are orphaned or deleted.

use std::sync::Arc;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use kinds::metadata::{FOREGROUND, ORPHAN};
use serde_json::{Map, Value};

use super::examine::decode_object;
use super::owners::may_own;
use super::ownership_data::{DeletionState, OwnershipData, Uid};
use super::{Collector, DEPENDENT_CONCURRENCY, INDEX_BATCH, Subject, WorkError, repeat_conflicts};
use verbs::deletion::options::Propagation;

impl Collector {
    /// Continues the deletion of the object at a key, if the deletion waits for dependents.
    pub(super) async fn process_owner_deletion(&self, key: &str) -> Result<(), WorkError> {
        repeat_conflicts(|| self.process_owner_deletion_once(key)).await
    }

    async fn process_owner_deletion_once(&self, key: &str) -> Result<(), WorkError> {
        let Some(subject) = self.subject(key).await? else { return Ok(()) };
        let Some(ownership) = OwnershipData::parse(subject.item.value()) else { return Ok(()) };
        match ownership.deletion_state {
            Some(DeletionState::Orphaning) => self.orphan(&subject, &ownership).await,
            Some(DeletionState::WaitingForDependents) => self.release(&subject, &ownership).await,
            Some(DeletionState::Independent | DeletionState::Complete) | None => Ok(()),
        }
    }

    /// Removes an object whose deletion stopped after the object was marked for removal.
    pub(super) async fn finish(&self, key: &str) -> Result<(), WorkError> {
        repeat_conflicts(|| self.finish_once(key)).await
    }

    async fn finish_once(&self, key: &str) -> Result<(), WorkError> {
        let Some(subject) = self.subject(key).await? else { return Ok(()) };
        let Some(OwnershipData { uid, deletion_state: Some(DeletionState::Complete), .. }) =
            OwnershipData::parse(subject.item.value())
        else {
            return Ok(());
        };
        self.delete(&subject, &uid, Propagation::Background).await
    }

    /// Removes the references to the owner from its dependents, then the finalizer `orphan` from the owner.
    async fn orphan(&self, owner: &Subject<'_>, ownership: &OwnershipData) -> Result<(), WorkError> {
        let uid = Uid::from_text(&ownership.uid);
        loop {
            let removed = self.remove_references(uid, &ownership.uid).await?;
            self.wait_until_indexed().await?;
            // INVARIANT (no missed dependents): the index now contains dependents that were created
            // meanwhile.
            if removed == 0 && self.index.lock().dependents(uid, None).next().is_none() {
                return self.remove_finalizer(owner, ORPHAN).await;
            }
        }
    }

    /// Removes the references to an owner from all dependents in the index. Returns the number of dependents.
    async fn remove_references(&self, owner: Uid, uid: &str) -> Result<usize, WorkError> {
        let mut after = None;
        let mut count = 0;
        loop {
            let batch: Vec<Arc<str>> = {
                let index = self.index.lock();
                index
                    .dependents(owner, after.as_ref())
                    .take(INDEX_BATCH)
                    .map(|(key, _)| Arc::clone(key))
                    .collect()
            };
            let Some(last) = batch.last() else { return Ok(count) };
            after = Some(Arc::clone(last));
            count += batch.len();
            let remove = |key: Arc<str>| async move { self.remove_reference(&key, uid).await };
            stream::iter(batch).map(Ok).try_for_each_concurrent(DEPENDENT_CONCURRENCY, remove).await?;
        }
    }

    async fn remove_reference(&self, key: &str, uid: &str) -> Result<(), WorkError> {
        let keep_others = |reference: Map<String, Value>| {
            (reference.get("uid").and_then(Value::as_str) != Some(uid)).then_some(reference)
        };
        let remove = || async {
            let Some(dependent) = self.subject(key).await? else { return Ok(()) };
            self.change_references(&dependent, keep_others).await.map(drop)
        };
        repeat_conflicts(remove).await
    }

    /// Removes the finalizer `foregroundDeletion` of an owner unless a dependent blocks the deletion of the
    /// owner.
    async fn release(&self, owner: &Subject<'_>, ownership: &OwnershipData) -> Result<(), WorkError> {
        let uid = Uid::from_text(&ownership.uid);
        let is_blocked = || {
            let index = self.index.lock();
            let mut dependents = index.dependents(uid, None);
            dependents.any(|(key, blocks)| {
                blocks && may_own(self.api_state(), owner.item.key(), key) && !index.is_cycle(uid, key)
            })
        };
        if is_blocked() {
            return Ok(());
        }
        self.wait_until_indexed().await?;
        if is_blocked() {
            return Ok(());
        }
        self.remove_finalizer(owner, FOREGROUND).await
    }

    async fn remove_finalizer(&self, owner: &Subject<'_>, finalizer: &str) -> Result<(), WorkError> {
        let object = decode_object(owner)?;
        let remaining: Vec<Value> =
            object.finalizers().filter(|f| *f != finalizer).map(Value::from).collect();
        let remaining = if remaining.is_empty() { Value::Null } else { Value::Array(remaining) };
        self.patch_metadata(owner, &object, "finalizers", remaining).await
    }
}
