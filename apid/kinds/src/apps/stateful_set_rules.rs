//! Validation of stateful sets.

use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::object::Object;
use serde_json::Value;

use crate::pods::validation;
use crate::validation::internal;
use crate::validation::{Field, number, text};
use crate::{format, labels};

/// Fields of the spec that an update can change.
const MUTABLE: [&str; 7] = [
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
];

/// Validates a new stateful set.
pub(super) fn validate(object: &Object) -> FieldErrors {
    let spec = Field::new(object.get("spec"), "spec");
    let mut errors = FieldErrors::new();
    validate_spec(&spec, &mut errors);
    text::check_nonempty_format(&spec.child("serviceName"), format::label, &mut errors);
    errors
}

/// Validates an update, except `spec.serviceName`: objects of older releases may have any service name.
pub(super) fn validate_update(new: &Object, old: &Object) -> FieldErrors {
    let spec = Field::new(new.get("spec"), "spec");
    let mut errors = FieldErrors::new();
    validate_spec(&spec, &mut errors);
    let immutable = |object: &Object| match object.get("spec") {
        Some(Value::Object(fields)) => {
            let mut fields = fields.clone();
            fields.retain(|name, _| !MUTABLE.contains(&name.as_str()));
            fields
        }
        _ => serde_json::Map::new(),
    };
    if immutable(new) != immutable(old) {
        errors.push(FieldError::forbidden(
            &FieldPath::new("spec"),
            "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', \
             'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden",
        ));
    }
    errors
}

/// Validates a new status.
pub(super) fn validate_status(object: &Object) -> FieldErrors {
    let mut errors = FieldErrors::new();
    validation::status_counts(
        &Field::new(object.get("status"), "status"),
        &[
            "replicas",
            "readyReplicas",
            "currentReplicas",
            "updatedReplicas",
            "availableReplicas",
            "observedGeneration",
            "collisionCount",
        ],
        &[
            ("readyReplicas", "replicas", "status.replicas"),
            ("currentReplicas", "replicas", "status.replicas"),
            ("updatedReplicas", "replicas", "status.replicas"),
            ("availableReplicas", "replicas", "status.replicas"),
            ("availableReplicas", "readyReplicas", "status.readyReplicas"),
        ],
        &mut errors,
    );
    errors
}

fn validate_spec(spec: &Field<'_, '_>, errors: &mut FieldErrors) {
    let management = spec.child("podManagementPolicy");
    match management.text() {
        "" => errors.push(management.required("")),
        "OrderedReady" | "Parallel" => {}
        _ => errors.push(management.invalid("must be 'OrderedReady' or 'Parallel'")),
    }
    validate_update_strategy(&spec.child("updateStrategy"), errors);
    let retention = spec.child("persistentVolumeClaimRetentionPolicy");
    for name in ["whenDeleted", "whenScaled"] {
        text::check_supported(&retention.child(name), &["Delete", "Retain"], errors);
    }
    number::check_not_negative(&spec.child("replicas"), errors);
    number::check_not_negative(&spec.child("minReadySeconds"), errors);
    let ordinals = spec.child("ordinals");
    number::check_not_negative(&ordinals.child("start"), errors);
    let is_selector_valid = validate_selector(&spec.child("selector"), errors);
    let template = spec.child("template");
    if is_selector_valid {
        validate_pod_template(spec, &template, errors);
    }
    let pod = template.child("spec");
    let policy = pod.child("restartPolicy");
    if policy.text() != "Always" {
        errors.push(policy.not_supported(&["Always"]));
    }
    pod.child("activeDeadlineSeconds")
        .forbid("activeDeadlineSeconds in StatefulSet is not Supported", errors);
}

/// The type of the parameters of rolling updates.
const ROLLING_UPDATE: &str = "apps/v1.RollingUpdateStatefulSetStrategy";

fn validate_update_strategy(strategy: &Field<'_, '_>, errors: &mut FieldErrors) {
    let rolling = strategy.child("rollingUpdate");
    let kind = strategy.child("type");
    match kind.text() {
        "" => errors.push(strategy.required("")),
        "OnDelete" => {
            if rolling.is_present() {
                let detail = "only allowed for updateStrategy 'RollingUpdate'";
                errors.push(internal::invalid_of_type(&rolling, ROLLING_UPDATE, detail));
            }
        }
        "RollingUpdate" => number::check_not_negative(&rolling.child("partition"), errors),
        _ => errors.push(strategy.invalid("must be 'RollingUpdate' or 'OnDelete'")),
    }
}

/// Validates the selector. Returns false for a malformed selector: the caller does not compare such a
/// selector with the labels of the pod template.
fn validate_selector(selector: &Field<'_, '_>, errors: &mut FieldErrors) -> bool {
    let Some(value) = selector.value() else {
        errors.push(selector.required(""));
        return true;
    };
    let is_valid = labels::validate_selector(selector, errors);
    if labels::selects_all(value) {
        errors.push(selector.invalid("empty selector is invalid for statefulset"));
    }
    if !is_valid {
        errors.push(labels::invalid_selector(selector, ""));
    }
    is_valid
}

/// Validates the metadata of the pod template. kube-apiserver does not validate the spec of these pods.
fn validate_pod_template(spec: &Field<'_, '_>, template: &Field<'_, '_>, errors: &mut FieldErrors) {
    let selector = spec.child("selector");
    let is_match = |found: &Value| {
        selector
            .value()
            .is_some_and(|selector| labels::selects_all(selector) || labels::matches(selector, found))
    };
    validation::matching_labels(template, is_match, errors);
    let metadata = template.child("metadata");
    // kube-apiserver omits `metadata` from this path.
    text::check_labels(&template.child("labels").with_value(metadata.child("labels").value()), errors);
}
