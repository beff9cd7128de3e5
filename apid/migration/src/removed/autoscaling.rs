//! HorizontalPodAutoscaler of `autoscaling/v2beta1` and `v2beta2`.
//!
//! # Reference
//!
//! The annotations of `autoscaling/v1` contain metrics in the form of `v2beta1`, so objects of `v2beta1` are
//! converted to `v1` and then to the target version. `v2beta2` has the fields of `v2`.

use apimachinery::names::Names;
use apimachinery::object::{Object, Value};
use serde_json::json;

use super::fields::{annotate, child_or_new, part, remove_annotation};
use super::{FieldChanges, Notes};

/// Parent and name of each field of `v2beta1` that `v1` has as an annotation, with the name of the
/// annotation.
const FIELDS: [(&str, &str, &str); 3] = [
    ("spec", "metrics", "metrics"),
    ("status", "currentMetrics", "current-metrics"),
    ("status", "conditions", "conditions"),
];
/// For the specification and the status: the parent, the field of the CPU utilization in `v1`, and the list
/// of metrics and the field of a metric in `v2beta1`.
const CPU: [(&str, &str, &str, &str); 2] = [
    ("spec", "targetCPUUtilizationPercentage", "metrics", "targetAverageUtilization"),
    ("status", "currentCPUUtilizationPercentage", "currentMetrics", "currentAverageUtilization"),
];

pub(super) const VERSIONS: &[FieldChanges] = &[FieldChanges {
    intermediate: Some(("autoscaling", "v1")),
    ..FieldChanges::new(("autoscaling", "v2beta1", "HorizontalPodAutoscaler"), upgrade, downgrade)
}];

fn annotation_key(names: &Names, name: &str) -> String {
    names.label_sub_key("autoscaling.alpha", name)
}

fn upgrade(object: &mut Object, names: &Names, _notes: &mut Notes) {
    for (owner, field, name) in FIELDS {
        let key = annotation_key(names, name);
        remove_annotation(object, &key);
        let value = part(object, owner).and_then(|owner| owner.remove(field)).filter(Value::is_array);
        if let Some(value) = value {
            annotate(object, &key, &value.to_string());
        }
    }
}

fn downgrade(object: &mut Object, names: &Names) {
    for (owner, field, name) in FIELDS {
        let text = remove_annotation(object, &annotation_key(names, name));
        let value = text.and_then(|text| serde_json::from_str::<Value>(&text).ok()).filter(Value::is_array);
        if let (Some(value), Some(owner)) = (value, child_or_new(&mut object.0, owner)) {
            owner.insert(field.to_owned(), value);
        }
    }
    for (owner, v1_field, list, percentage) in CPU {
        let Some(owner) = part(object, owner) else { continue };
        let Some(percent) = owner.remove(v1_field).filter(|percent| !percent.is_null()) else { continue };
        let metric = json!({"type": "Resource", "resource": {"name": "cpu", percentage: percent}});
        match owner.get_mut(list).and_then(Value::as_array_mut) {
            Some(metrics) => metrics.push(metric),
            None => drop(owner.insert(list.to_owned(), json!([metric]))),
        }
    }
}
