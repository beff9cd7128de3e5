//! Removal of an owner's finalizer after its dependents are orphaned or deleted.

use std::sync::Arc;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use kinds::metadata::{FOREGROUND, ORPHAN};
use serde_json::{Map, Value};

use super::examine::tree;
use super::owners::may_own;
use super::ownership_data::{DeletionState, OwnershipData, Uid};
use super::{Collector, DEPENDENT_CONCURRENCY, INDEX_BATCH, Subject, WorkError};
use crate::verbs::deletion::options::Propagation;

impl Collector {
    /// Processes the object at a key, whose deletion may wait for dependents.
    pub(super) async fn end(&self, key: &str) -> Result<(), WorkError> {
        loop {
            let Some(subject) = self.subject(key).await? else { return Ok(()) };
            let Some(traces) = OwnershipData::of(subject.item.value()) else { return Ok(()) };
            let done = match traces.ending {
                Some(DeletionState::Orphaning) => self.orphan(&subject, &traces).await,
                Some(DeletionState::WaitingForDependents) => self.release(&subject, &traces).await,
                Some(DeletionState::Independent | DeletionState::Complete) | None => Ok(()),
            };
            match done {
                Err(WorkError::Conflict) => {}
                other => return other,
            }
        }
    }

    /// Completes a deletion that stopped between marking the object and removing it.
    pub(super) async fn finish(&self, key: &str) -> Result<(), WorkError> {
        let Some(subject) = self.subject(key).await? else { return Ok(()) };
        match OwnershipData::of(subject.item.value()) {
            Some(OwnershipData { uid, ending: Some(DeletionState::Complete), .. }) => {
                match self.delete(&subject, &uid, Propagation::Background).await {
                    // The deletion is in progress.
                    Err(WorkError::Conflict) => Ok(()),
                    other => other,
                }
            }
            _ => Ok(()),
        }
    }

    /// Removes the owner references from the dependents, then the finalizer from the owner.
    async fn orphan(&self, owner: &Subject<'_>, traces: &OwnershipData) -> Result<(), WorkError> {
        let uid = Uid::of(&traces.uid);
        loop {
            let removed = self.remove_references(uid, &traces.uid).await?;
            self.wait_until_indexed().await?;
            // INVARIANT (no missed dependents): the index now contains dependents that were created
            // meanwhile.
            if removed == 0 && self.index.lock().dependents(uid, None).next().is_none() {
                return self.remove_finalizer(owner, ORPHAN).await;
            }
        }
    }

    /// Removes the references to an owner from all known dependents. Returns their number.
    async fn remove_references(&self, owner: Uid, uid: &str) -> Result<usize, WorkError> {
        let mut after = None;
        let mut count = 0;
        loop {
            let part: Vec<Arc<str>> = {
                let index = self.index.lock();
                index
                    .dependents(owner, after.as_ref())
                    .take(INDEX_BATCH)
                    .map(|(key, _)| Arc::clone(key))
                    .collect()
            };
            let Some(last) = part.last() else { return Ok(count) };
            after = Some(Arc::clone(last));
            count += part.len();
            let forget = |key: Arc<str>| async move { self.remove_reference(&key, uid).await };
            stream::iter(part).map(Ok).try_for_each_concurrent(DEPENDENT_CONCURRENCY, forget).await?;
        }
    }

    async fn remove_reference(&self, key: &str, uid: &str) -> Result<(), WorkError> {
        let other = |reference: Map<String, Value>| {
            (reference.get("uid").and_then(Value::as_str) != Some(uid)).then_some(reference)
        };
        loop {
            let Some(dependent) = self.subject(key).await? else { return Ok(()) };
            match self.change_references(&dependent, other).await {
                Err(WorkError::Conflict) => {}
                done => return done.map(drop),
            }
        }
    }

    /// Removes the finalizer of an owner if no dependent blocks its deletion.
    async fn release(&self, owner: &Subject<'_>, traces: &OwnershipData) -> Result<(), WorkError> {
        let uid = Uid::of(&traces.uid);
        let blocked = || {
            let index = self.index.lock();
            let mut dependents = index.dependents(uid, None);
            dependents.any(|(key, blocks)| {
                blocks && may_own(self.server_state(), owner.item.key(), key) && !index.is_cycle(uid, key)
            })
        };
        if blocked() {
            return Ok(());
        }
        self.wait_until_indexed().await?;
        if blocked() {
            return Ok(());
        }
        self.remove_finalizer(owner, FOREGROUND).await
    }

    async fn remove_finalizer(&self, owner: &Subject<'_>, finalizer: &str) -> Result<(), WorkError> {
        let object = tree(owner)?;
        let rest: Vec<Value> = object.finalizers().filter(|f| *f != finalizer).map(Value::from).collect();
        let rest = if rest.is_empty() { Value::Null } else { Value::Array(rest) };
        self.patch_metadata(owner, &object, "finalizers", rest).await
    }
}
