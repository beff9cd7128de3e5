//! The subresource `scale`: reads and writes the replicas of an object through a Scale.
//!
//! # Contract
//!
//! The functions have the contract of the ordinary verbs, for the Scale that [`kinds::scale`] builds. A write
//! is an update of the object under the subresource `scale`, inside the loop of [`super::modify`]. The
//! resourceVersion and uid in the body are preconditions on the object.

use apimachinery::object::Object;
use apimachinery::status::Status;
use apply::managers::ManagedFields;
use kinds::{Kind, scale};

use super::audited_object;
use super::create::resolve_namespace;
use super::decode::decode;
use super::options::WriteOptions;
use super::ownership::ProposedObject;
use super::patch::Patch;
use super::update::uid_conflict;
use super::{Call, Payload, ResponseObject, WriteResult};

/// Returns the Scale of an object in a response.
///
/// # Errors
///
/// 500: the stored bytes cannot be decoded, or the object has no replicas field.
pub(super) fn to_scale(call: &Call<'_>, response_object: &ResponseObject) -> Result<ResponseObject, Status> {
    let object = response_object.object()?;
    let kind = &call.collection.kind;
    scale::check(kind, &object).map_err(Status::internal)?;
    Ok(ResponseObject::from_tree(scale::of(kind, &object)))
}

/// Returns the Scale of an object. The path of the replicas is the same in all versions of a built-in kind.
pub(super) fn scale_of(call: &Call<'_>, object: &Object) -> Object {
    scale::of(&call.collection.kind, object)
}

/// Sets the replicas of an object.
///
/// # Errors
///
/// 400 for a malformed body, 422 for invalid replicas, else those of an update.
pub(super) async fn update(
    call: &Call<'_>,
    body: &Kind,
    payload: Payload<'_>,
    options: &WriteOptions,
) -> Result<WriteResult, Status> {
    let version = body.version();
    let (mut scale, warnings) = decode(body, version, payload, options.field_validation, call.api_state)?;
    call.recorder.set_reference(&scale);
    audited_object::record(call.recorder, body, body, &scale, &call.context());
    resolve_namespace(call, &mut scale)?;
    call.check_name(&scale)?;
    write(call, body, options, |_| Ok((scale.clone(), warnings.clone(), None))).await
}

/// Sets the replicas of an object by a patch of its Scale.
///
/// # Errors
///
/// 422 when the patch cannot be applied or the replicas are invalid, else those of an update.
pub(super) async fn patch(
    call: &Call<'_>,
    body: &Kind,
    patch: &Patch,
    options: &WriteOptions,
) -> Result<WriteResult, Status> {
    let propose = |old: &Object| {
        let current = || Ok(scale_of(call, old));
        let (mut new, warnings) = patch.change(call, body, &current, options.field_validation)?;
        resolve_namespace(call, &mut new)?;
        call.check_name(&new)?;
        Ok((new, warnings, None))
    };
    write(call, body, options, propose).await
}

/// Sets the replicas from the Scale that `propose` returns for the current object.
///
/// `propose` also returns warnings and, for an apply, the managed fields of the object.
pub(super) async fn write(
    call: &Call<'_>,
    body: &Kind,
    options: &WriteOptions,
    propose: impl Fn(&Object) -> Result<(Object, Vec<String>, Option<ManagedFields>), Status>,
) -> Result<WriteResult, Status> {
    let propose_object = |old: &Object| {
        let (scale, warnings, owners) = propose(old)?;
        let errors = scale::validate(&call.collection.kind, &scale, &call.api_state.names);
        if !errors.is_empty() {
            return Err(Status::invalid(&body.group_kind, call.name, &errors));
        }
        if !matches!(scale.uid(), "") && scale.uid() != old.uid() {
            return Err(uid_conflict(call, scale.uid(), old.uid()));
        }
        let mut new = old.clone();
        scale::apply(&call.collection.kind, &mut new, &scale);
        // Without a resourceVersion in the Scale, `new` keeps that of `old`.
        if !scale.resource_version().is_empty() {
            new.set_meta("resourceVersion", scale.resource_version());
        }
        let has_managed_fields = owners.is_some();
        if let Some(owners) = owners {
            owners.write(&mut new);
        }
        Ok(ProposedObject { object: new, warnings, has_managed_fields })
    };
    let not_found = || Status::not_found(&call.collection.kind.internal().group_resource, call.name);
    let written = call.modify(options, propose_object).await?.ok_or_else(not_found)?;
    Ok(WriteResult { object: to_scale(call, &written.object)?, ..written })
}
