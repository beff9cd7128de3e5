//! Validation of resource quotas.

use std::collections::BTreeSet;

use apimachinery::field::FieldErrors;
use apimachinery::names::Names;
use apimachinery::object::Object;
use serde_json::Value;

use crate::validation::internal;
use crate::validation::{Field, resource};

/// Allowed scopes of quotas.
const SCOPES: [&str; 7] = [
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
    "PriorityClass",
    "CrossNamespacePodAffinity",
    "VolumeAttributesClass",
];

/// Scopes that exclude each other.
const CONFLICTS: [(&str, &str); 2] = [("BestEffort", "NotBestEffort"), ("Terminating", "NotTerminating")];

/// Compute resources to which each scope applies, except `BestEffort` and `VolumeAttributesClass`.
const POD_RESOURCES: [&str; 6] =
    ["cpu", "memory", "limits.cpu", "limits.memory", "requests.cpu", "requests.memory"];

/// Resources to which the scope `VolumeAttributesClass` applies.
const CLAIM_RESOURCES: [&str; 2] = ["persistentvolumeclaims", "requests.storage"];

/// Validates the spec.
pub(super) fn validate(object: &Object, names: &Names) -> FieldErrors {
    let spec = Field::new(object.get("spec"), "spec");
    let mut errors = FieldErrors::new();
    let hard = spec.child("hard");
    validate_amounts(&hard, names, &mut errors);
    validate_scope_list(&spec.child("scopes"), &hard, &mut errors);
    validate_scope_selector(&spec.child("scopeSelector"), &hard, &mut errors);
    errors
}

/// Validates an update: the scopes do not change.
pub(super) fn validate_update(new: &Object, old: &Object) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let (new, old) = (Field::new(new.get("spec"), "spec"), Field::new(old.get("spec"), "spec"));
    let scopes = new.child("scopes");
    let set = |field: &Field<'_, '_>| -> BTreeSet<String> {
        field.list().iter().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    if set(&scopes) != set(&old.child("scopes")) {
        errors.push(scopes.invalid("field is immutable"));
    }
    errors
}

/// Validates a new status.
pub(super) fn validate_status(object: &Object, names: &Names) -> FieldErrors {
    let status = Field::new(object.get("status"), "status");
    let mut errors = FieldErrors::new();
    for name in ["hard", "used"] {
        validate_amounts(&status.child(name), names, &mut errors);
    }
    errors
}

fn validate_amounts(amounts: &Field<'_, '_>, names: &Names, errors: &mut FieldErrors) {
    for (name, amount) in amounts.entries() {
        resource::check_quota_name(&amount, name, errors);
        resource::check_amount(&amount, name, names, errors);
    }
}

/// Whether a scope applies to a resource of a quota.
fn is_applicable(scope: &str, resource: &str) -> bool {
    match scope {
        "BestEffort" => resource == "pods",
        "VolumeAttributesClass" => CLAIM_RESOURCES.contains(&resource),
        _ if SCOPES.contains(&scope) => resource == "pods" || POD_RESOURCES.contains(&resource),
        _ => true,
    }
}

/// The number of standard resources in a quota to which a scope does not apply.
fn count_inapplicable(scope: &str, hard: &Field<'_, '_>) -> usize {
    hard.entries()
        .filter(|(resource, _)| resource::is_standard_quota(resource) && !is_applicable(scope, resource))
        .count()
}

fn validate_scope_list(scopes: &Field<'_, '_>, hard: &Field<'_, '_>, errors: &mut FieldErrors) {
    let mut present = BTreeSet::new();
    for scope in scopes.items() {
        if !SCOPES.contains(&scope.text()) {
            errors.push(scopes.invalid("unsupported scope"));
        }
        for _ in 0..count_inapplicable(scope.text(), hard) {
            errors.push(scopes.invalid("unsupported scope applied to resource"));
        }
        present.insert(scope.text());
    }
    for (first, second) in CONFLICTS {
        if present.contains(first) && present.contains(second) {
            errors.push(scopes.invalid("conflicting scopes"));
        }
    }
}

/// Validates the scope selector. Paths have no index, as in kube-apiserver.
fn validate_scope_selector(selector: &Field<'_, '_>, hard: &Field<'_, '_>, errors: &mut FieldErrors) {
    let expressions = selector.child("matchExpressions");
    let mut present = BTreeSet::new();
    for requirement in expressions.list() {
        let requirement = expressions.with_value(Some(requirement));
        let (scope, operator) = (requirement.child("scopeName"), requirement.child("operator"));
        if !SCOPES.contains(&scope.text()) {
            errors.push(scope.invalid_value(scope.text(), "unsupported scope"));
        }
        for _ in 0..count_inapplicable(scope.text(), hard) {
            // As in kube-apiserver, the error at the expressions shows the whole selector.
            let selector = expressions.with_value(selector.value());
            let detail = "unsupported scope applied to resource";
            errors.push(internal::invalid_of_type(&selector, "core/v1.ScopeSelector", detail));
        }
        let has_values = matches!(scope.text(), "PriorityClass" | "VolumeAttributesClass");
        if SCOPES.contains(&scope.text()) && !has_values && operator.text() != "Exists" {
            errors.push(operator.invalid(
                "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, \
                 ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or \
                 ResourceQuotaScopeCrossNamespacePodAffinity",
            ));
        }
        let values = requirement.child("values");
        match operator.text() {
            "In" | "NotIn" => {
                if values.list().is_empty() {
                    let detail =
                        "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
                    errors.push(values.required(detail));
                }
            }
            "Exists" | "DoesNotExist" => {
                if !values.list().is_empty() {
                    let detail =
                        "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector";
                    errors.push(values.invalid(detail));
                }
            }
            text => errors.push(operator.invalid_value(text, "not a valid selector operator")),
        }
        present.insert(scope.text());
    }
    for (first, second) in CONFLICTS {
        if present.contains(first) && present.contains(second) {
            errors.push(expressions.invalid("conflicting scopes"));
        }
    }
}
