//! Validation of persistent volume claims.

use apimachinery::field::{FieldError, FieldErrors};
use apimachinery::names::Names;
use apimachinery::object::Object;
use apimachinery::quantity;
use schema::InternalForm;
use serde_json::{Map, Value};

use crate::defaults::restore;
use crate::table::cell::PathReader as _;
use crate::validation::{Field, difference, resource, text};
use crate::volume_sources::claim;
use crate::{Context, format, resource_name};

/// Allowed values of `allocatedResourceStatuses`: states of a volume resize.
const RESIZE_STATES: [&str; 5] = [
    "ControllerResizeInProgress",
    "ControllerResizeInfeasible",
    "NodeResizePending",
    "NodeResizeInProgress",
    "NodeResizeInfeasible",
];

/// Message about a change of an immutable field of the spec.
const IMMUTABLE_SPEC: &str = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n";

/// Validates a claim.
pub(super) fn validate(object: &Object) -> FieldErrors {
    let mut errors = FieldErrors::new();
    claim::claim_spec(&Field::new(object.get("spec"), "spec"), &mut errors);
    errors
}

/// Validates the changes of an update.
pub(super) fn validate_update(new: &Object, old: &Object, ctx: &Context<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let key = ctx.names.label_sub_key("volume.beta", "storage-class");
    let annotations = Field::new(None, "metadata.annotations");
    let is_upgrade = is_class_upgrade(new, old, &key);
    if !is_upgrade && new.annotation(&key) != old.annotation(&key) {
        let new_class = new.annotation(&key).unwrap_or("");
        errors.push(annotations.child(&key).invalid_value(new_class, "field is immutable"));
    }
    let comparable = Value::Object(comparable_spec(new, old, &key, is_upgrade));
    if Some(&comparable) != old.get("spec") {
        let [before, after] = [old.get("spec"), Some(&comparable)]
            .map(|spec| InternalForm::new(spec, "core/v1.PersistentVolumeClaimSpec"));
        let changes = difference::lines(&before, &after);
        errors.push(Field::new(None, "spec").forbidden(&format!("{IMMUTABLE_SPEC}{changes}")));
    }
    let amount = |object: &Object, path: &str| {
        quantity::nanos(&object.text_or_number(path, "0")).map_or(0, |(nanos, _)| nanos)
    };
    let request = "spec.resources.requests.storage";
    let size = amount(new, request);
    if size < amount(old, request) && size <= amount(old, "status.capacity.storage") {
        errors.push(Field::new(None, request).forbidden("field can not be less than status.capacity"));
    }
    let (mode, old_mode) = (new.find("spec.volumeMode"), old.find("spec.volumeMode"));
    if mode != old_mode {
        // The path in kube-apiserver omits `spec`.
        errors.push(Field::new(mode, "volumeMode").invalid("field is immutable"));
    }
    errors
}

/// Whether an update replaces the annotation for the storage class by the field with the same value.
fn is_class_upgrade(new: &Object, old: &Object, key: &str) -> bool {
    old.find("spec.storageClassName").is_none()
        && old.annotation(key).is_some_and(|class| class == new.text("spec.storageClassName"))
        && new.annotation(key).is_none()
}

/// The new spec with the old values of fields that may change.
fn comparable_spec(new: &Object, old: &Object, key: &str, is_upgrade: bool) -> Map<String, Value> {
    let mut spec = new.get("spec").and_then(Value::as_object).cloned().unwrap_or_default();
    let mut restore = |field: &str| restore(&mut spec, field, old.at(&["spec", field]));
    // A controller sets `volumeName` once, to bind the claim.
    if old.text("spec.volumeName").is_empty() {
        restore("volumeName");
    }
    // A controller sets the default class of a claim without a class.
    let had_class = old.find("spec.storageClassName").is_some() || old.annotation(key).is_some();
    if is_upgrade || !had_class {
        restore("storageClassName");
    }
    // The requested storage of a bound claim may change.
    if new.text("status.phase") == "Bound"
        && let Some(Value::Object(requests)) = spec.get_mut("resources").and_then(|r| r.get_mut("requests"))
        && let Some(size) = old.find("spec.resources.requests.storage")
    {
        requests.insert("storage".to_owned(), size.clone());
    }
    spec
}

/// Validates the status after an update.
pub(super) fn validate_status(new: &Object, names: &Names) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let status = Field::new(new.get("status"), "status");
    for (_, amount) in status.child("capacity").entries() {
        resource::check_not_negative(&amount, &mut errors);
    }
    // As in kube-apiserver, the path of an error is `allocatedResourceStatus`, in the singular.
    let states = status.child("allocatedResourceStatus");
    let states = states.with_value(status.child("allocatedResourceStatuses").value());
    for (name, state) in states.entries() {
        validate_allocated_name(&states, name, names, &mut errors);
        if !RESIZE_STATES.contains(&state.text()) {
            errors.push(state.not_supported(&RESIZE_STATES));
        }
    }
    let allocated = status.child("allocatedResources");
    for (name, amount) in allocated.entries() {
        validate_allocated_name(&allocated, name, names, &mut errors);
        resource::check_not_negative(&amount, &mut errors);
    }
    errors
}

/// Validates the name of an allocated resource: the storage, or a resource of a vendor.
fn validate_allocated_name(resources: &Field<'_, '_>, name: &str, names: &Names, errors: &mut FieldErrors) {
    let is_valid = text::check_name(resources, name, format::qualified_name, errors);
    if is_valid && resource_name::is_native(name, names) && name != "storage" {
        errors.push(FieldError::not_supported(&resources.path(), name, &["storage"]));
    }
}
