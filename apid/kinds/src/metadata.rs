//! Rules of `metadata` that all kinds share: server-set fields, immutable fields and validation.
//!
//! # Contract
//!
//! [`prepare_create`] and [`prepare_update`] set the server-owned fields. [`validate`] checks the metadata of
//! an object; [`validate_update`] checks the changes of an update. Each check reports errors of labels, so an
//! update reports these errors more than once. The general checks report them twice, and the checks of the kind
//! ([`crate::MetadataChecks`]) report them again. kube-apiserver returns the same list.
//!
//! # Reference
//!
//! Requirements D-META. Order and messages of the checks are those of kube-apiserver.

use std::collections::{BTreeSet, HashSet};

use apimachinery::clock::Rng;
use apimachinery::field::{ERRORS_MAX, FieldError, FieldErrors, FieldPath, quote};
use apimachinery::names::Names;
use apimachinery::object::{Map, Object};
use apimachinery::time;
use schema::key_order::text_of_type;
use serde_json::Value;

use crate::validation::{Field, number, text};
use crate::{Context, NameRule, format, labels};

/// Maximum total size, in bytes, of the keys and values of all annotations of an object (requirements
/// D-META-29).
pub(crate) const ANNOTATIONS_MAX: usize = 256 * 1024;

/// Maximum length, in bytes, of a generated name. A `generateName` that is too long is truncated
/// (requirements D-META-6).
const GENERATED_MAX: usize = 63;

/// Finalizer that orphans dependents.
pub const ORPHAN: &str = "orphan";
/// Finalizer of foreground deletion.
pub const FOREGROUND: &str = "foregroundDeletion";

/// Path of the metadata of an object.
const METADATA: &str = "metadata";
/// Message for a finalizer without a domain.
const NON_STANDARD_FINALIZER: &str = "name is neither a standard finalizer name nor is it fully qualified";

/// Parameters of metadata validation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules<'a> {
    /// Rule for the name.
    pub name: NameRule,
    /// If true, the object must have a namespace. If false, it must not have one.
    pub namespaced: bool,
    /// The only finalizers that may lack a domain; None allows any qualified name.
    pub standard_finalizers: Option<[&'a str; 3]>,
}

/// The standard finalizers, which have no domain.
pub fn standard_finalizers(names: &Names) -> [&'static str; 3] {
    [names.api_service, ORPHAN, FOREGROUND]
}

/// Sets the server-owned fields of a new object and removes fields that clients may not set.
/// Sets uid, creationTimestamp and namespace. Removes the deletion fields, resourceVersion and selfLink. Does
/// not generate the name.
pub fn prepare_create(object: &mut Object, namespace: &str, uid: &str, ctx: &Context<'_>) {
    let metadata = object.meta_mut();
    for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "resourceVersion", "selfLink"] {
        metadata.remove(field);
    }
    if namespace.is_empty() {
        metadata.remove("namespace");
    } else {
        metadata.insert("namespace".to_owned(), namespace.into());
    }
    metadata.insert("uid".to_owned(), uid.into());
    metadata.insert("creationTimestamp".to_owned(), time::time(ctx.clock.now()).into());
}

/// Removes owner references that equal an earlier one. Returns the uids of the owners in the removed
/// references.
pub fn remove_duplicate_owners(object: &mut Object) -> Vec<String> {
    let owners = object.get_mut("metadata").and_then(|metadata| metadata.get_mut("ownerReferences"));
    let owners = owners.and_then(Value::as_array_mut).filter(|owners| owners.len() > 1);
    let Some(owners) = owners else { return Vec::new() };
    let (mut duplicates, mut texts) = (Vec::new(), HashSet::new());
    owners.retain(|owner| {
        let is_first = texts.insert(owner.to_string());
        if !is_first {
            duplicates.push(owner.get("uid").and_then(Value::as_str).unwrap_or("").to_owned());
        }
        is_first
    });
    duplicates
}

/// Fills an absent name from `generateName`. Returns whether the object has a `generateName`.
/// If the name is taken at commit, the caller removes the name and tries again.
pub fn generate_name(object: &mut Object, rng: &dyn Rng) -> bool {
    let prefix = object.meta_str("generateName");
    if prefix.is_empty() {
        return false;
    }
    let suffix = rng.name_suffix();
    let mut end = prefix.len().min(GENERATED_MAX - suffix.len());
    while !prefix.is_char_boundary(end) {
        end -= 1;
    }
    let name = format!("{}{suffix}", prefix.get(..end).unwrap_or(""));
    object.set_meta("name", name);
    true
}

/// Copies fields from `old` that an update may not change and that clients need not send.
/// These are creationTimestamp, generation, the deletion fields if set, and an omitted uid.
pub fn prepare_update(new: &mut Object, old: &Object) {
    restore_field(new, old, "creationTimestamp");
    restore_field(new, old, "generation");
    if new.uid().is_empty() {
        restore_field(new, old, "uid");
    }
    for field in ["deletionTimestamp", "deletionGracePeriodSeconds"] {
        if old.meta().is_some_and(|m| m.contains_key(field)) {
            restore_field(new, old, field);
        }
    }
}

/// Restores a field of the metadata from the stored object.
pub(crate) fn restore_field(new: &mut Object, old: &Object, field: &str) {
    match old.meta().and_then(|metadata| metadata.get(field)) {
        Some(value) => new.set_meta(field, value.clone()),
        None => drop(new.remove_meta(field)),
    }
}

/// Restores all metadata from the stored object except `managedFields` and the resourceVersion.
pub(crate) fn restore_all(new: &mut Object, old: &Object) {
    const KEPT: [&str; 2] = ["managedFields", "resourceVersion"];
    new.meta_mut().retain(|field, _| KEPT.contains(&field.as_str()));
    for (field, value) in old.meta().into_iter().flatten() {
        if !KEPT.contains(&field.as_str()) {
            new.set_meta(field, value.clone());
        }
    }
}

/// Validates the metadata of an object.
pub fn validate(object: &Object, rules: Rules<'_>) -> FieldErrors {
    validate_at(object, rules, METADATA)
}

/// Validates the metadata of an object inside a custom object. The name may be absent, and a namespace is
/// allowed.
pub fn validate_embedded(fields: &Map<String, Value>, path: &FieldPath) -> FieldErrors {
    let mut object = Object::default();
    object.set("metadata", fields.clone());
    if object.name().is_empty() {
        object.set_meta("name", "fakename");
    }
    let namespaced = !object.namespace().is_empty();
    validate_at(
        &object,
        Rules { name: NameRule::PathSegment, namespaced, standard_finalizers: None },
        path.as_str(),
    )
}

fn validate_at(object: &Object, rules: Rules<'_>, path: &str) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let metadata = Field::new(object.get("metadata"), path);
    text::check_nonempty_format(
        &metadata.child("generateName"),
        |text| format::name(rules.name, text, true),
        &mut errors,
    );
    let name = metadata.child("name");
    let format = |text: &str| format::name(rules.name, text, false);
    text::require_described_format(&name, "name or generateName is required", format, &mut errors);
    let namespace = metadata.child("namespace");
    if rules.namespaced {
        text::require_format(&namespace, format::label, &mut errors);
    } else if !namespace.text().is_empty() {
        errors.push(namespace.forbidden("not allowed on this type"));
    }
    number::check_not_negative(&metadata.child("generation"), &mut errors);
    validate_shared(&metadata, &mut errors);
    validate_finalizers(&metadata.child("finalizers"), rules.standard_finalizers, &mut errors);
    errors
}

/// Validates that an update does not change immutable metadata.
pub fn validate_update(new: &Object, old: &Object) -> FieldErrors {
    let path = FieldPath::new("metadata");
    let mut errors = FieldErrors::new();
    if old.is_terminating() {
        let old_finalizers: BTreeSet<&str> = old.finalizers().collect();
        let added: BTreeSet<&str> = new.finalizers().filter(|f| !old_finalizers.contains(f)).collect();
        if !added.is_empty() {
            let list = added.iter().take(ERRORS_MAX).map(|f| quote(f)).collect::<Vec<_>>().join(", ");
            let detail = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{list}}}"
            );
            errors.push(FieldError::forbidden(&path.child("finalizers"), &detail));
        }
    }
    if new.generation() < old.generation() {
        errors.push(FieldError::invalid(
            &path.child("generation"),
            new.generation(),
            "must not be decremented",
        ));
    }
    for field in
        ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"]
    {
        let value =
            |object: &Object| object.meta().and_then(|m| m.get(field)).cloned().unwrap_or(Value::Null);
        errors.extend(immutable(&value(new), &value(old), &path.child(field)));
    }
    validate_shared(&Field::new(new.get("metadata"), METADATA), &mut errors);
    errors
}

/// Error for a changed immutable field. The message shows a missing value as `"null"`.
fn immutable(new: &Value, old: &Value, path: &FieldPath) -> Option<FieldError> {
    let value = if new.is_null() { Value::from("null") } else { new.clone() };
    (new != old).then(|| FieldError::invalid(path, value, "field is immutable"))
}

/// Validates a finalizer name outside metadata: qualified, or a standard name without a domain.
pub fn validate_finalizer_name(name: &str, path: &FieldPath, standard: [&str; 3]) -> FieldErrors {
    let mut errors = labels::invalid(path, name, format::qualified_name(name));
    if !is_standard_finalizer(name, standard) {
        errors.push(FieldError::invalid(path, name, NON_STANDARD_FINALIZER));
    }
    errors
}

/// Validates labels, annotations and owner references, on every write.
fn validate_shared(metadata: &Field<'_, '_>, errors: &mut FieldErrors) {
    text::check_labels(&metadata.child("labels"), errors);
    validate_annotations(&metadata.child("annotations"), errors);
    validate_owners(&metadata.child("ownerReferences"), errors);
}

/// Validates annotations.
pub(crate) fn validate_annotations(annotations: &Field<'_, '_>, errors: &mut FieldErrors) {
    let mut size = 0;
    for (key, value) in annotations.entries() {
        let Some(value) = value.value().and_then(Value::as_str) else { continue };
        for message in format::qualified_name(&key.to_lowercase()) {
            errors.push(annotations.invalid_name(key, &message));
        }
        size += key.len() + value.len();
    }
    if size > ANNOTATIONS_MAX {
        errors.push(FieldError::too_long(&annotations.path(), ANNOTATIONS_MAX));
    }
}

/// Validates owner references. kube-apiserver reports their errors without the index.
fn validate_owners(owners: &Field<'_, '_>, errors: &mut FieldErrors) {
    let mut controller: Option<&Value> = None;
    // The list of owners in error messages, rendered once.
    let mut owners_text: Option<String> = None;
    for owner in owners.list().iter().filter(|owner| owner.is_object()) {
        let text = |field: &str| owner.get(field).and_then(Value::as_str).unwrap_or("");
        let version = apimachinery::gvk::GroupVersion::parse(text("apiVersion"));
        if version.is_none() {
            let detail = "version must not be empty";
            errors.push(owners.child("apiVersion").invalid_value(text("apiVersion"), detail));
        }
        for field in ["kind", "name", "uid"] {
            if text(field).is_empty() {
                errors.push(owners.child(field).invalid_value("", "must not be empty"));
            }
        }
        // An Event cannot be an owner, because Events are numerous and short-lived.
        if text("apiVersion") == "v1" && text("kind") == "Event" {
            let detail = "/v1, Kind=Event is disallowed from being an owner";
            errors.push(FieldError::invalid_json(&owners.path(), &owner_text(owner), detail));
        }
        if owner.get("controller") == Some(&Value::Bool(true)) {
            match controller {
                None => controller = Some(owner),
                Some(first) => {
                    let detail = format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for {} and {}",
                        owner_label(first),
                        owner_label(owner)
                    );
                    let owners_text = owners_text.get_or_insert_with(|| owner_list(owners.list()));
                    errors.push(FieldError::invalid_json(&owners.path(), owners_text, &detail));
                }
            }
        }
    }
}

/// The first [`ERRORS_MAX`] owner references as a list in the format of error messages.
fn owner_list(owners: &[Value]) -> String {
    let texts = owners.iter().filter(|owner| owner.is_object()).take(ERRORS_MAX).map(owner_text);
    format!("[{}]", texts.collect::<Vec<_>>().join(","))
}

/// Kind and name of an owner reference: `Pod/a`.
fn owner_label(owner: &Value) -> String {
    let text = |field: &str| owner.get(field).and_then(Value::as_str).unwrap_or("");
    format!("{}/{}", text("kind"), text("name"))
}

/// Owner reference in the format of error messages.
fn owner_text(owner: &Value) -> String {
    text_of_type(owner, "meta/v1.OwnerReference")
}

fn validate_finalizers(finalizers: &Field<'_, '_>, standard: Option<[&str; 3]>, errors: &mut FieldErrors) {
    for finalizer in finalizers.items() {
        text::check_name(finalizers, finalizer.text(), format::qualified_name, errors);
    }
    let contains = |name: &str| finalizers.items().any(|finalizer| finalizer.text() == name);
    if contains(ORPHAN) && contains(FOREGROUND) {
        let detail = format!("finalizer {ORPHAN} and {FOREGROUND} cannot be both set");
        errors.push(finalizers.invalid(&detail));
    }
    if let Some(standard) = standard {
        non_standard_finalizers(finalizers, standard, errors);
    }
}

/// Validates that finalizers without a domain are standard finalizers.
pub fn validate_standard_finalizers(object: &Object, standard: [&str; 3]) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let metadata = Field::new(object.get("metadata"), METADATA);
    non_standard_finalizers(&metadata.child("finalizers"), standard, &mut errors);
    errors
}

fn non_standard_finalizers(finalizers: &Field<'_, '_>, standard: [&str; 3], errors: &mut FieldErrors) {
    for finalizer in finalizers.items() {
        if !is_standard_finalizer(finalizer.text(), standard) {
            errors.push(finalizer.invalid(NON_STANDARD_FINALIZER));
        }
    }
}

/// Whether a finalizer is one of the standard finalizers, or has a domain.
fn is_standard_finalizer(name: &str, standard: [&str; 3]) -> bool {
    name.contains('/') || standard.contains(&name)
}

#[cfg(test)]
#[path = "tests/metadata.rs"]
mod tests;
