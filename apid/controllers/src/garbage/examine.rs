//! Examination of a dependent: looks up its owners.
//!
//! If an owner exists, the dependent stays and loses its references to owners that are gone or wait for their
//! dependents. Otherwise the dependent is deleted.

use std::time::Duration;

use aggregation::RemoteKind;
use apimachinery::object::Object;
use apimachinery::status::Status;
use kinds::metadata::{FOREGROUND, ORPHAN};
use serde_json::{Map, Value, json};

use super::owners::{exists_in_other_namespace, fetch_owner_state, look_up_owner, remote_kind};
use super::ownership_data::{Owner, OwnerState, OwnershipData, Uid};
use super::remote_owners::RemoteOwner;
use super::{Collector, Subject, WorkError, repeat_conflicts};
use crate::runner::Requeue;
use verbs::deletion::options::{DeleteOptions, Preconditions, Propagation};

/// The owners of an object by state: existing, waiting for their dependents, gone.
#[derive(Default)]
struct Owners<'a> {
    existing: Vec<&'a Owner>,
    waiting: Vec<&'a Owner>,
    gone: Vec<&'a Owner>,
    /// Whether another server stores one of the owners.
    has_remote: bool,
}

/// Interval at which the owners of an object are examined again while one of them is at another server.
const REMOTE_OWNER_INTERVAL: Duration = Duration::from_secs(30);

impl Collector {
    /// Examines the owners of the object at a key, and again after each conflict with another write.
    ///
    /// An object without owners stays. An object with an owner at another server is examined again later, because the
    /// deletion of that owner causes no notification.
    pub(super) async fn examine(&self, key: &str) -> Result<Requeue, WorkError> {
        repeat_conflicts(|| self.examine_once(key)).await
    }

    async fn examine_once(&self, key: &str) -> Result<Requeue, WorkError> {
        let Some(subject) = self.subject(key).await? else { return Ok(Requeue::No) };
        let Some(ownership) = OwnershipData::parse(subject.item.value()) else { return Ok(Requeue::No) };
        if ownership.deletion_state.is_some() || ownership.owners.is_empty() {
            return Ok(Requeue::No);
        }
        let Some(owners) = self.look_up_owners(&subject, &ownership).await? else { return Ok(Requeue::No) };
        let next = if owners.has_remote { Requeue::After(REMOTE_OWNER_INTERVAL) } else { Requeue::No };
        if !owners.existing.is_empty() {
            let ended_uids: Vec<_> = owners.gone.iter().chain(&owners.waiting).map(|o| &o.uid).collect();
            if ended_uids.is_empty() {
                return Ok(next);
            }
            let is_kept = |reference: &Map<String, Value>| {
                let uid = reference.get("uid").and_then(Value::as_str).unwrap_or("");
                !ended_uids.iter().any(|ended| *ended == uid)
            };
            let change = |reference| is_kept(&reference).then_some(reference);
            return self.change_references(&subject, change).await.map(|_| next);
        }
        if !owners.waiting.is_empty() && self.has_dependents(&ownership.uid) {
            if self.is_in_cycle(&ownership.uid) && self.unblock(&subject).await? {
                // The owner references have changed: `examine` starts again with the changed object.
                return Err(WorkError::Conflict);
            }
            return self.delete(&subject, &ownership.uid, Propagation::Foreground).await.map(|()| next);
        }
        let propagation = propagation_of(&decode_object(&subject)?);
        self.delete(&subject, &ownership.uid, propagation).await.map(|()| Requeue::No)
    }

    /// Clears `blockOwnerDeletion` in all owner references of an object, to break a cycle of owners that
    /// block each other.
    ///
    /// Returns whether the object changed.
    async fn unblock(&self, subject: &Subject<'_>) -> Result<bool, WorkError> {
        let clear_blocking = |mut reference: Map<String, Value>| {
            if reference.contains_key("blockOwnerDeletion") {
                reference.insert("blockOwnerDeletion".to_owned(), json!(false));
            }
            Some(reference)
        };
        self.change_references(subject, clear_blocking).await
    }

    /// Looks up the owners of an object. Returns None if the object is cluster-scoped and an owner is
    /// namespaced, because such an owner cannot be resolved.
    async fn look_up_owners<'t>(
        &self,
        subject: &Subject<'_>,
        ownership: &'t OwnershipData,
    ) -> Result<Option<Owners<'t>>, WorkError> {
        let mut owners = Owners::default();
        let mut is_pending = false;
        for owner in &ownership.owners {
            let state = match remote_kind(self.actor.aggregation(), owner) {
                None => look_up_owner(self.api_state(), owner, subject.namespace).await?,
                Some(kind) => {
                    owners.has_remote = true;
                    let Some(state) = self.find_remote_owner(kind, owner, subject.namespace)? else {
                        // The loop continues, so that the requests for the other owners start now.
                        is_pending = true;
                        continue;
                    };
                    state
                }
            };
            match state {
                OwnerState::Exists => owners.existing.push(owner),
                OwnerState::Waiting => owners.waiting.push(owner),
                OwnerState::Gone => owners.gone.push(owner),
                OwnerState::InvalidScope => {
                    self.report(subject, ownership, owner).await;
                    return Ok(None);
                }
                OwnerState::NotServed => return Err(WorkError::NotServed),
            }
        }
        if is_pending {
            return Err(WorkError::Pending);
        }
        for owner in &owners.gone {
            let is_gone = self.index.lock().is_gone(Uid::from_text(&owner.uid));
            if !is_gone && exists_in_other_namespace(self.api_state(), owner).await? {
                self.report(subject, ownership, owner).await;
            }
        }
        Ok(Some(owners))
    }

    /// Returns the cached state of an owner at another server. Returns None while a request to that server is pending.
    ///
    /// # Errors
    ///
    /// The request failed, or the server has no such kind now. The work is retried, because a later start or change of
    /// the server causes no notification.
    fn find_remote_owner(
        &self,
        kind: RemoteKind,
        owner: &Owner,
        namespace: &str,
    ) -> Result<Option<OwnerState>, WorkError> {
        let api = &owner.api_version;
        let resource = match kind {
            RemoteKind::Known(resource) => resource,
            RemoteKind::Absent => {
                return Err(WorkError::Failed(format!("{api} has no kind {}", owner.kind)));
            }
            RemoteKind::Unknown => {
                return Err(WorkError::Failed(format!("the server of {api} is not available")));
            }
        };
        if resource.is_namespaced && namespace.is_empty() {
            return Ok(Some(OwnerState::InvalidScope));
        }
        let namespace = if resource.is_namespaced { namespace } else { "" };
        let remote = RemoteOwner {
            resource: resource.name.clone(),
            namespace: namespace.to_owned(),
            name: owner.name.clone(),
            uid: owner.uid.clone(),
        };
        let request = || {
            let (remote, user) = (remote.clone(), self.actor.user().clone());
            async move { fetch_owner_state(&resource, &user, &remote).await.map_err(|status| status.message) }
        };
        // A conflict at another server is a failure, because `examine` repeats only conflicts of its own writes.
        self.remote_owners.find(api, &remote, request).transpose().map_err(WorkError::Failed)
    }

    fn has_dependents(&self, uid: &str) -> bool {
        self.index.lock().dependents(Uid::from_text(uid), None).next().is_some()
    }

    /// Whether a dependent of the object waits for its own dependents, which may include this object.
    fn is_in_cycle(&self, uid: &str) -> bool {
        let index = self.index.lock();
        index.dependents(Uid::from_text(uid), None).any(|(key, _)| index.is_waiting_at_key(key))
    }

    /// Applies `change` to each owner reference of an object; a result None removes the reference. Returns
    /// whether a reference changed. The write fails with `Conflict` if the object has changed since it was
    /// read.
    pub(super) async fn change_references(
        &self,
        subject: &Subject<'_>,
        change: impl Fn(Map<String, Value>) -> Option<Map<String, Value>>,
    ) -> Result<bool, WorkError> {
        let object = decode_object(subject)?;
        let old_references =
            object.meta().and_then(|meta| meta.get("ownerReferences")).and_then(Value::as_array);
        let old_references = old_references.cloned().unwrap_or_default();
        let new_references: Vec<Value> = old_references
            .iter()
            .filter_map(|reference| change(reference.as_object()?.clone()).map(Value::Object))
            .collect();
        if new_references == old_references {
            return Ok(false);
        }
        let references = if new_references.is_empty() { Value::Null } else { Value::Array(new_references) };
        self.patch_metadata(subject, &object, "ownerReferences", references).await.map(|()| true)
    }

    /// Replaces a field of the metadata if the object still has the revision that was read.
    ///
    /// A 404 for the object counts as success. A 404 for its namespace does not, because the object stays
    /// until the namespace controller deletes the object.
    pub(super) async fn patch_metadata(
        &self,
        subject: &Subject<'_>,
        object: &Object,
        field: &str,
        value: Value,
    ) -> Result<(), WorkError> {
        let patch = json!({"metadata": {
            "uid": object.uid(),
            "resourceVersion": subject.item.revision().to_string(),
            field: value,
        }});
        let resource = &subject.target().collection.kind.internal().group_resource.resource;
        let is_gone = |status: &Status| {
            status.code == 404 && status.details.as_ref().is_some_and(|details| details.kind == *resource)
        };
        match self.actor.merge(subject.target(), patch.to_string().as_bytes()).await {
            Err(status) if is_gone(&status) => Ok(()),
            other => Ok(other.map(drop)?),
        }
    }

    /// Deletes an object if it still has the revision that was read before the lookup of its owners.
    ///
    /// This condition ensures INVARIANT (no living owner). A 404 counts as success.
    pub(super) async fn delete(
        &self,
        subject: &Subject<'_>,
        uid: &str,
        propagation: Propagation,
    ) -> Result<(), WorkError> {
        let options = DeleteOptions {
            propagation: Some(propagation),
            preconditions: Preconditions {
                uid: Some(uid.to_owned()),
                resource_version: Some(subject.item.revision().to_string()),
            },
            ..DeleteOptions::default()
        };
        match self.actor.delete(subject.target(), &options).await {
            Err(status) if status.code == 404 => Ok(()),
            other => Ok(other.map(drop)?),
        }
    }
}

/// Decodes the object of a unit of work.
pub(super) fn decode_object(subject: &Subject<'_>) -> Result<Object, WorkError> {
    kinds::entry::decode(subject.item.value(), subject.item.revision())
        .map_err(|error| WorkError::Failed(error.to_string()))
}

/// Returns the propagation policy for the dependents of an object, as its finalizers request it.
fn propagation_of(object: &Object) -> Propagation {
    let has_finalizer = |finalizer: &str| object.finalizers().any(|f| f == finalizer);
    match () {
        () if has_finalizer(ORPHAN) => Propagation::Orphan,
        () if has_finalizer(FOREGROUND) => Propagation::Foreground,
        () => Propagation::Background,
    }
}
