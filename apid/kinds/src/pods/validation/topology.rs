//! Topology spread constraints.

use std::collections::{BTreeMap, BTreeSet};

use apimachinery::field::{FieldError, FieldErrors};

use crate::validation::{Field, text};
use crate::{format, labels};

/// Validates the topology spread constraints of a pod.
pub(super) fn validate<'v>(constraints: &Field<'v, '_>, errors: &mut FieldErrors) {
    let identity = |constraint: &Field<'v, '_>| {
        (constraint.child("topologyKey").text(), constraint.child("whenUnsatisfiable").text())
    };
    // Index of the last constraint for each pair of `topologyKey` and `whenUnsatisfiable`.
    let mut last = BTreeMap::new();
    for (i, constraint) in constraints.items().enumerate() {
        last.insert(identity(&constraint), i);
    }
    for (i, constraint) in constraints.items().enumerate() {
        let skew = constraint.child("maxSkew");
        let number = skew.integer().unwrap_or(0);
        if number <= 0 {
            errors.push(skew.invalid_value(number, "must be greater than zero"));
        }
        let key = constraint.child("topologyKey");
        if key.text().is_empty() {
            errors.push(key.required("can not be empty"));
        }
        let action = constraint.child("whenUnsatisfiable");
        text::check_listed(&action, &["DoNotSchedule", "ScheduleAnyway"], errors);
        // kube-apiserver reports a constraint that a later one repeats.
        if last.get(&identity(&constraint)).is_some_and(|last| *last > i) {
            let pair = constraint.child("{topologyKey, whenUnsatisfiable}");
            let shown = format!("{{{}, {}}}", key.text(), action.text());
            errors.push(FieldError::duplicate(&pair.path(), shown));
        }
        let domains = constraint.child("minDomains");
        if let Some(number) = domains.integer() {
            if number <= 0 {
                errors.push(domains.invalid("must be greater than zero"));
            }
            if action.text() != "DoNotSchedule" {
                let detail = format!(
                    "can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {}",
                    action.text()
                );
                errors.push(domains.invalid(&detail));
            }
        }
        for policy in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            text::check_supported(&constraint.child(policy), &["Honor", "Ignore"], errors);
        }
        label_keys(&constraint, errors);
        labels::validate_selector(&constraint.child("labelSelector"), errors);
    }
}

fn label_keys(constraint: &Field<'_, '_>, errors: &mut FieldErrors) {
    let keys = constraint.child("matchLabelKeys");
    let selector = constraint.child("labelSelector");
    if keys.list().is_empty() {
        return;
    }
    if !selector.is_present() {
        errors.push(keys.forbidden("must not be specified when labelSelector is not set"));
    }
    let expressions = selector.child("matchExpressions");
    let labels = selector.child("matchLabels");
    let expressed: BTreeSet<&str> =
        expressions.items().map(|expression| expression.child("key").text()).collect();
    for key in keys.items() {
        text::check_format(&key, format::qualified_name, errors);
        let is_selected = labels.child(key.text()).is_present() || expressed.contains(key.text());
        if is_selected {
            errors.push(key.invalid_value(key.text(), "exists in both matchLabelKeys and labelSelector"));
        }
    }
}
