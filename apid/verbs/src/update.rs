//! The update verb.

use apimachinery::field::shorten;
use apimachinery::object::Object;
use apimachinery::status::Status;

use super::create::{insert, resolve_namespace};
use super::options::WriteOptions;
use super::ownership::ProposedObject;
use super::{Call, Payload, WriteResult, scale};
use crate::VerbFuture;

/// Replaces the current object, or the part of it that belongs to a subresource.
///
/// For a few kinds, an update creates a missing object if the user may also create (requirements D-NAME-16,
/// A-AZD-2).
///
/// # Errors
///
/// 400 for a malformed body, 403, 404, 422 for an invalid object. 409 for a uid other than the current one, and
/// from the compare-and-swap loop (`modify.rs`) for another resourceVersion.
pub fn update<'a>(
    call: &'a Call<'a>,
    payload: Payload<'a>,
    options: &'a WriteOptions,
) -> VerbFuture<'a, WriteResult> {
    Box::pin(async move {
        if let Some(view) = call.virtual_kind() {
            return scale::update(call, view, payload, options).await;
        }
        let resource = call.collection.kind.internal();
        let (mut object, warnings) = call.decode(payload, options.field_validation)?;
        resolve_namespace(call, &mut object)?;
        call.check_name(&object)?;

        let proposed = || ProposedObject {
            object: object.clone(),
            warnings: warnings.clone(),
            has_managed_fields: false,
        };
        let propose = |old: &Object| match object.uid() {
            uid if uid.is_empty() || uid == old.uid() => Ok(proposed()),
            uid => Err(uid_conflict(call, uid, old.uid())),
        };
        // Retry once if another request creates the object between `modify`, which misses it, and `insert`.
        for _ in 0..2 {
            if let Some(written) = call.modify(options, &propose).await? {
                return Ok(written);
            }
            if !resource.rules.create_on_update || !call.subresource.is_empty() {
                break;
            }
            if !object.uid().is_empty() {
                return Err(uid_conflict(call, object.uid(), ""));
            }
            call.authorize_verb("create").await?;
            match insert(call, proposed(), options).await {
                Err(status) if status.reason == apimachinery::status::Reason::AlreadyExists => {}
                result => return result,
            }
        }
        Err(Status::not_found(&call.collection.kind.group_resource, call.name))
    })
}

/// 409 for a uid other than that of the object (requirement D-META-14).
pub(super) fn uid_conflict(call: &Call<'_>, expected: &str, found: &str) -> Status {
    failed_precondition(call, "UID", expected, found)
}

/// 409 for a write whose precondition on a field the object does not meet.
///
/// The message is that of a storage error of kube-apiserver.
pub(super) fn failed_precondition(call: &Call<'_>, field: &str, expected: &str, found: &str) -> Status {
    let resource = call.collection.kind.internal();
    let key = resource.reference_key(call.namespace, call.name);
    let expected = shorten(expected);
    let reason = format!(
        "StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: \
         {field} in precondition: {expected}, {field} in object meta: {found}"
    );
    Status::conflict(&call.collection.kind.group_resource, call.name, &reason)
}
