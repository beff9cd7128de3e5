//! The object of a write as mutating webhooks and policies see it, and their changes of the object.
//!
//! # Contract
//!
//! [`visible`] converts an object and hides the fields that the server sets after the mutating phase. [`accept`]
//! converts a changed object back to the stored form, with the hidden fields.

use std::borrow::Cow;

use apimachinery::object::{Object, Value};
use apimachinery::status::Status;
use apply::managers::ManagedFields;

use crate::representation::{Representation, RestoredObject};
use crate::{Attributes, Environment, Operation};

/// Metadata that the server sets at a creation.
const GENERATED_FIELDS: [&str; 3] = ["uid", "generation", "creationTimestamp"];

/// Start of the warning after a webhook or policy made `managedFields` invalid; the defect follows.
const INVALID_MANAGED_FIELDS: &str = ".metadata.managedFields was in an invalid state after admission; this could be \
    caused by an outdated mutating admission controller; please fix your requests";

/// Converts the object of a write to a matched version, without the fields that the server sets later.
///
/// # Errors
///
/// 500: the version cannot represent the object.
pub(crate) fn visible<'o>(
    object: Cow<'o, Object>,
    representation: &Representation<'_>,
    attributes: &Attributes<'_>,
    environment: &Environment,
) -> Result<Cow<'o, Object>, Status> {
    let mut object = representation.convert(object, &environment.names)?;
    if attributes.subresource.is_empty() {
        hide_generated_fields(&mut object, attributes);
    }
    Ok(object)
}

/// The object name that webhooks and policies see during the mutating phase: `""` for a generated name.
pub(crate) fn visible_name<'a>(attributes: &Attributes<'a>) -> &'a str {
    if attributes.has_generated_name { "" } else { attributes.name }
}

/// Converts a changed object to the stored form, with the hidden fields of `before`, the object before the
/// change.
///
/// # Errors
///
/// 500: the changed object does not conform to its schema.
pub(crate) fn accept(
    changed: Object,
    before: &Object,
    representation: &Representation<'_>,
    attributes: &Attributes<'_>,
    environment: &Environment,
) -> Result<RestoredObject, Status> {
    let mut restored = representation.restore(changed, before, attributes, environment)?;
    let changed = &mut restored.object;
    if attributes.subresource.is_empty() {
        let hidden: &[&str] = match attributes.operation {
            Operation::Create => &GENERATED_FIELDS,
            _ => &["generation"],
        };
        for field in hidden {
            match before.meta().and_then(|meta| meta.get(*field)) {
                Some(value) => changed.set_meta(field, value.clone()),
                None => drop(changed.remove_meta(field)),
            }
        }
        if changed.name().is_empty() {
            changed.set_meta("name", before.name());
        }
    }
    let managed = |object: &Object| object.meta().and_then(|meta| meta.get("managedFields")).cloned();
    if let Err(defect) = ManagedFields::check(managed(changed).as_ref()) {
        attributes.notes.warn(format!("{INVALID_MANAGED_FIELDS}: {defect}"));
        match managed(before) {
            Some(fields) => changed.set_meta("managedFields", fields),
            None => drop(changed.remove_meta("managedFields")),
        }
    }
    Ok(restored)
}

/// Hides the fields that the server sets after the mutating phase: those of a creation, or the generation
/// that results from an update.
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
        (Operation::Update, Some(old)) => match old.meta().and_then(|meta| meta.get("generation")) {
            generation if object.meta().and_then(|meta| meta.get("generation")) == generation => {}
            Some(generation) => object.to_mut().set_meta("generation", generation.clone()),
            None => drop(object.to_mut().remove_meta("generation")),
        },
        _ => {}
    }
}
