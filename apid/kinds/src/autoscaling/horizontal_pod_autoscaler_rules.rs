//! Validation of horizontal pod autoscalers.

use apimachinery::field::FieldErrors;
use apimachinery::names::Names;
use apimachinery::object::Object;
use apimachinery::quantity;

use crate::format;
use crate::validation::{Field, number, resource, text};

/// Maximum value of `stabilizationWindowSeconds`.
const WINDOW_MAX: i64 = 3600;
/// Maximum value of `periodSeconds` in a scaling policy.
const PERIOD_MAX: i64 = 1800;

/// Types of metrics, each with the field that contains its source, in the order in which kube-apiserver
/// checks them.
const SOURCES: [(&str, &str); 5] = [
    ("Object", "object"),
    ("External", "external"),
    ("Pods", "pods"),
    ("Resource", "resource"),
    ("ContainerResource", "containerResource"),
];

/// Validates the spec.
pub(super) fn validate(object: &Object, names: &Names) -> FieldErrors {
    let spec = Field::new(object.get("spec"), "spec");
    let mut errors = FieldErrors::new();
    let (min, max) = (spec.child("minReplicas"), spec.child("maxReplicas"));
    if min.integer().is_some_and(|min| min < 1) {
        errors.push(min.invalid("must be greater than or equal to 1"));
    }
    let limit = max.integer().unwrap_or(0);
    if limit < 1 {
        errors.push(max.invalid_value(limit, "must be greater than or equal to 1"));
    }
    if min.integer().is_some_and(|min| min > limit) {
        errors.push(max.invalid_value(limit, "must be greater than or equal to `minReplicas`"));
    }
    validate_object_reference(&spec.child("scaleTargetRef"), &mut errors);
    let metrics = spec.child("metrics");
    metrics.items().for_each(|item| validate_metric(&item, names, &mut errors));
    let has_source = |name: &str| metrics.items().any(|metric| metric.child("type").text() == name);
    if min.integer() == Some(0) && !has_source("Object") && !has_source("External") {
        let detail =
            "must specify at least one Object or External metric to support scaling to zero replicas";
        errors.push(metrics.forbidden(detail));
    }
    let behavior = spec.child("behavior");
    for direction in ["scaleUp", "scaleDown"] {
        validate_scaling_rules(&behavior.child(direction), &mut errors);
    }
    errors
}

/// Validates a new status.
pub(super) fn validate_status(object: &Object) -> FieldErrors {
    let status = Field::new(object.get("status"), "status");
    let mut errors = FieldErrors::new();
    for name in ["currentReplicas", "desiredReplicas"] {
        number::check_not_negative(&status.child(name), &mut errors);
    }
    errors
}

fn path_segment(name: &str) -> Vec<String> {
    format::path_segment(name, false)
}

fn validate_object_reference(reference: &Field<'_, '_>, errors: &mut FieldErrors) {
    for name in ["kind", "name"] {
        text::require_format(&reference.child(name), path_segment, errors);
    }
}

fn validate_metric(metric: &Field<'_, '_>, names: &Names, errors: &mut FieldErrors) {
    let kind = metric.child("type");
    if kind.text().is_empty() {
        errors.push(kind.required("must specify a metric source type"));
    }
    let expected = SOURCES.iter().find(|(name, _)| *name == kind.text()).map(|(_, field)| *field);
    if expected.is_none() {
        let supported = &["ContainerResource", "External", "Object", "Pods", "Resource"];
        // kube-apiserver reports this error twice.
        for _ in 0..2 {
            errors.push(kind.with_value(Some(&kind.text().into())).not_supported(supported));
        }
    }
    let present: Vec<&str> =
        SOURCES.iter().map(|(_, field)| *field).filter(|field| metric.child(field).is_present()).collect();
    // kube-apiserver validates only the first source.
    if let Some(first) = present.first() {
        validate_source(first, &metric.child(first), names, errors);
    }
    if let Some(expected) = expected
        && !present.contains(&expected)
    {
        let detail = "must populate information for the given metric source";
        errors.push(metric.child(expected).required(detail));
    }
    if present.len() > 1 {
        for field in present.into_iter().filter(|field| Some(*field) != expected) {
            errors.push(metric.child(field).forbidden("must populate the given metric source only"));
        }
    }
}

fn validate_source(name: &str, source: &Field<'_, '_>, names: &Names, errors: &mut FieldErrors) {
    let target = source.child("target");
    let (value, average) = (target.child("value"), target.child("averageValue"));
    match name {
        "object" => {
            validate_object_reference(&source.child("describedObject"), errors);
            validate_metric_name(&source.child("metric"), errors);
            validate_metric_target(&target, errors);
            if !value.is_present() && !average.is_present() {
                errors.push(average.required("must set either a target value or averageValue"));
            }
        }
        "external" => {
            validate_metric_name(&source.child("metric"), errors);
            validate_metric_target(&target, errors);
            match (value.is_present(), average.is_present()) {
                (false, false) => {
                    let detail = "must set either a target value for metric or a per-pod target";
                    errors.push(average.required(detail));
                }
                (true, true) => {
                    let detail = "may not set both a target value for metric and a per-pod target";
                    errors.push(value.forbidden(detail));
                }
                _ => {}
            }
        }
        "pods" => {
            validate_metric_name(&source.child("metric"), errors);
            validate_metric_target(&target, errors);
            average.require_present("must specify a positive target averageValue", errors);
        }
        _ => {
            let resource = source.child("name");
            if resource.text().is_empty() {
                errors.push(resource.required("must specify a resource name"));
            } else if name == "containerResource" {
                resource::check_container_resource_name(&resource, resource.text(), names, errors);
            }
            if name == "containerResource" {
                let container = source.child("container");
                let detail = "must specify a container";
                text::require_described_format(&container, detail, format::label, errors);
            }
            validate_metric_target(&target, errors);
            validate_utilization(&target, errors);
        }
    }
}

fn validate_metric_name(metric: &Field<'_, '_>, errors: &mut FieldErrors) {
    let detail = "must specify a metric name";
    text::require_described_format(&metric.child("name"), detail, path_segment, errors);
}

fn validate_metric_target(target: &Field<'_, '_>, errors: &mut FieldErrors) {
    let kind = target.child("type");
    if kind.text().is_empty() {
        errors.push(kind.required("must specify a metric target type"));
    }
    if !matches!(kind.text(), "Utilization" | "Value" | "AverageValue") {
        errors.push(kind.invalid_value(kind.text(), "must be either Utilization, Value, or AverageValue"));
    }
    for name in ["value", "averageValue"] {
        let quantity = target.child(name);
        if quantity.is_present() && !is_positive(&quantity) {
            errors.push(quantity.invalid("must be positive"));
        }
    }
    let utilization = target.child("averageUtilization");
    if utilization.integer().is_some_and(|percent| percent < 1) {
        errors.push(utilization.invalid("must be greater than 0"));
    }
}

/// Validates that a target has a utilization or a value, not both.
fn validate_utilization(target: &Field<'_, '_>, errors: &mut FieldErrors) {
    let (utilization, value) = (target.child("averageUtilization"), target.child("averageValue"));
    match (utilization.is_present(), value.is_present()) {
        (false, false) => {
            let detail = "must set either a target raw value or a target utilization";
            errors.push(utilization.required(detail));
        }
        (true, true) => {
            errors.push(value.forbidden("may not set both a target raw value and a target utilization"));
        }
        _ => {}
    }
}

fn is_positive(quantity: &Field<'_, '_>) -> bool {
    quantity::nanos(quantity.text()).is_ok_and(|(nanos, _)| nanos > 0)
}

fn validate_scaling_rules(rules: &Field<'_, '_>, errors: &mut FieldErrors) {
    if !rules.is_present() {
        return;
    }
    let window = rules.child("stabilizationWindowSeconds");
    if window.integer().is_some_and(|seconds| seconds < 0) {
        errors.push(window.invalid("must be greater than or equal to zero"));
    }
    check_at_most(&window, WINDOW_MAX, errors);
    text::check_supported(&rules.child("selectPolicy"), &["Disabled", "Max", "Min"], errors);
    let policies = rules.child("policies");
    policies.require_items("must specify at least one Policy", errors);
    for policy in policies.items() {
        text::check_listed(&policy.child("type"), &["Percent", "Pods"], errors);
        for name in ["value", "periodSeconds"] {
            let field = policy.child(name);
            let number = field.integer().unwrap_or(0);
            if number <= 0 {
                errors.push(field.invalid_value(number, "must be greater than zero"));
            }
        }
        check_at_most(&policy.child("periodSeconds"), PERIOD_MAX, errors);
    }
}

fn check_at_most(field: &Field<'_, '_>, max: i64, errors: &mut FieldErrors) {
    if field.integer().is_some_and(|number| number > max) {
        errors.push(field.invalid(&format!("must be less than or equal to {max}")));
    }
}
