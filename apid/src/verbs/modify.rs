//! The compare-and-swap loop of update and patch: from the current object to a stored one.

use admission::Operation;
use apimachinery::field::{FieldError, FieldPath};
use apimachinery::gvk::GroupKind;
use apimachinery::object::Object;
use apimachinery::status::Status;
use apply::managers;
use storage::{Error, Op, Revision, Row};

use super::deletion::is_over;
use super::options::WriteOptions;
use super::ownership::{Ownership, Wanted};
use super::shown::read_row;
use super::{Call, Shown, Written};

/// What came of a modification.
pub(super) enum Modified {
    /// The object is stored, or was that way already.
    Done(Written),
    /// There is no such object.
    Missing,
}

/// An object on its way through the loop.
struct Current {
    object: Object,
    stored: bytes::Bytes,
    revision: Revision,
}

impl Current {
    fn new(row: &Row) -> Result<Self, Status> {
        Ok(Current { object: read_row(row)?, stored: row.value.clone(), revision: row.revision })
    }
}

impl Call<'_> {
    /// Replaces the object by what `wanted` makes of the current one. What `wanted` answers carries the version that the
    /// client saw: another one than the current is a conflict, none or `0` is whatever there is, tried until it fits.
    ///
    /// # Errors
    ///
    /// Those of `wanted`; 403 from admission, 409 for a stale version, 422 for what is wrong with the result.
    pub(super) async fn modify(
        &self,
        options: &WriteOptions,
        wanted: impl Fn(&Object) -> Result<Wanted, Status>,
    ) -> Result<Modified, Status> {
        let resource = &self.collection.resource;
        let strategy = resource.kind.strategy;
        let ctx = self.context();
        let key = self.key();
        let kind = if self.by.attributes().verb == "patch" { "PatchOptions" } else { "UpdateOptions" };
        let as_value = options.to_value(kind, &self.plane.names);
        let admission = self.admission(Operation::Update, options.dry_run, as_value);
        let Some(item) = self.item().await? else { return Ok(Modified::Missing) };
        let mut current = Current::new(item.row())?;
        loop {
            let old = &current.object;
            let Wanted { object: mut new, mut warnings, applied } = wanted(old)?;
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
                ownership.follow(Some(old), &mut new)?;
            }
            resource.prepare_update(&mut new, old, &ctx);
            admission.mutate(Some(&mut new), Some(old)).await?;
            self.check_escalation(&new, Some(old)).await?;
            resource.canonicalize(&mut new, &ctx);
            let errors = self.collection.served.validate_update(&new, old, &ctx);
            if !errors.is_empty() {
                return Err(Status::invalid(&resource.group_kind, self.name, &errors));
            }
            admission.validate(Some(&new), Some(old)).await?;
            managers::keep_times(old, &mut new);

            let removed = is_over(&new, strategy);
            let encoded = kinds::entry::encode(&new);
            // INVARIANT (no-op writes).
            let same = encoded == current.stored && !removed;
            if options.dry_run || same {
                warnings.extend(strategy.warnings(&new, Some(old), &ctx));
                return Ok(Modified::Done(Written { created: false, object: Shown::tree(new), warnings }));
            }
            let op =
                if removed { Op::Delete(current.revision) } else { Op::Update(encoded, current.revision) };
            match self.plane.store.commit(&key, op).await {
                Ok(committed) => {
                    warnings.extend(strategy.warnings(&new, Some(old), &ctx));
                    let object = if removed {
                        new.set_meta("resourceVersion", committed.revision.to_string());
                        Shown::tree(new)
                    } else {
                        Shown::committed(self.collection, &key, new, committed.revision).await
                    };
                    return Ok(Modified::Done(Written { created: false, object, warnings }));
                }
                // A version that the client gave fails on the next turn; everything else is tried on what is there now.
                Err(Error::Conflict(row)) => current = Current::new(&row)?,
                Err(Error::NotFound(_)) => return Ok(Modified::Missing),
                Err(error) => return Err(self.failure(error)),
            }
        }
    }

    /// 422 for kinds whose updates must say what they saw. The resource stands where the kind stands elsewhere, as the
    /// reference has it.
    fn version_required(&self) -> Status {
        let resource = &self.collection.resource.group_resource;
        let what = GroupKind { group: resource.group.clone(), kind: resource.resource.clone() };
        let path = FieldPath::new("metadata").child("resourceVersion");
        Status::invalid(&what, self.name, &[FieldError::invalid(&path, 0, "must be specified for an update")])
    }
}
