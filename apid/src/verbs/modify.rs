//! The compare-and-swap loop of update and patch.

use admission::Operation;
use apimachinery::field::{FieldError, FieldPath};
use apimachinery::gvk::GroupKind;
use apimachinery::object::Object;
use apimachinery::status::Status;
use apply::managers;
use kinds::Resource;
use storage::{Error, Op, Revision, Row};

use super::deletion::is_deletion_complete;
use super::options::WriteOptions;
use super::ownership::{Ownership, ProposedObject};
use super::response_object::read_row;
use super::{Call, ResponseObject, WriteResult};

/// The result of a modification.
pub(super) enum ModifyResult {
    /// The object is stored, or was unchanged.
    Done(WriteResult),
    /// The object does not exist.
    Missing,
}

/// The current stored object in an iteration of the loop.
struct Current {
    object: Object,
    stored: bytes::Bytes,
    revision: Revision,
}

impl Current {
    fn new(row: &Row, resource: &Resource) -> Result<Self, Status> {
        let mut object = read_row(row)?;
        resource.refresh(&mut object);
        Ok(Current { object, stored: row.value.clone(), revision: row.revision })
    }
}

impl Call<'_> {
    /// Replaces the object by the result of `wanted` for the current object.
    ///
    /// The result of `wanted` carries the resourceVersion from the client. A version other than the current
    /// one is a conflict. Without a version, or with `0`, the write is unconditional and is retried until it
    /// succeeds.
    ///
    /// # Errors
    ///
    /// Those of `wanted`; 403 from admission, 409 for a stale version, 422 for an invalid result.
    pub(super) async fn modify(
        &self,
        options: &WriteOptions,
        wanted: impl Fn(&Object) -> Result<ProposedObject, Status>,
    ) -> Result<ModifyResult, Status> {
        let resource = &self.collection.resource;
        let strategy = resource.kind.strategy();
        let ctx = self.context();
        let key = self.key();
        let kind = if self.by.attributes().verb == "patch" { "PatchOptions" } else { "UpdateOptions" };
        let options_value = options.to_value(kind, &self.server_state.names);
        let admission = self.admission(Operation::Update, options.dry_run, options_value);
        let Some(item) = self.item().await? else { return Ok(ModifyResult::Missing) };
        let mut current = Current::new(item.row(), resource)?;
        loop {
            let old = &current.object;
            let ProposedObject { object: mut new, mut warnings, applied } = wanted(old)?;
            let unconditional = matches!(new.resource_version(), "" | "0");
            if unconditional && !strategy.unconditional_update() {
                return Err(self.version_required());
            }
            if !unconditional && new.resource_version() != old.resource_version() {
                return Err(Status::stale(&resource.group_resource, self.name));
            }
            new.set_meta("resourceVersion", old.resource_version());
            resource.default(&mut new, &ctx);
            if !applied && let Some(ownership) = Ownership::of(self, options) {
                ownership.record_changes(Some(old), &mut new)?;
            }
            resource.prepare_update(&mut new, old, &ctx);
            admission.mutate(Some(&mut new), Some(old)).await?;
            self.check_escalation(&new, Some(old)).await?;
            resource.canonicalize(&mut new, &ctx);
            let reservation = self.allocate(&mut new, Some(old), options.dry_run)?;
            let errors = self.collection.served.validate_update(&new, old, &ctx);
            if !errors.is_empty() {
                return Err(Status::invalid(&resource.group_kind, self.name, &errors));
            }
            admission.validate(Some(&new), Some(old)).await?;
            managers::keep_times(old, &mut new);

            let removed = is_deletion_complete(&new, strategy);
            let encoded = kinds::entry::encode(&new);
            // INVARIANT (no-op writes).
            let same = encoded == current.stored && !removed;
            if options.dry_run || same {
                warnings.extend(strategy.warnings(&new, Some(old), &ctx));
                return Ok(ModifyResult::Done(WriteResult {
                    created: false,
                    object: ResponseObject::tree(new),
                    warnings,
                }));
            }
            let op =
                if removed { Op::Delete(current.revision) } else { Op::Update(encoded, current.revision) };
            match self.commit(&key, op, reservation).await {
                Ok(committed) => {
                    warnings.extend(strategy.warnings(&new, Some(old), &ctx));
                    let object = if removed {
                        new.set_meta("resourceVersion", committed.revision.to_string());
                        ResponseObject::tree(new)
                    } else {
                        ResponseObject::committed(self.collection, &key, new, committed.revision).await
                    };
                    return Ok(ModifyResult::Done(WriteResult { created: false, object, warnings }));
                }
                // A resourceVersion from the client fails in the next iteration; an unconditional write is
                // retried on the new state.
                Err(Error::Conflict(row)) => current = Current::new(&row, resource)?,
                Err(Error::NotFound(_)) => return Ok(ModifyResult::Missing),
                Err(error) => return Err(self.failure(error)),
            }
        }
    }

    /// 422 for kinds that do not allow unconditional updates. The Status names the resource in place of the
    /// kind, as in the reference.
    fn version_required(&self) -> Status {
        let resource = &self.collection.resource.group_resource;
        let what = GroupKind { group: resource.group.clone(), kind: resource.resource.clone() };
        let path = FieldPath::new("metadata").child("resourceVersion");
        Status::invalid(&what, self.name, &[FieldError::invalid(&path, 0, "must be specified for an update")])
    }
}
