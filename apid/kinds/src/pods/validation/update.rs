//! Changes of a pod.

use std::collections::HashSet;

use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::names::Names;
use apimachinery::object::{Object, Value};
use serde_json::json;

use super::{annotations, gated};
use crate::table::cell::PathReader;
use crate::validation::Field;

/// Validates an update of a pod.
///
/// An update may change container images, set or shorten the deadline, add tolerations and change their duration. It
/// may remove scheduling gates, and set a negative grace period to 1. [`gated`] has the rules for gated pods. As in
/// kube-apiserver, these rules report absent images and errors of tolerations a second time.
pub(crate) fn update(new: &Object, old: &Object, names: &Names) -> FieldErrors {
    let path = FieldPath::new("spec");
    let mut errors = FieldErrors::new();
    annotations::validate_update(new, old, names, &mut errors);
    for field in ["containers", "initContainers"] {
        let full = format!("spec.{field}");
        if new.items(&full).len() != old.items(&full).len() {
            let detail = "pod updates may not add or remove containers";
            errors.push(FieldError::forbidden(&path.child(field), detail));
            return errors;
        }
        for (i, container) in new.items(&full).iter().enumerate() {
            if container.text("image").trim().is_empty() {
                errors.push(FieldError::required(&path.child(field).index(i).child("image"), ""));
            }
        }
    }
    let deadline = |object: &Object| object.find("spec.activeDeadlineSeconds").and_then(Value::as_i64);
    let at = path.child("activeDeadlineSeconds");
    match (deadline(new), deadline(old)) {
        (Some(new), _) if new < 0 => {
            errors.push(FieldError::invalid(&at, new, "must be between 0 and 2147483647, inclusive"));
            return errors;
        }
        (Some(new), Some(old)) if new > old => {
            errors.push(FieldError::invalid(&at, new, "must be less than or equal to previous value"));
            return errors;
        }
        (None, Some(_)) => {
            errors.push(FieldError::invalid(
                &at,
                Value::Null,
                "must not update from a positive integer to nil value",
            ));
        }
        _ => {}
    }
    let tolerations = |pod: &Object| -> HashSet<Value> {
        pod.items("spec.tolerations").iter().map(without_seconds).collect()
    };
    if !tolerations(old).is_subset(&tolerations(new)) {
        let detail = "existing toleration can not be modified except its tolerationSeconds";
        errors.push(FieldError::forbidden(&path.child("tolerations"), detail));
    } else {
        let spec = Field::new(new.get("spec"), "spec");
        super::tolerations(&spec.child("tolerations"), &mut errors);
    }
    let gates = path.child("schedulingGates");
    let before: HashSet<&str> =
        old.items("spec.schedulingGates").iter().map(|gate| gate.text("name")).collect();
    for (i, gate) in new.items("spec.schedulingGates").iter().enumerate() {
        let name = gate.text("name");
        if !before.contains(name) {
            let detail = format!("only deletion is allowed, but found new scheduling gate '{name}'");
            errors.push(FieldError::forbidden(&gates.index(i).child("name"), &detail));
        }
    }
    let mut comparable = rest(new);
    if !old.items("spec.schedulingGates").is_empty() {
        gated::update(&mut comparable, &rest(old), &mut errors);
    }
    if comparable != rest(old) {
        let detail = "pod updates may not change fields other than `spec.containers[*].image`,\
            `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing \
            tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";
        errors.push(FieldError::forbidden(&path, detail));
    }
    errors
}

/// The spec without the mutable fields.
fn rest(pod: &Object) -> Value {
    let mut spec = pod.get("spec").cloned().unwrap_or_default();
    if let Value::Object(fields) = &mut spec {
        fields.remove("activeDeadlineSeconds");
        fields.remove("tolerations");
        fields.remove("schedulingGates");
        if fields
            .get("terminationGracePeriodSeconds")
            .and_then(Value::as_i64)
            .is_some_and(|seconds| seconds < 0)
        {
            fields.insert("terminationGracePeriodSeconds".to_owned(), json!(1));
        }
        for list in ["containers", "initContainers"] {
            crate::defaults::maps_in_list(fields, list).for_each(|container| drop(container.remove("image")));
        }
    }
    spec
}

/// Toleration without the duration, which updates may change.
fn without_seconds(toleration: &Value) -> Value {
    let mut toleration = toleration.clone();
    if let Some(fields) = toleration.as_object_mut() {
        fields.remove("tolerationSeconds");
    }
    toleration
}
