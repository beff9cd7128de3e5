//! Syntax of validation rules, without the expressions themselves.

use apimachinery::field::FieldError;
use apimachinery::names::SchemaExtension;
use apimachinery::object::Value;

use super::field_path::resolve;
use super::props::Props;
use super::schema_path::{SchemaErrors, SchemaPath};
use super::structure::find_unsupported;
use crate::path_names::PathSyntax;

const REASONS: [&str; 4] =
    ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];

const NOT_EMPTY: &str = "must be non-empty if specified";
const ONE_LINE: &str = "must not contain line breaks";

/// Validates the rules of one part of a schema.
pub(super) fn validate_rules(schema: Props<'_>, path: &SchemaPath<'_>, errors: &mut SchemaErrors<'_>) {
    let rules = schema.extension_list(SchemaExtension::Validations);
    let path = path.field(errors.extension(SchemaExtension::Validations));
    // Field paths of a schema that is not structural are not resolved.
    let mut is_structural = None;
    for (index, rule) in rules.iter().enumerate() {
        let Some(rule) = Props::from_value(rule) else { continue };
        let path = path.index(index);
        validate_texts(rule, &path, errors);
        if let Some(reason) = rule.get("reason").and_then(Value::as_str)
            && !REASONS.contains(&reason)
        {
            errors.add(&path.field("reason"), |path| FieldError::not_supported(path, reason, &REASONS));
        }
        let field_path = rule.text("fieldPath");
        if field_path.is_empty() {
            continue;
        }
        let path = path.field("fieldPath");
        if field_path.trim().is_empty() {
            errors.add(&path, |path| FieldError::invalid(path, field_path, NOT_EMPTY));
        }
        if has_line_break(field_path) {
            errors.add(&path, |path| FieldError::invalid(path, field_path, ONE_LINE));
        }
        if *is_structural.get_or_insert_with(|| find_unsupported(schema, errors.names).is_none())
            && resolve(field_path, schema, PathSyntax::DottedOrQuoted).is_err()
        {
            errors.add(&path, |path| FieldError::invalid(path, field_path, "must be a valid path"));
        }
    }
}

/// Validates the rule, the message and the message expression.
fn validate_texts(rule: Props<'_>, path: &SchemaPath<'_>, errors: &mut SchemaErrors<'_>) {
    let (text, message) = (rule.text("rule").trim(), rule.text("message"));
    let message_path = path.field("message");
    if text.is_empty() {
        errors.require(&path.field("rule"), "rule is not specified");
    } else if !message.is_empty() && message.trim().is_empty() {
        errors.add(&message_path, |path| FieldError::invalid(path, message, NOT_EMPTY));
    } else if has_line_break(message.trim()) {
        errors.add(&message_path, |path| FieldError::invalid(path, message, ONE_LINE));
    } else if has_line_break(text) && message.is_empty() {
        errors.require(&message_path, "message must be specified if rule contains line breaks");
    }
    let expression = rule.text("messageExpression");
    if !expression.is_empty() && expression.trim().is_empty() {
        errors.require(&path.field("messageExpression"), NOT_EMPTY);
    }
}

fn has_line_break(text: &str) -> bool {
    text.contains(['\n', '\r'])
}

#[cfg(test)]
mod tests {
    use super::*;
    use apimachinery::field::FieldPath;
    use apimachinery::names::{Names, Preset};
    use serde_json::json;

    #[track_caller]
    fn check(rule: Value, expected: &[&str]) {
        let names = Names::new(Preset::Svc, "example.test").unwrap();
        let schema = json!({"properties": {"a": {"type": "string"}}, "x-kubernetes-validations": [rule]});
        let root = FieldPath::new("s");
        let mut errors = SchemaErrors::new(&names);
        validate_rules(Props::from_value(&schema).unwrap(), &SchemaPath::root(&root), &mut errors);
        let errors: Vec<String> = errors
            .errors
            .iter()
            .map(|error| error.to_string().replace("s.x-svc-validations[0].", ""))
            .collect();
        assert_eq!(errors, expected, "{schema}");
    }

    #[test]
    fn rule_texts_are_validated() {
        check(json!({"rule": "true", "message": "m", "reason": "FieldValueInvalid", "fieldPath": ".a"}), &[]);
        check(json!({"rule": " "}), &["rule: Required value: rule is not specified"]);
        check(
            json!({"rule": "true", "message": " "}),
            &["message: Invalid value: \" \": must be non-empty if specified"],
        );
        check(
            json!({"rule": "true\n", "message": "a\nb\n"}),
            &["message: Invalid value: \"a\\nb\\n\": must not contain line breaks"],
        );
        check(
            json!({"rule": "a &&\n b"}),
            &["message: Required value: message must be specified if rule contains line breaks"],
        );
        check(
            json!({"rule": "true", "messageExpression": "\t", "reason": "Other", "fieldPath": ".b\n"}),
            &[
                "messageExpression: Required value: must be non-empty if specified",
                "reason: Unsupported value: \"Other\": supported values: \"FieldValueDuplicate\", \"FieldValueForbidden\", \"FieldValueInvalid\", \"FieldValueRequired\"",
                "fieldPath: Invalid value: \".b\\n\": must not contain line breaks",
                "fieldPath: Invalid value: \".b\\n\": must be a valid path",
            ],
        );
    }
}
