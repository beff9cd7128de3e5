//! Rules of the status of a job, and of its changes.

use std::collections::BTreeSet;

use apimachinery::field::{FieldError, FieldErrors};
use apimachinery::object::Object;

use super::indexes::Indexes;
use crate::table::cell::PathReader as _;
use crate::validation::internal;
use crate::validation::{Field, number};

/// Validates a new status of a job.
pub(super) fn validate(new: &Object, old: &Object) -> FieldErrors {
    let status = Field::new(new.get("status"), "status");
    let mut errors = FieldErrors::new();
    for name in ["active", "succeeded", "failed", "ready", "terminating"] {
        number::check_not_negative(&status.child(name), &mut errors);
    }
    validate_uncounted_pods(&status, &mut errors);
    validate_finished_job(new, &status, &mut errors);
    validate_indexes(new, &status, &mut errors);
    require_zero_when_finished(&status, "terminating", is_finished(new), &mut errors);
    let (ready, active) = (status.child("ready"), status.child("active").integer().unwrap_or(0));
    if ready.integer().is_some_and(|ready| ready > active) {
        errors.push(ready.invalid("cannot set more ready pods than active"));
    }
    validate_success_criteria(new, &status, &mut errors);
    validate_update(new, old, &status, &mut errors);
    errors
}

fn validate_uncounted_pods(status: &Field<'_, '_>, errors: &mut FieldErrors) {
    let uncounted = status.child("uncountedTerminatedPods");
    let mut seen = BTreeSet::new();
    for list in ["succeeded", "failed"] {
        for uid in uncounted.child(list).items() {
            if uid.text().is_empty() {
                errors.push(uid.invalid_value("", "must not be empty"));
            } else if !seen.insert(uid.text()) {
                errors.push(uid.duplicate());
            }
        }
    }
}

fn validate_indexes(job: &Object, status: &Field<'_, '_>, errors: &mut FieldErrors) {
    let completions = job.integer("spec.completions");
    let mut parse = |name: &str| {
        let field = status.child(name);
        let parsed = Indexes::parse(field.text(), completions);
        parsed.map_err(|error| errors.push(field.invalid(&format!("error parsing {name}: {error}")))).ok()
    };
    let (completed, failed) = (parse("completedIndexes"), parse("failedIndexes"));
    if let (Some(completed), Some(failed)) = (completed, failed)
        && let Some(index) = completed.overlap(&failed)
    {
        let detail = format!("failedIndexes and completedIndexes overlap at index: {index}");
        errors.push(status.child("failedIndexes").invalid(&detail));
    }
}

/// Reports conditions that exclude `SuccessCriteriaMet`, and `Complete` without the required `SuccessCriteriaMet`.
fn validate_success_criteria(job: &Object, status: &Field<'_, '_>, errors: &mut FieldErrors) {
    let is_true = |kind: &str| job.is_condition_true(kind);
    let path = status.child("conditions").path();
    for other in ["Failed", "FailureTarget"] {
        if is_true("SuccessCriteriaMet") && is_true(other) {
            let detail = format!("cannot set {other}=True and SuccessCriteriaMet=true conditions");
            errors.push(FieldError::invalid_without_value(&path, &detail));
        }
    }
    if job.find("spec.successPolicy").is_some() && is_true("Complete") && !is_true("SuccessCriteriaMet") {
        let detail = "cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True";
        errors.push(FieldError::invalid_without_value(&path, detail));
    }
}

fn is_finished(job: &Object) -> bool {
    job.is_condition_true("Complete") || job.is_condition_true("Failed")
}

fn require_zero_when_finished(
    status: &Field<'_, '_>,
    name: &'static str,
    is_finished: bool,
    errors: &mut FieldErrors,
) {
    let count = status.child(name);
    if is_finished && count.integer().is_some_and(|number| number > 0) {
        errors.push(count.invalid(&format!("{name}>0 is invalid for finished job")));
    }
}

/// Validates the conditions, times and counts of a job that has ended.
fn validate_finished_job(job: &Object, status: &Field<'_, '_>, errors: &mut FieldErrors) {
    let is_true = |kind: &str| job.is_condition_true(kind);
    let is_complete = is_true("Complete");
    let path = status.child("conditions").path();
    for other in ["Failed", "FailureTarget"] {
        if is_complete && is_true(other) {
            let detail = format!("cannot set Complete=True and {other}=true conditions");
            errors.push(FieldError::invalid_without_value(&path, &detail));
        }
    }
    let (start, end) = (status.child("startTime"), status.child("completionTime"));
    if end.is_present() && !is_complete {
        errors.push(end.invalid("cannot set completionTime when there is no Complete=True condition"));
    }
    if is_complete && !end.is_present() {
        errors.push(end.required("completionTime is required for Complete jobs"));
    }
    if end.is_present() && start.is_present() && end.text() < start.text() {
        errors.push(end.invalid("must be equal to or after `startTime`"));
    }
    for (end, before) in [("Failed", "FailureTarget"), ("Complete", "SuccessCriteriaMet")] {
        if is_true(end) && !is_true(before) {
            let detail = format!("cannot set {end}=True condition without the {before}=true condition");
            errors.push(FieldError::invalid_without_value(&path, &detail));
        }
    }
    let is_finished = is_finished(job);
    require_zero_when_finished(status, "active", is_finished, errors);
    let uncounted = status.child("uncountedTerminatedPods");
    if is_finished && ["succeeded", "failed"].iter().any(|list| !uncounted.child(list).list().is_empty()) {
        errors.push(internal::invalid_of_type(
            &uncounted,
            "batch/v1.UncountedTerminatedPods",
            "must be empty for finished job",
        ));
    }
}

/// Validates that final conditions, counters and times of the old status do not change back.
fn validate_update(new: &Object, old: &Object, status: &Field<'_, '_>, errors: &mut FieldErrors) {
    let conditions = status.child("conditions").path();
    let is_disabled = |kind: &str| old.is_condition_true(kind) && !new.is_condition_true(kind);
    for kind in ["Failed", "Complete", "FailureTarget"] {
        if is_disabled(kind) {
            let detail = format!("cannot disable the terminal {kind}=True condition");
            errors.push(FieldError::invalid_without_value(&conditions, &detail));
        }
    }
    // An indexed job with equal completions and parallelism can scale down. Its number of succeeded pods can
    // then decrease.
    let is_elastic = new.text("spec.completionMode") == "Indexed"
        && new.find("spec.completions") == new.find("spec.parallelism");
    for (name, is_checked) in [("failed", true), ("succeeded", !is_elastic)] {
        let count = status.child(name).integer().unwrap_or(0);
        if is_checked && count < old.integer(&format!("status.{name}")) {
            let detail = format!("cannot decrease the {name} counter");
            errors.push(status.child(name).invalid_value(count, &detail));
        }
    }
    let (end, old_end) = (status.child("completionTime"), old.text("status.completionTime"));
    if end.is_present() && !old_end.is_empty() && end.text() != old_end {
        errors.push(end.invalid("field is immutable"));
    }
    validate_start_time(new, old, status, errors);
    if is_disabled("SuccessCriteriaMet") {
        let detail = "cannot disable the SuccessCriteriaMet=True condition";
        errors.push(FieldError::invalid_without_value(&conditions, detail));
    }
    let met = "SuccessCriteriaMet";
    if old.is_condition_true("Complete") && !old.is_condition_true(met) && new.is_condition_true(met) {
        let detail = "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions";
        errors.push(FieldError::invalid_without_value(&conditions, detail));
    }
}

/// Validates that the start time of a job that is not suspended does not change after it has been set.
fn validate_start_time(new: &Object, old: &Object, status: &Field<'_, '_>, errors: &mut FieldErrors) {
    let start = status.child("startTime");
    let has_started = !old.text("status.startTime").is_empty();
    if !has_started || new.flag("spec.suspend") || start.value() == old.find("status.startTime") {
        return;
    }
    let change = if start.is_present() { "modified" } else { "removed" };
    errors.push(start.required(&format!("startTime cannot be {change} for unsuspended job")));
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn start_time_of_job_changes_only_while_suspended() {
        let job = |is_suspended: bool, status: Value| {
            Object::from_value(json!({"spec": {"suspend": is_suspended}, "status": status})).unwrap()
        };
        let started = json!({"startTime": "2024-01-02T03:04:05Z"});
        for (is_suspended, status, expected) in [
            (false, started.clone(), None),
            (true, json!({}), None),
            (
                false,
                json!({}),
                Some("status.startTime: Required value: startTime cannot be removed for unsuspended job"),
            ),
            (
                false,
                json!({"startTime": "2024-01-02T03:04:06Z"}),
                Some("status.startTime: Required value: startTime cannot be modified for unsuspended job"),
            ),
        ] {
            let (new, old) = (job(is_suspended, status), job(is_suspended, started.clone()));
            let errors: Vec<String> = validate(&new, &old).iter().map(ToString::to_string).collect();
            assert_eq!(errors, expected.into_iter().collect::<Vec<_>>());
        }
    }
}
