//! Validation and table cells of admission policies.

use std::collections::BTreeSet;

use apimachinery::clock::Clock;
use apimachinery::field::FieldErrors;
use apimachinery::object::Object;
use serde_json::{Value, json};

use super::{expression_rules, match_rules};
use crate::admission_expressions::{Compiler, ObjectTypes, Purpose};
use crate::table::cell::{PathReader as _, UNSET};
use crate::validation::{Field, conditions, internal, text};
use crate::{Column, format};

/// Column with the kind of the parameters of a policy.
pub(super) const PARAMETER_KIND_COLUMN: Column = Column::text("ParamKind", "Kind of the parameters.");

/// Lists of a policy and their fields with expressions.
const EXPRESSIONS: [(&str, &str); 5] = [
    ("matchConditions", "expression"),
    ("variables", "expression"),
    ("validations", "expression"),
    ("validations", "messageExpression"),
    ("auditAnnotations", "valueExpression"),
];
/// Maximum number of audit annotations of a policy.
const ANNOTATIONS_MAX: usize = 20;
/// Maximum length, in bytes, of the expression of an audit annotation.
const VALUE_EXPRESSION_MAX: usize = 5 * 1024;

/// The table cells of a policy: the kind of its parameters.
pub(super) fn cells(policy: &Object, _clock: &dyn Clock) -> Vec<Value> {
    let parameters = policy.find("spec.paramKind").map_or_else(
        || UNSET.to_owned(),
        |kind| format!("{}/{}", kind.text("apiVersion"), kind.text("kind")),
    );
    vec![json!(parameters)]
}

/// Validates the spec. Expressions of the stored object `old` may use libraries of later releases.
pub(super) fn validate(object: &Object, old: Option<&Object>) -> FieldErrors {
    let spec = Field::new(object.get("spec"), "spec");
    let has_variables = !spec.child("variables").list().is_empty();
    let types = ObjectTypes::dynamic(spec.child("paramKind").is_present());
    let stored = stored_expressions(old, &EXPRESSIONS);
    let mut compiler = Compiler::of_new(types, has_variables, stored);
    let mut errors = FieldErrors::new();
    let failure = spec.child("failurePolicy");
    failure.require_present("", &mut errors);
    match_rules::validate_failure_policy(&failure, &mut errors);
    validate_parameter_kind(&spec.child("paramKind"), &mut errors);
    validate_match_constraints(&spec.child("matchConstraints"), &mut errors);
    let conditions = spec.child("matchConditions");
    let is_unchanged = old.is_some_and(|old| old.at(&["spec", "matchConditions"]) == conditions.value());
    if !is_unchanged {
        expression_rules::validate_conditions(&conditions, &compiler, &mut errors);
    }
    expression_rules::validate_variables(&spec.child("variables"), &mut compiler, &mut errors);
    let (validations, annotations) = (spec.child("validations"), spec.child("auditAnnotations"));
    if validations.list().is_empty() && annotations.list().is_empty() {
        for list in [&validations, &annotations] {
            errors.push(list.required("validations or auditAnnotations must contain at least one item"));
        }
    }
    validations.items().for_each(|item| validate_validation(&item, &compiler, &mut errors));
    validate_audit_annotations(&annotations, object.name(), &compiler, &mut errors);
    errors
}

/// Validates the match constraints of a policy.
pub(super) fn validate_match_constraints(constraints: &Field<'_, '_>, errors: &mut FieldErrors) {
    if !constraints.is_present() {
        errors.push(constraints.required(""));
        return;
    }
    match_rules::validate_match_resources(constraints, errors);
    constraints.child("resourceRules").require_items("", errors);
}

/// The expressions of a stored policy in fields of the items of lists in its spec.
pub(super) fn stored_expressions<'p>(
    policy: Option<&'p Object>,
    fields: &[(&str, &str)],
) -> BTreeSet<&'p str> {
    let Some(policy) = policy else { return BTreeSet::new() };
    let texts = fields.iter().flat_map(|(list, field)| {
        let items = policy.items(&format!("spec.{list}"));
        items.iter().filter_map(|item| item.find(field)?.as_str())
    });
    texts.collect()
}

/// Validates a new status.
pub(super) fn validate_status(object: &Object) -> FieldErrors {
    let status = Field::new(object.get("status"), "status");
    let mut errors = FieldErrors::new();
    let checking = status.child("typeChecking");
    for warning in checking.child("expressionWarnings").items() {
        for name in ["fieldRef", "warning"] {
            text::require(&warning.child(name), &mut errors);
        }
    }
    conditions::validate(&status.child("conditions"), &mut errors);
    errors
}

/// Validates the kind of the parameters.
pub(super) fn validate_parameter_kind(parameters: &Field<'_, '_>, errors: &mut FieldErrors) {
    if !parameters.is_present() {
        return;
    }
    let (version, kind) = (parameters.child("apiVersion"), parameters.child("kind"));
    validate_group_version(&version, errors);
    if kind.text().is_empty() {
        errors.push(kind.required(""));
        return;
    }
    let invalid = format::label_1035(&kind.text().to_lowercase());
    if !invalid.is_empty() {
        let detail = format!("may have mixed case, but should otherwise match: {}", invalid.join(","));
        errors.push(kind.invalid(&detail));
    }
}

fn validate_group_version(field: &Field<'_, '_>, errors: &mut FieldErrors) {
    let (group, version) = match field.text().split_once('/') {
        None if field.text().is_empty() => {
            errors.push(field.required(""));
            return;
        }
        None => ("", field.text()),
        Some((_, version)) if version.contains('/') => {
            errors.push(field.invalid(&format!("unexpected GroupVersion string: {}", field.text())));
            return;
        }
        Some(parts) => parts,
    };
    if !group.is_empty() {
        let invalid = format::subdomain(group);
        if !invalid.is_empty() {
            errors.push(field.invalid_value(group, &invalid.join(",")));
        }
    }
    let invalid = format::label_1035(version);
    if !invalid.is_empty() {
        errors.push(field.invalid_value(version, &invalid.join(",")));
    }
}

fn validate_validation(validation: &Field<'_, '_>, compiler: &Compiler<'_>, errors: &mut FieldErrors) {
    let (expression, message) = (validation.child("expression"), validation.child("message"));
    let is_blank = |field: &Field<'_, '_>| !field.text().is_empty() && field.text().trim().is_empty();
    if expression.text().trim().is_empty() {
        errors.push(expression.required("expression is not specified"));
    } else {
        expression_rules::validate_expression(&expression, Purpose::Validation, compiler, errors);
    }
    let message_expression = validation.child("messageExpression");
    if is_blank(&message_expression) {
        errors.push(message_expression.invalid("must be non-empty if specified"));
    } else if !message_expression.text().is_empty() {
        expression_rules::validate_expression(&message_expression, Purpose::Message, compiler, errors);
    }
    if is_blank(&message) {
        errors.push(message.invalid("message must be non-empty if specified"));
    } else if message.text().trim().contains(['\n', '\r']) {
        errors.push(message.invalid("must not contain line breaks"));
    }
    let reasons = &["Forbidden", "Invalid", "RequestEntityTooLarge"];
    text::check_supported(&validation.child("reason"), reasons, errors);
}

/// Validates the audit annotations. Their keys get the name of the policy as a prefix.
fn validate_audit_annotations(
    annotations: &Field<'_, '_>,
    policy: &str,
    compiler: &Compiler<'_>,
    errors: &mut FieldErrors,
) {
    if annotations.list().len() > ANNOTATIONS_MAX {
        let owner = "admissionregistration/v1.ValidatingAdmissionPolicySpec";
        let detail = format!("must not have more than {ANNOTATIONS_MAX} auditAnnotations");
        errors.push(internal::invalid_of_field(annotations, owner, "auditAnnotations", &detail));
    }
    let mut seen = BTreeSet::new();
    for annotation in annotations.items() {
        let (key, expression) = (annotation.child("key"), annotation.child("valueExpression"));
        let qualified =
            if policy.is_empty() { key.text().to_owned() } else { format!("{policy}/{}", key.text()) };
        text::check_name(&key, qualified.as_str(), format::qualified_name, errors);
        let trimmed = expression.text().trim();
        if trimmed.is_empty() {
            errors.push(expression.required("valueExpression is not specified"));
        } else if trimmed.len() > VALUE_EXPRESSION_MAX {
            let detail = format!("must not exceed {VALUE_EXPRESSION_MAX} bytes in length");
            errors.push(expression.required(&detail));
        } else {
            expression_rules::validate_expression(&expression, Purpose::AuditAnnotation, compiler, errors);
        }
        if !seen.insert(key.text()) {
            errors.push(key.duplicate_value(key.text()));
        }
    }
}
