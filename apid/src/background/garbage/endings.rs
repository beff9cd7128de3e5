//! Removal of an owner's finalizer after its dependents are orphaned or deleted.

use std::sync::Arc;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use kinds::metadata::{FOREGROUND, ORPHAN};
use serde_json::{Map, Value};

use super::examine::tree;
use super::owners::may_own;
use super::traces::{Ending, Traces, Uid};
use super::{AT_A_TIME, Collector, Failed, PART, Subject};
use crate::verbs::deletion::options::Propagation;

impl Collector {
    /// Processes the object at a key, whose deletion may wait for dependents.
    pub(super) async fn end(&self, key: &str) -> Result<(), Failed> {
        loop {
            let Some(subject) = self.subject(key).await? else { return Ok(()) };
            let Some(traces) = Traces::of(subject.item.value()) else { return Ok(()) };
            let done = match traces.ending {
                Some(Ending::Orphaning) => self.orphan(&subject, &traces).await,
                Some(Ending::Waiting) => self.release(&subject, &traces).await,
                Some(Ending::Plain | Ending::Over) | None => Ok(()),
            };
            match done {
                Err(Failed::Moved) => {}
                other => return other,
            }
        }
    }

    /// Completes a deletion that stopped between marking the object and removing it.
    pub(super) async fn finish(&self, key: &str) -> Result<(), Failed> {
        let Some(subject) = self.subject(key).await? else { return Ok(()) };
        match Traces::of(subject.item.value()) {
            Some(Traces { uid, ending: Some(Ending::Over), .. }) => {
                match self.delete(&subject, &uid, Propagation::Background).await {
                    // The deletion is in progress.
                    Err(Failed::Moved) => Ok(()),
                    other => other,
                }
            }
            _ => Ok(()),
        }
    }

    /// Removes the owner references from the dependents, then the finalizer from the owner.
    async fn orphan(&self, owner: &Subject<'_>, traces: &Traces) -> Result<(), Failed> {
        let uid = Uid::of(&traces.uid);
        loop {
            let forgotten = self.forget(uid, &traces.uid).await?;
            self.reach().await?;
            // INVARIANT (no missed dependents): the index now contains dependents that were created
            // meanwhile.
            if forgotten == 0 && self.index.lock().dependents(uid, None).next().is_none() {
                return self.remove_finalizer(owner, ORPHAN).await;
            }
        }
    }

    /// Removes the references to an owner from all known dependents. Returns their number.
    async fn forget(&self, owner: Uid, uid: &str) -> Result<usize, Failed> {
        let mut after = None;
        let mut count = 0;
        loop {
            let part: Vec<Arc<str>> = {
                let index = self.index.lock();
                index.dependents(owner, after.as_ref()).take(PART).map(|(key, _)| Arc::clone(key)).collect()
            };
            let Some(last) = part.last() else { return Ok(count) };
            after = Some(Arc::clone(last));
            count += part.len();
            let forget = |key: Arc<str>| async move { self.forget_in(&key, uid).await };
            stream::iter(part).map(Ok).try_for_each_concurrent(AT_A_TIME, forget).await?;
        }
    }

    async fn forget_in(&self, key: &str, uid: &str) -> Result<(), Failed> {
        let other = |reference: Map<String, Value>| {
            (reference.get("uid").and_then(Value::as_str) != Some(uid)).then_some(reference)
        };
        loop {
            let Some(dependent) = self.subject(key).await? else { return Ok(()) };
            match self.change_references(&dependent, other).await {
                Err(Failed::Moved) => {}
                done => return done.map(drop),
            }
        }
    }

    /// Removes the finalizer of an owner if no dependent blocks its deletion.
    async fn release(&self, owner: &Subject<'_>, traces: &Traces) -> Result<(), Failed> {
        let uid = Uid::of(&traces.uid);
        let blocked = || {
            let index = self.index.lock();
            let mut dependents = index.dependents(uid, None);
            dependents.any(|(key, blocks)| {
                blocks && may_own(self.plane(), owner.item.key(), key) && !index.is_circle(uid, key)
            })
        };
        if blocked() {
            return Ok(());
        }
        self.reach().await?;
        if blocked() {
            return Ok(());
        }
        self.remove_finalizer(owner, FOREGROUND).await
    }

    async fn remove_finalizer(&self, owner: &Subject<'_>, finalizer: &str) -> Result<(), Failed> {
        let object = tree(owner)?;
        let rest: Vec<Value> = object.finalizers().filter(|f| *f != finalizer).map(Value::from).collect();
        let rest = if rest.is_empty() { Value::Null } else { Value::Array(rest) };
        self.patch_metadata(owner, &object, "finalizers", rest).await
    }
}
