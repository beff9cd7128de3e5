//! Validation of labels and label selectors in objects, and selector matching.

use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use schema::key_order::text_of_type;
use serde_json::Value;

use crate::format;
use crate::validation::{Field, internal, text};

/// The error `Invalid value`, which shows a `LabelSelector` with its fields in the order of declaration.
pub(crate) fn invalid_selector(selector: &Field<'_, '_>, detail: &str) -> FieldError {
    let Some(value) = selector.value() else { return selector.invalid(detail) };
    internal::invalid(selector, &text_of_type(value, "meta/v1.LabelSelector"), detail)
}

/// Validates a `LabelSelector`. Returns whether it is valid; an absent selector is valid.
pub(crate) fn validate_selector(selector: &Field<'_, '_>, errors: &mut FieldErrors) -> bool {
    let count = errors.len();
    text::check_labels(&selector.child("matchLabels"), errors);
    for requirement in selector.child("matchExpressions").items() {
        validate_requirement(&requirement, errors);
    }
    errors.len() == count
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

fn validate_requirement(requirement: &Field<'_, '_>, errors: &mut FieldErrors) {
    let (operator, values) = (requirement.child("operator"), requirement.child("values"));
    match operator.text() {
        "In" | "NotIn" => {
            values.require_items("must be specified when `operator` is 'In' or 'NotIn'", errors)
        }
        "Exists" | "DoesNotExist" => {
            if !values.list().is_empty() {
                let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.push(values.forbidden(detail));
            }
        }
        text => errors.push(operator.invalid_value(text, "not a valid selector operator")),
    }
    text::check_format(&requirement.child("key"), format::qualified_name, errors);
    for value in values.items() {
        text::check_format(&value, format::label_value, errors);
    }
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
            let mut errors = FieldErrors::new();
            let is_valid = validate_selector(&Field::new(Some(&selector), "spec.selector"), &mut errors);
            assert_eq!(is_valid, fields.is_empty(), "{selector}");
            assert_eq!(errors.iter().map(|e| e.path.as_str()).collect::<Vec<_>>(), fields, "{selector}");
        }
    }
}
