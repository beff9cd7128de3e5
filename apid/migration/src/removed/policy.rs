//! PodDisruptionBudget of `policy/v1beta1`, where an empty selector selects no pod.

use apimachinery::names::Names;
use apimachinery::object::{Object, Value};
use serde_json::json;

use super::fields::part;
use super::{FieldChanges, Notes};

pub(super) const VERSIONS: &[FieldChanges] =
    &[FieldChanges::new(("policy", "v1beta1", "PodDisruptionBudget"), upgrade, downgrade)];

/// A selector on a label that no pod has.
fn selector(names: &Names, operator: &str) -> Value {
    let key = names.label_sub_key("pdb", "deprecated-v1beta1-empty-selector-match");
    json!({"matchExpressions": [{"key": key, "operator": operator}]})
}

/// Whether a selector has no conditions.
fn is_empty(selector: &Value) -> bool {
    let is_empty_part = |part: Option<&Value>| match part {
        Some(Value::Object(map)) => map.is_empty(),
        Some(Value::Array(list)) => list.is_empty(),
        other => other.is_none_or(Value::is_null),
    };
    selector.is_object()
        && is_empty_part(selector.get("matchLabels"))
        && is_empty_part(selector.get("matchExpressions"))
}

fn upgrade(object: &mut Object, names: &Names, notes: &mut Notes) {
    let Some(old) = part(object, "spec").and_then(|spec| spec.get_mut("selector")) else { return };
    if is_empty(old) {
        *old = selector(names, "Exists");
        notes.add(
            "spec.selector",
            "an empty selector selects no pod in v1beta1 and all pods in v1; the new selector selects no pod",
        );
    } else if *old == selector(names, "DoesNotExist") {
        *old = json!({});
    }
}

fn downgrade(object: &mut Object, names: &Names) {
    let Some(new) = part(object, "spec").and_then(|spec| spec.get_mut("selector")) else { return };
    if is_empty(new) {
        *new = selector(names, "DoesNotExist");
    } else if *new == selector(names, "Exists") {
        *new = json!({});
    }
}
