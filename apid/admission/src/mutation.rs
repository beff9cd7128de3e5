//! The object of a write as mutating webhooks and policies see it, and their changes of the object.
//!
//! # Contract
//!
//! [`visible_object`] converts an object and hides the fields that the server sets after the mutating phase.
//! [`to_stored`] converts a changed object back to the stored form, with the hidden fields.

use std::borrow::Cow;

use apimachinery::codec::{Budget, DecodeError, Limits};
use apimachinery::names::Names;
use apimachinery::object::{Object, Value};
use apimachinery::status::Status;
use apply::json_patch;
use apply::managers::ManagedFields;

use crate::representation::{Representation, RestoredObject};
use crate::{Attributes, Operation};

/// Metadata that the server sets at a creation.
const GENERATED_FIELDS: [&str; 3] = ["uid", "generation", "creationTimestamp"];

/// Start of the warning about a webhook or policy that made `managedFields` invalid; the defect follows.
const INVALID_MANAGED_FIELDS: &str = ".metadata.managedFields was in an invalid state after admission; this could be \
    caused by an outdated mutating admission controller; please fix your requests";

/// The reason why a JSON patch has no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PatchError {
    #[error(transparent)]
    Patch(#[from] json_patch::Error),
    #[error("the result is not an object")]
    NotAnObject,
}

/// The object of a write in a matched version, without generated fields.
///
/// # Errors
///
/// 500: the version cannot represent the object.
pub(crate) fn visible_object<'o>(
    object: Cow<'o, Object>,
    representation: &Representation<'_>,
    attributes: &Attributes<'_>,
) -> Result<Cow<'o, Object>, Status> {
    let mut object = representation.convert(object)?;
    if attributes.subresource.is_empty() {
        hide_generated_fields(&mut object, attributes);
    }
    Ok(object)
}

/// The object name that webhooks and policies see during the mutating phase: `""` for a generated name.
pub(crate) fn visible_name<'a>(attributes: &Attributes<'a>) -> &'a str {
    if attributes.has_generated_name { "" } else { attributes.request_name() }
}

/// Converts a changed object to the stored form, with the hidden fields of `before`, the object before the
/// change.
///
/// # Errors
///
/// 500: the changed object does not conform to its schema, or has another kind. 413: the change makes the object exceed
/// the decode limits.
pub(crate) fn to_stored(
    changed: Object,
    before: &Object,
    representation: &Representation<'_>,
    attributes: &Attributes<'_>,
) -> Result<RestoredObject, Status> {
    let limits = attributes.environment.limits;
    check_budget(&changed, before, limits)?;
    let mut restored = representation.restore(changed, before, attributes.subresource)?;
    let changed = &mut restored.object;
    check_budget(changed, before, limits)?;
    if attributes.subresource.is_empty() {
        let hidden: &[&str] = match attributes.operation {
            Operation::Create => &GENERATED_FIELDS,
            _ => &["generation"],
        };
        for field in hidden {
            restore_meta(changed, field, before);
        }
        if changed.name().is_empty() {
            changed.set_meta("name", before.name());
        }
    }
    if let Err(defect) = ManagedFields::check(changed.at(&["metadata", "managedFields"])) {
        attributes.recorder.warn(format!("{INVALID_MANAGED_FIELDS}: {defect}"));
        restore_meta(changed, "managedFields", before);
    }
    Ok(restored)
}

/// Charges a changed object to the decode budget, so that webhooks and policies cannot expand a small body.
///
/// # Errors
///
/// 413: the object exceeds the limits, and `before` is smaller.
fn check_budget(changed: &Object, before: &Object, limits: Limits) -> Result<(), Status> {
    let Err(error) = limits.check_map(&changed.0) else { return Ok(()) };
    let cost = |object: &Object| {
        let mut budget = Budget::new(Limits::NONE);
        let charged = object.0.values().try_for_each(|value| budget.charge_tree(value));
        charged.map(|()| budget.spent()).unwrap_or_default()
    };
    let (new, old) = (cost(changed), cost(before));
    if new.elements <= old.elements && new.tree_bytes <= old.tree_bytes {
        return Ok(());
    }
    let flag = match error {
        DecodeError::TooManyElements(_) => "--max-request-elements",
        _ => "--max-request-tree-bytes",
    };
    let text =
        format!("Request entity too large: after a change by admission {error} (the limit is set by {flag})");
    Err(Status::too_large(text))
}

/// Sets a metadata field to its value in another object, or removes it if the other object lacks it.
fn restore_meta(object: &mut Object, field: &str, source: &Object) {
    match source.at(&["metadata", field]) {
        Some(value) => object.set_meta(field, value.clone()),
        None => drop(object.remove_meta(field)),
    }
}

/// Applies a JSON patch to an object, by the rules of the preset.
///
/// # Errors
///
/// See [`PatchError`].
pub(crate) fn apply_json_patch(
    operations: &[json_patch::Operation],
    object: Object,
    names: &Names,
    limits: Limits,
) -> Result<Object, PatchError> {
    let is_lenient = names.behaviour.replace_of_missing_key_succeeds;
    let changed = json_patch::apply(operations, object.into_value(), is_lenient, limits)?;
    Object::from_value(changed).map_err(|_| PatchError::NotAnObject)
}

/// Hides the fields that the server sets after the mutating phase: those of a creation, and the next
/// generation.
fn hide_generated_fields(object: &mut Cow<'_, Object>, attributes: &Attributes<'_>) {
    match (attributes.operation, attributes.old) {
        (Operation::Create, _) => {
            let object = object.to_mut();
            for field in GENERATED_FIELDS {
                object.remove_meta(field);
            }
            object.set_meta("creationTimestamp", Value::Null);
            if attributes.has_generated_name {
                object.remove_meta("name");
            }
        }
        (Operation::Update, Some(old)) => {
            let path = ["metadata", "generation"];
            if object.at(&path) != old.at(&path) {
                restore_meta(object.to_mut(), "generation", old);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn change_that_exceeds_the_decode_budget_returns_413() {
        let object = |items: usize| Object::from_value(json!({"items": vec![1; items]})).unwrap();
        let limits = Limits { elements: 10, ..Limits::BODY };
        let check = |before, after| check_budget(&object(after), &object(before), limits);
        assert_eq!(check(1, 8), Ok(()));
        assert_eq!(check(30, 20), Ok(()), "a change that shrinks a large object");
        let status = check(1, 20).unwrap_err();
        assert_eq!(status.code, 413);
        assert!(status.message.contains("after a change by admission"), "{}", status.message);
        assert!(status.message.contains("--max-request-elements"), "{}", status.message);
        let limits = Limits { tree_bytes: 2_000, ..Limits::BODY };
        let status = check_budget(&object(100), &object(1), limits).unwrap_err();
        assert!(status.message.contains("--max-request-tree-bytes"), "{}", status.message);
    }
}
