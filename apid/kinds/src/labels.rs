//! Validation of labels and label selectors in objects, and selector matching.

use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use schema::key_order::text_of_type;
use serde_json::{Map, Value};

use crate::format;
use crate::validation::{Field, internal};

/// Validates a map of labels: keys are qualified names, values are label values.
pub fn validate(labels: Option<&Value>, path: &FieldPath) -> FieldErrors {
    let mut errors = FieldErrors::new();
    for (key, value) in labels.and_then(Value::as_object).into_iter().flatten() {
        errors.extend(invalid(path, key, format::qualified_name(key)));
        let value = value.as_str().unwrap_or("");
        errors.extend(invalid(path, value, format::label_value(value)));
    }
    errors
}

/// The error `Invalid value`, which shows a `LabelSelector` with its fields in the order of declaration.
pub(crate) fn invalid_selector(selector: &Field<'_, '_>, detail: &str) -> FieldError {
    let Some(value) = selector.value() else { return selector.invalid(detail) };
    internal::invalid(selector, &text_of_type(value, "meta/v1.LabelSelector"), detail)
}

/// Validates a `LabelSelector`.
pub fn validate_selector(selector: &Value, path: &FieldPath) -> FieldErrors {
    let mut errors = validate(selector.get("matchLabels"), &path.child("matchLabels"));
    let expressions = selector.get("matchExpressions").and_then(Value::as_array);
    for (i, expression) in expressions.into_iter().flatten().enumerate() {
        if let Some(expression) = expression.as_object() {
            errors.extend(validate_requirement(expression, &path.child("matchExpressions").index(i)));
        }
    }
    errors
}

/// Whether a `LabelSelector` has no requirements.
pub fn selects_all(selector: &Value) -> bool {
    let is_empty = |part: &str| match selector.get(part) {
        Some(Value::Object(labels)) => labels.is_empty(),
        Some(Value::Array(expressions)) => expressions.is_empty(),
        _ => true,
    };
    is_empty("matchLabels") && is_empty("matchExpressions")
}

/// Whether labels match a `LabelSelector`.
pub fn matches(selector: &Value, labels: &Value) -> bool {
    let match_labels = selector.get("matchLabels").and_then(Value::as_object);
    let expressions = selector.get("matchExpressions").and_then(Value::as_array);
    match_labels.into_iter().flatten().all(|(key, value)| labels.get(key) == Some(value))
        && expressions.into_iter().flatten().all(|expression| {
            let key = expression.get("key").and_then(Value::as_str).unwrap_or_default();
            let (label, values) = (labels.get(key), expression.get("values").and_then(Value::as_array));
            let is_listed = label.is_some_and(|label| values.is_some_and(|values| values.contains(label)));
            match expression.get("operator").and_then(Value::as_str) {
                Some("In") => is_listed,
                Some("NotIn") => !is_listed,
                Some("Exists") => label.is_some(),
                Some("DoesNotExist") => label.is_none(),
                _ => false,
            }
        })
}

fn validate_requirement(requirement: &Map<String, Value>, path: &FieldPath) -> FieldErrors {
    let text = |field: &str| requirement.get(field).and_then(Value::as_str).unwrap_or("");
    let values = requirement.get("values").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let values_path = path.child("values");
    let mut errors = FieldErrors::new();
    match text("operator") {
        "In" | "NotIn" if values.is_empty() => {
            errors.push(FieldError::required(
                &values_path,
                "must be specified when `operator` is 'In' or 'NotIn'",
            ));
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            errors.push(FieldError::forbidden(&values_path, detail));
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        operator => {
            errors.push(FieldError::invalid(
                &path.child("operator"),
                operator,
                "not a valid selector operator",
            ));
        }
    }
    errors.extend(invalid(&path.child("key"), text("key"), format::qualified_name(text("key"))));
    for (i, value) in values.iter().enumerate() {
        let value = value.as_str().unwrap_or("");
        errors.extend(invalid(&values_path.index(i), value, format::label_value(value)));
    }
    errors
}

/// One error for each message about a name, a key or a label value.
pub(crate) fn invalid(path: &FieldPath, name: &str, messages: Vec<String>) -> FieldErrors {
    messages.iter().map(|message| FieldError::invalid_name(path, name, message)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn label_selector_matches_labels() {
        let labels = json!({"app": "web", "tier": "front"});
        for (selector, expected) in [
            (json!({}), true),
            (json!({"matchLabels": {"app": "web"}}), true),
            (json!({"matchLabels": {"app": "web", "x": "y"}}), false),
            (json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["a", "web"]}]}), true),
            (json!({"matchExpressions": [{"key": "x", "operator": "In", "values": ["a"]}]}), false),
            (json!({"matchExpressions": [{"key": "x", "operator": "NotIn", "values": ["a"]}]}), true),
            (json!({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}), true),
            (json!({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}), false),
        ] {
            assert_eq!(matches(&selector, &labels), expected, "{selector}");
            assert_eq!(selects_all(&selector), selector == json!({}), "{selector}");
        }
    }

    #[test]
    fn invalid_label_selectors_return_field_errors() {
        let path = FieldPath::new("spec.selector");
        for (selector, fields) in [
            (json!({}), vec![]),
            (
                json!({"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "a", "operator": "Exists"}]}),
                vec![],
            ),
            (
                json!({"matchLabels": {"a b": "-"}}),
                vec!["spec.selector.matchLabels", "spec.selector.matchLabels"],
            ),
            (
                json!({"matchExpressions": [{"key": "a", "operator": "In"}, {"key": "a", "operator": "Exists", "values": ["x"]}]}),
                vec!["spec.selector.matchExpressions[0].values", "spec.selector.matchExpressions[1].values"],
            ),
            (
                json!({"matchExpressions": [{"key": "a/b/c", "operator": "Near", "values": ["ok", "no!"]}]}),
                vec![
                    "spec.selector.matchExpressions[0].operator",
                    "spec.selector.matchExpressions[0].key",
                    "spec.selector.matchExpressions[0].values[1]",
                ],
            ),
        ] {
            let errors = validate_selector(&selector, &path);
            assert_eq!(errors.iter().map(|e| e.path.as_str()).collect::<Vec<_>>(), fields, "{selector}");
        }
    }
}
