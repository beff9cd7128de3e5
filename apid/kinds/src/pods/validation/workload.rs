//! Rules of workloads about the selector, the pod template that the selector must match, and the replica
//! counts.

use apimachinery::field::FieldErrors;
use apimachinery::names::Names;
use apimachinery::object::Object;
use serde_json::Value;

use crate::validation::{Field, number, text};
use crate::{Context, labels};

/// Terms for a workload in the messages of kube-apiserver.
#[derive(Clone, Copy)]
pub(crate) struct WorkloadTerms {
    /// Term in the message about an empty selector: `deployment`.
    pub(crate) selector: &'static str,
    /// Term in the message about a deadline: `ReplicaSet`.
    pub(crate) deadline: &'static str,
}

/// Validates `selector` and `template` of a workload whose pods always restart.
pub(crate) fn workload(spec: &Field<'_, '_>, terms: WorkloadTerms, names: &Names, errors: &mut FieldErrors) {
    let selector = spec.child("selector");
    selector.require_present("", errors);
    let is_valid = label_selector(&selector, terms, errors);
    let template = spec.child("template");
    if is_valid {
        let matches =
            |labels: &Value| selector.value().is_some_and(|selector| labels::matches(selector, labels));
        matching_labels(&template, matches, errors);
    }
    always_restarting(&template, terms.deadline, names, errors);
}

/// Validates a label selector of a workload. Returns false for a malformed selector: the caller does not
/// compare such a selector with the labels of the pod template.
fn label_selector(selector: &Field<'_, '_>, terms: WorkloadTerms, errors: &mut FieldErrors) -> bool {
    let Some(value) = selector.value() else { return true };
    let is_valid = labels::validate_selector(selector, errors);
    if labels::selects_all(value) {
        errors.push(selector.invalid(&format!("empty selector is invalid for {}", terms.selector)));
    }
    if !is_valid {
        errors.push(labels::invalid_selector(selector, "invalid label selector"));
    }
    is_valid
}

/// Reports labels of a template that a selector does not match.
pub(crate) fn matching_labels(
    template: &Field<'_, '_>,
    matches: impl Fn(&Value) -> bool,
    errors: &mut FieldErrors,
) {
    let metadata = template.child("metadata");
    let labels = metadata.child("labels");
    if !matches(labels.value().unwrap_or(&Value::Null)) {
        errors.push(labels.invalid("`selector` does not match template `labels`"));
    }
}

/// Validates a pod template whose pods always restart and have no deadline.
pub(crate) fn always_restarting(
    template: &Field<'_, '_>,
    workload: &str,
    names: &Names,
    errors: &mut FieldErrors,
) {
    super::template_field(template, names, errors);
    let spec = template.child("spec");
    let policy = spec.child("restartPolicy");
    if policy.text() != "Always" {
        errors.push(policy.not_supported(&["Always"]));
    }
    let deadline = spec.child("activeDeadlineSeconds");
    if deadline.is_present() {
        errors.push(deadline.forbidden(&format!("activeDeadlineSeconds in {workload} is not Supported")));
    }
}

/// Validates an update of a workload: its new status, or its new spec and that the selector is unchanged.
pub(crate) fn workload_update(
    new: &Object,
    old: &Object,
    ctx: &Context<'_>,
    spec: fn(&Object, &Names) -> FieldErrors,
    status: fn(&Object) -> FieldErrors,
) -> FieldErrors {
    if ctx.subresource == "status" {
        return status(new);
    }
    let mut errors = spec(new, ctx.names);
    let (new, old) = (Field::new(new.get("spec"), "spec"), Field::new(old.get("spec"), "spec"));
    immutable_selector(&new, &old, &mut errors);
    errors
}

/// Reports a selector that an update changes.
fn immutable_selector(new: &Field<'_, '_>, old: &Field<'_, '_>, errors: &mut FieldErrors) {
    let selector = new.child("selector");
    if selector.value() != old.child("selector").value() {
        errors.push(labels::invalid_selector(&selector, "field is immutable"));
    }
}

/// Validates that no count of a status is negative. `bounds` lists pairs of counts: the first must not exceed
/// the second. Each pair has the text for the second count in the error.
pub(crate) fn status_counts(
    status: &Field<'_, '_>,
    counts: &[&str],
    bounds: &[(&str, &str, &str)],
    errors: &mut FieldErrors,
) {
    for name in counts {
        number::check_not_negative(&status.child(name), errors);
    }
    for (name, bound, described) in bounds {
        let count = status.child(name);
        let number = count.integer().unwrap_or(0);
        if number > status.child(bound).integer().unwrap_or(0) {
            errors.push(count.invalid_value(number, &format!("cannot be greater than {described}")));
        }
    }
}

/// Validates the status of a ReplicaSet or ReplicationController.
pub(crate) fn replicated_status(object: &Object) -> FieldErrors {
    let mut errors = FieldErrors::new();
    status_counts(
        &Field::new(object.get("status"), "status"),
        &["replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas", "observedGeneration"],
        &[
            ("fullyLabeledReplicas", "replicas", "status.replicas"),
            ("readyReplicas", "replicas", "status.replicas"),
            ("availableReplicas", "replicas", "status.replicas"),
            ("availableReplicas", "readyReplicas", "readyReplicas"),
        ],
        &mut errors,
    );
    errors
}

/// Validates a number of pods, or a percentage of them.
pub(crate) fn count_or_percent(field: &Field<'_, '_>, errors: &mut FieldErrors) {
    match field.value() {
        Some(Value::String(_)) => text::check_format(field, crate::format::percent, errors),
        _ => number::check_not_negative(field, errors),
    }
}

/// Reports a percentage above 100.
pub(crate) fn at_most_100_percent(field: &Field<'_, '_>, errors: &mut FieldErrors) {
    if percent(field).is_some_and(|percent| percent > 100) {
        errors.push(field.invalid("must not be greater than 100%"));
    }
}

/// The percentage in a text such as `25%`.
fn percent(field: &Field<'_, '_>) -> Option<i64> {
    let text = field.text();
    if crate::format::percent(text).is_empty() { text.strip_suffix('%')?.parse().ok() } else { None }
}

/// Whether a number of pods, or a percentage of them, is zero or invalid.
pub(crate) fn is_zero(field: &Field<'_, '_>) -> bool {
    match field.value() {
        Some(Value::String(text)) => percent(field).or_else(|| text.parse().ok()).unwrap_or(0) == 0,
        _ => field.integer().unwrap_or(0) == 0,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn text_without_percentage_counts_as_integer() {
        for (value, expected) in
            [(json!(0), true), (json!("0%"), true), (json!("-10%"), true), (json!("5%"), false)]
                .into_iter()
                .chain([(json!("80"), false), (json!("-1"), false), (json!("x"), true), (json!(3), false)])
        {
            assert_eq!(is_zero(&Field::new(Some(&value), "maxSurge")), expected, "{value}");
        }
    }
}
