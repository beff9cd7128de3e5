//! Application of the result of a mutation to an object.
//!
//! # Contract
//!
//! An apply configuration is merged by the merge type of the kind, without a record of field ownership. It
//! must not contain atomic parts, whose merge would remove fields. A JSON patch is applied as a whole; a
//! failed `test` leaves the object unchanged.

use std::borrow::Cow;

use apimachinery::field::shorten;
use apimachinery::object::{Object, Value};
use apimachinery::status::Status;
use apply::json_patch;
use apply::typed::{TypingError, atomic_parts, check, merge};

use super::compiled::PatchType;
use crate::mutation::PatchError;
use crate::representation::Representation;
use crate::{Attributes, Environment, mutation};

/// The reason why a mutation fails.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum MutationError {
    /// An error of the policy, to which the failure policy applies.
    Policy(String),
    /// An error that ends the write regardless of the failure policy.
    Status(Status),
}

/// Applies a patch to an object of a write. Returns the changed object in the stored form; None if a test of
/// the patch fails.
///
/// `visible` is the object in the matched version, and `object` its stored form.
///
/// # Errors
///
/// See [`MutationError`].
pub(super) fn apply(
    patch_type: PatchType,
    patch: Value,
    visible: Cow<'_, Object>,
    object: &Object,
    representation: &Representation<'_>,
    attributes: &Attributes<'_>,
) -> Result<Option<Object>, MutationError> {
    let changed = match patch_type {
        PatchType::ApplyConfiguration => apply_configuration(patch, &visible, representation)?,
        PatchType::JsonPatch => match apply_json_patch(&patch, visible.into_owned(), attributes.environment)?
        {
            Some(changed) => changed,
            None => return Ok(None),
        },
    };
    let restored = mutation::to_stored(changed, object, representation, attributes);
    let restored = restored.map_err(|status| match patch_type {
        PatchType::ApplyConfiguration => MutationError::Policy(status.message),
        PatchType::JsonPatch => MutationError::Status(status),
    })?;
    if patch_type == PatchType::JsonPatch && !restored.unknown.is_empty() {
        let unknown: Vec<String> =
            restored.unknown.iter().map(|field| format!("unknown field {field:?}")).collect();
        let text = format!("strict decoding error: {}", unknown.join(", "));
        return Err(MutationError::Status(Status::internal(text)));
    }
    Ok(Some(restored.object))
}

/// Merges an apply configuration over an object.
fn apply_configuration(
    configuration: Value,
    object: &Object,
    representation: &Representation<'_>,
) -> Result<Object, MutationError> {
    let Some(ty) = representation.merge() else {
        let kind = representation.kind();
        let text = format!(
            "Resource kind {}/{}, Kind={} not found. There can be a delay between when CustomResourceDefinitions are \
             created and when they are available.",
            kind.group, kind.version, kind.kind
        );
        return Err(MutationError::Status(Status::unavailable(text, 1)));
    };
    let policy_error = |reason: String| MutationError::Policy(format!("error applying patch: {reason}"));
    let Ok(mut configuration) = Object::from_value(configuration) else {
        return Err(policy_error("the apply configuration is not an object".to_owned()));
    };
    configuration.set_type(object.api_version(), object.kind());
    let typing_error = |side: &str, errors: Vec<TypingError>| {
        policy_error(format!("failed to convert {side} object to typed object: {}", typing_text(&errors)))
    };
    check(&ty, &configuration.0).map_err(|errors| typing_error("patch", errors))?;
    let atomics = atomic_parts(&ty, &configuration.0);
    if !atomics.is_empty() {
        let parts = atomics.join(", ");
        return Err(policy_error(format!(
            "invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: {parts}"
        )));
    }
    check(&ty, &object.0).map_err(|errors| typing_error("original", errors))?;
    Ok(Object(merge(&ty, &object.0, &configuration.0)))
}

fn typing_text(errors: &[TypingError]) -> String {
    match errors {
        [only] => only.to_string(),
        several => {
            let lines: String = several.iter().map(|error| format!("\n  {error}")).collect();
            format!("errors:{lines}")
        }
    }
}

/// Applies a JSON patch to an object; None if a test of the patch fails.
fn apply_json_patch(
    patch: &Value,
    object: Object,
    environment: &Environment,
) -> Result<Option<Object>, MutationError> {
    let policy_error = |error: &dyn std::fmt::Display| {
        let text = patch.to_string();
        let shown = shorten(&text);
        MutationError::Policy(format!("JSON Patch: the patch {shown} does not apply to the object: {error}"))
    };
    let operations = json_patch::parse(patch.clone()).map_err(|error| policy_error(&error))?;
    match mutation::apply_json_patch(&operations, object, &environment.names, environment.limits) {
        Ok(changed) => Ok(Some(changed)),
        Err(PatchError::Patch(json_patch::Error::TestFailed)) => Ok(None),
        Err(error) => Err(policy_error(&error)),
    }
}
