//! Label keys of pod affinity terms, whose values come from the labels of a new pod.
//!
//! # Contract
//!
//! A term selects pods by `labelSelector`. For each key of `matchLabelKeys` that the new pod has as a label, the
//! selector gets the requirement that other pods have the same value. For each such key of `mismatchLabelKeys`,
//! the selector gets the requirement that they do not. Terms without a selector match no pod and stay as they are.
//! The terms of pod templates do not change.
//!
//! # Reference
//!
//! The field documentation of `PodAffinityTerm` of Kubernetes 1.33.

use apimachinery::object::Object;
use serde_json::{Value, json};

use crate::defaults::{Fields, map_at, maps_in_list, part};

/// Fields with keys, each with the operator of the requirement.
const KEYS: [(&str, &str); 2] = [("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")];

/// Adds the requirements of label keys to the selectors of the affinity terms of a new pod.
pub(crate) fn complete_selectors(pod: &mut Object) {
    let labels = pod.meta().and_then(|metadata| metadata.get("labels")).cloned().unwrap_or_default();
    let Some(affinity) = part(pod, "spec.affinity") else { return };
    for kind in ["podAffinity", "podAntiAffinity"] {
        let Some(affinity) = map_at(affinity, kind) else { continue };
        for preferred in maps_in_list(affinity, "preferredDuringSchedulingIgnoredDuringExecution") {
            if let Some(term) = map_at(preferred, "podAffinityTerm") {
                complete_selector(term, &labels);
            }
        }
        for term in maps_in_list(affinity, "requiredDuringSchedulingIgnoredDuringExecution") {
            complete_selector(term, &labels);
        }
    }
}

fn complete_selector(term: &mut Fields, labels: &Value) {
    let mut requirements = Vec::new();
    for (field, operator) in KEYS {
        let keys = term.get(field).and_then(Value::as_array).into_iter().flatten();
        for key in keys.filter_map(Value::as_str) {
            if let Some(value) = labels.get(key) {
                requirements.push(json!({"key": key, "operator": operator, "values": [value]}));
            }
        }
    }
    let Some(selector) = map_at(term, "labelSelector").filter(|_| !requirements.is_empty()) else { return };
    match selector.get_mut("matchExpressions") {
        Some(Value::Array(expressions)) => expressions.extend(requirements),
        _ => drop(selector.insert("matchExpressions".to_owned(), Value::Array(requirements))),
    }
}
