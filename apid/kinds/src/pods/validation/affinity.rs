//! Node affinity, pod affinity and pod anti-affinity.

use std::collections::{BTreeMap, BTreeSet};

use apimachinery::field::{FieldError, FieldErrors};

use crate::validation::{Field, text};
use crate::{format, labels};

/// Validates the affinity of a pod.
pub(super) fn validate(affinity: &Field<'_, '_>, errors: &mut FieldErrors) {
    let node = affinity.child("nodeAffinity");
    let required = node.child("requiredDuringSchedulingIgnoredDuringExecution");
    if required.is_present() {
        required_node_selector(&required, errors);
    }
    for preferred in node.child("preferredDuringSchedulingIgnoredDuringExecution").items() {
        weight(&preferred, errors);
        node_selector_term(&preferred.child("preference"), errors);
    }
    for field in ["podAffinity", "podAntiAffinity"] {
        let pod = affinity.child(field);
        for term in pod.child("requiredDuringSchedulingIgnoredDuringExecution").items() {
            pod_affinity_term(&term, errors);
        }
        for preferred in pod.child("preferredDuringSchedulingIgnoredDuringExecution").items() {
            weight(&preferred, errors);
            pod_affinity_term(&preferred.child("podAffinityTerm"), errors);
        }
    }
}

fn weight(preferred: &Field<'_, '_>, errors: &mut FieldErrors) {
    let weight = preferred.child("weight");
    if !(1..=100).contains(&weight.integer().unwrap_or(0)) {
        errors.push(weight.invalid("must be in the range 1-100"));
    }
}

/// Validates the node selector of a required affinity, whose values must be label values.
pub(crate) fn required_node_selector(selector: &Field<'_, '_>, errors: &mut FieldErrors) {
    node_selector(selector, errors);
    label_values(selector, errors);
}

/// Validates a node selector.
pub(crate) fn node_selector(selector: &Field<'_, '_>, errors: &mut FieldErrors) {
    let terms = selector.child("nodeSelectorTerms");
    terms.require_items("must have at least one node selector term", errors);
    for term in terms.items() {
        node_selector_term(&term, errors);
    }
}

fn node_selector_term(term: &Field<'_, '_>, errors: &mut FieldErrors) {
    for requirement in term.child("matchExpressions").items() {
        label_requirement(&requirement, errors);
    }
    for requirement in term.child("matchFields").items() {
        field_requirement(&requirement, errors);
    }
}

/// Validates the values of a required node affinity as label values.
fn label_values(selector: &Field<'_, '_>, errors: &mut FieldErrors) {
    for term in selector.child("nodeSelectorTerms").items() {
        for requirement in term.child("matchExpressions").items() {
            for value in requirement.child("values").items() {
                text::check_format(&value, format::label_value, errors);
            }
        }
    }
}

fn label_requirement(requirement: &Field<'_, '_>, errors: &mut FieldErrors) {
    let (operator, values) = (requirement.child("operator"), requirement.child("values"));
    match operator.text() {
        "In" | "NotIn" if values.list().is_empty() => {
            errors.push(values.required("must be specified when `operator` is 'In' or 'NotIn'"));
        }
        "Exists" | "DoesNotExist" if !values.list().is_empty() => {
            errors
                .push(values.forbidden("may not be specified when `operator` is 'Exists' or 'DoesNotExist'"));
        }
        "Gt" | "Lt" if values.list().len() != 1 => {
            errors.push(values.required("must be specified single value when `operator` is 'Lt' or 'Gt'"));
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        _ => errors.push(operator.invalid_value(operator.text(), "not a valid selector operator")),
    }
    text::check_format(&requirement.child("key"), format::qualified_name, errors);
}

fn field_requirement(requirement: &Field<'_, '_>, errors: &mut FieldErrors) {
    let (operator, values) = (requirement.child("operator"), requirement.child("values"));
    match operator.text() {
        "In" | "NotIn" => {
            if values.list().len() != 1 {
                errors.push(values.required(
                    "must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
                ));
            }
        }
        _ => errors.push(operator.invalid_value(operator.text(), "not a valid selector operator")),
    }
    let key = requirement.child("key");
    if key.text() == "metadata.name" {
        for value in values.items() {
            text::check_format(&value, format::subdomain, errors);
        }
    } else {
        errors.push(key.invalid_value(key.text(), "not a valid field selector key"));
    }
}

fn pod_affinity_term(term: &Field<'_, '_>, errors: &mut FieldErrors) {
    labels::validate_selector(&term.child("labelSelector"), errors);
    labels::validate_selector(&term.child("namespaceSelector"), errors);
    for namespace in term.child("namespaces").items() {
        let field = term.child("namespace");
        text::check_name(&field, namespace.text(), format::label, errors);
    }
    label_keys(term, errors);
    let key = term.child("topologyKey");
    if key.text().is_empty() {
        errors.push(key.required("can not be empty"));
    }
    text::check_format(&key, format::qualified_name, errors);
}

/// Reports keys of `matchLabelKeys` that the selector has twice: the selector of a new pod already has a
/// requirement for each key. kube-apiserver reports the index of the key below the path of the term.
fn selected_keys(
    term: &Field<'_, '_>,
    selector: &Field<'_, '_>,
    matching: &Field<'_, '_>,
    errors: &mut FieldErrors,
) {
    let indexes: BTreeMap<&str, usize> = matching.items().map(|key| key.text()).zip(0..).collect();
    let labels = selector.child("matchLabels");
    let mut seen: BTreeSet<&str> = labels.entries().map(|(key, _)| key).collect();
    for expression in selector.child("matchExpressions").items() {
        let key = expression.child("key").text();
        if !seen.insert(key)
            && let Some(index) = indexes.get(key)
        {
            let detail = "exists in both matchLabelKeys and labelSelector";
            errors.push(FieldError::invalid(&term.path().index(*index), key, detail));
        }
    }
}

/// Validates `matchLabelKeys` and `mismatchLabelKeys`.
fn label_keys(term: &Field<'_, '_>, errors: &mut FieldErrors) {
    let selector = term.child("labelSelector");
    let (matching, mismatching) = (term.child("matchLabelKeys"), term.child("mismatchLabelKeys"));
    for keys in [&matching, &mismatching] {
        if !keys.list().is_empty() && !selector.is_present() {
            errors.push(keys.forbidden("must not be specified when labelSelector is not set"));
            continue;
        }
        for key in keys.items() {
            text::check_format(&key, format::qualified_name, errors);
        }
    }
    selected_keys(term, &selector, &matching, errors);
    let mismatched: BTreeSet<&str> = mismatching.items().map(|key| key.text()).collect();
    for key in matching.items() {
        if mismatched.contains(key.text()) {
            errors.push(key.invalid_value(key.text(), "exists in both matchLabelKeys and mismatchLabelKeys"));
        }
    }
}
