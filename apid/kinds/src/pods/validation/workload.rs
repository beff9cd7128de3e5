//! Rules of workloads: a selector, a template that it matches, and a restart policy.

use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::object::{Object, Value};

use crate::labels;
use crate::table::cell::PathReader;

/// Validates a workload: its selector matches the template labels, and the restart policy is `Always`.
pub(crate) fn workload(object: &Object) -> FieldErrors {
    let (spec, template) = (FieldPath::new("spec"), FieldPath::new("spec.template"));
    let selector = object.find("spec.selector").cloned().unwrap_or_default();
    let path = spec.child("selector");
    let mut errors = FieldErrors::new();
    if selector.is_null() {
        errors.push(FieldError::required(&path, ""));
    } else {
        errors.extend(labels::validate_selector(&selector, &path));
        if labels::selects_all(&selector) {
            let detail = "empty selector is invalid for deployment";
            errors.push(FieldError::invalid(&path, selector.clone(), detail));
        }
    }
    let of_pods = object.find("spec.template.metadata.labels").cloned().unwrap_or_default();
    if selector.is_null() || !labels::matches(&selector, &of_pods) {
        let path = template.child("metadata").child("labels");
        errors.push(FieldError::invalid(
            &path,
            of_pods.clone(),
            "`selector` does not match template `labels`",
        ));
    }
    errors.extend(super::template(object.find("spec.template").unwrap_or(&Value::Null), &template));
    let restart = object.text("spec.template.spec.restartPolicy");
    if restart != "Always" {
        errors.push(FieldError::not_supported(
            &template.child("spec").child("restartPolicy"),
            restart,
            &["Always"],
        ));
    }
    if object.find("spec.template.spec.activeDeadlineSeconds").is_some() {
        let path = template.child("spec").child("activeDeadlineSeconds");
        errors.push(FieldError::forbidden(&path, "activeDeadlineSeconds in ReplicaSet is not Supported"));
    }
    errors
}
