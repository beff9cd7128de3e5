//! The compare-and-swap loop of update and patch.

use admission::{Attributes, Operation};
use apimachinery::codec::json;
use apimachinery::field::{FieldError, FieldPath, quote};
use apimachinery::gvk::GroupKind;
use apimachinery::object::Object;
use apimachinery::status::{Reason, Status};
use apply::managers;
use storage::{Error, Op, Revision, Row};

use super::deletion::is_deletion_complete;
use super::options::WriteOptions;
use super::ownership::{Ownership, ProposedObject};
use super::response_object::read_row;
use super::{Call, ResponseObject, WriteResult};

/// The object at the beginning of an iteration: in the served version, and as stored.
struct CurrentObject {
    object: Object,
    stored: bytes::Bytes,
    revision: Revision,
}

impl CurrentObject {
    async fn new(row: &Row, call: &Call<'_>) -> Result<Self, Status> {
        if let Some(status) = call.untransformable_update(&row.value) {
            return Err(status);
        }
        let collection = call.collection;
        let mut object = read_row(row, collection.kind.internal())?;
        match &collection.converter {
            Some(converter) => object = converter.read(object).await?,
            None => collection.kind.internal().refresh(&mut object),
        }
        Ok(CurrentObject { object, stored: row.value.clone(), revision: row.revision })
    }
}

/// Returns the revision that the client sent as resourceVersion; None for an unconditional write.
///
/// # Errors
///
/// 500 without a reason for a malformed version, as in kube-apiserver.
fn sent_revision(object: &Object) -> Result<Option<Revision>, Status> {
    let version = object.resource_version();
    if version.is_empty() {
        return Ok(None);
    }
    match version.parse::<u64>() {
        Ok(0) => Ok(None),
        Ok(revision) => Ok(Some(Revision(revision))),
        Err(error) => {
            let reason = match error.kind() {
                std::num::IntErrorKind::PosOverflow => "value out of range",
                _ => "invalid syntax",
            };
            let text = format!("strconv.ParseUint: parsing {}: {reason}", quote(version));
            Err(Status::failure(Reason::Unknown, text))
        }
    }
}

impl Call<'_> {
    /// Replaces the object by the result of `propose` for the current object.
    ///
    /// Returns None if the object does not exist.
    ///
    /// The result of `propose` carries the resourceVersion from the client. A version other than the current
    /// version is a conflict. Without a version, or with `0`, the write is unconditional: it is repeated with
    /// the new state after each concurrent write.
    ///
    /// # Errors
    ///
    /// Those of `propose`; 403 from admission, 409 for a stale version, 422 for an invalid result.
    pub(super) async fn modify(
        &self,
        options: &WriteOptions,
        propose: impl Fn(&Object) -> Result<ProposedObject, Status>,
    ) -> Result<Option<WriteResult>, Status> {
        let resource = self.collection.kind.internal();
        let ctx = self.context();
        let key = self.key();
        let build_options = || options.to_value("UpdateOptions", &self.api_state.names);
        let attributes = self.admission(Operation::Update, options.dry_run, &build_options);
        let done = |object| Ok(Some(WriteResult { created: false, object }));
        let Some(item) = self.stored_item().await? else { return Ok(None) };
        let mut current = CurrentObject::new(item.row(), self).await?;
        let mut lost_claims = 0;
        loop {
            let old = &current.object;
            let attributes = Attributes { old: Some(old), ..attributes };
            let ProposedObject { object: mut new, warnings, has_managed_fields } = propose(old)?;
            self.recorder.warn_all(warnings);
            match sent_revision(&new)? {
                None if !resource.rules.unconditional_update => return Err(self.version_required()),
                Some(revision) if revision != current.revision => {
                    return Err(Status::stale_version(&self.collection.kind.group_resource, self.name));
                }
                None | Some(_) => {}
            }
            new.set_meta("resourceVersion", old.resource_version());
            if resource.is_custom() {
                // `1.0` in place of `1` is no change.
                new.0.values_mut().for_each(json::normalize_numbers);
            }
            resource.default(&mut new, &ctx);
            if !has_managed_fields {
                Ownership::for_call(self, options).record_changes(Some(old), &mut new).await?;
            }
            // As in kube-apiserver, mutating admission sees the object of the request, and its changes count for
            // the generation.
            self.api_state.admission.mutate(&attributes, Some(&mut new)).await?;
            resource.prepare_update(&mut new, old, &ctx);
            self.check_escalation(&new, Some(old)).await?;
            resource.canonicalize(&mut new, &ctx);
            let mut reservation = self.allocate(&mut new, Some(old), options.dry_run)?;
            let errors = self.collection.kind.validate_update(&new, old, &ctx);
            let declarative = &self.api_state.declarative_validation;
            let mut errors = declarative.decide(&self.collection.kind, &new, &ctx, errors);
            let tolerated = errors.take_tolerated();
            if !errors.is_empty() {
                return Err(Status::invalid(&resource.group_kind, self.name, &errors));
            }
            self.check_parameter_access(&new, Some(old)).await?;
            self.recorder.warn_all(tolerated);
            self.recorder.warn_all(resource.warnings(&new, Some(old), &ctx));
            self.api_state.admission.validate(&attributes, Some(&new)).await?;
            managers::keep_times(old, &mut new);

            // A dry run returns a `selfLink` from the client, as in kube-apiserver; apid never stores it.
            if !options.dry_run {
                new.remove_meta("selfLink");
            }
            let is_removed = is_deletion_complete(&new, resource);
            if options.dry_run {
                return done(self.uncommitted(new).await?);
            }
            let encoded = self.encode(&new).await?;
            // INVARIANT (no-op writes).
            if encoded == current.stored && !is_removed && !self.is_stale(&key).await? {
                return done(ResponseObject::from_tree(current.object));
            }
            if !self.claim(reservation.as_mut(), lost_claims).await? {
                lost_claims += 1;
                let row = self.store()?.get(&key, None).await.map_err(|error| self.failure(error))?;
                let Some(row) = row else { return Ok(None) };
                current = CurrentObject::new(&row, self).await?;
                continue;
            }
            self.record_addresses(reservation.as_ref()).await?;
            let op =
                if is_removed { Op::Delete(current.revision) } else { Op::Update(encoded, current.revision) };
            match self.commit(&key, op, &mut reservation, Vec::new()).await {
                Ok(committed) => {
                    let object = if is_removed {
                        new.set_meta("resourceVersion", committed.revision.to_string());
                        ResponseObject::from_tree(new)
                    } else {
                        ResponseObject::for_commit(self.collection, &key, new, committed.revision).await
                    };
                    return done(object);
                }
                // A resourceVersion from the client fails in the next iteration; an unconditional write is
                // retried on the new state.
                Err(Error::Conflict(row)) => current = CurrentObject::new(&row, self).await?,
                Err(Error::NotFound(_)) => return Ok(None),
                Err(error) => return Err(self.failure(error)),
            }
        }
    }

    /// Whether an unchanged write encrypts the stored object anew, as in kube-apiserver.
    async fn is_stale(&self, key: &str) -> Result<bool, Status> {
        self.store()?.is_stale(key).await.map_err(|error| self.failure(error))
    }

    /// 422 for kinds that do not allow unconditional updates. The Status names the resource in place of the
    /// kind, as in kube-apiserver.
    fn version_required(&self) -> Status {
        let resource = &self.collection.kind.group_resource;
        let group_kind = GroupKind { group: resource.group.clone(), kind: resource.resource.clone() };
        let path = FieldPath::new("metadata").child("resourceVersion");
        let error = FieldError::invalid(&path, 0, "must be specified for an update");
        Status::invalid(&group_kind, self.name, &[error])
    }
}
