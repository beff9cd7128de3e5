//! Rules of a job beside its spec: the generated selector, changes, and the status.

use std::collections::BTreeSet;

use apimachinery::field::{FieldError, FieldErrors};
use apimachinery::names::Names;
use apimachinery::object::Object;
use serde_json::{Value, json};

use super::indexes::Indexes;
use super::job_spec;
use crate::defaults::{map_or_insert, part};
use crate::labels;
use crate::pods::validation as pods;
use crate::table::cell::PathReader as _;
use crate::validation::{Field, number, text};

/// Pod fields that can change while a job is suspended and has not started.
const MUTABLE_WHILE_SUSPENDED: [&str; 4] = ["nodeSelector", "affinity", "tolerations", "schedulingGates"];

/// Labels of the pods of a job: each key, and whether the value is the uid of the job rather than its name.
fn pod_labels(names: &Names) -> [(String, bool); 4] {
    [
        ("controller-uid".to_owned(), true),
        ("job-name".to_owned(), false),
        (names.label_sub_key("batch", "controller-uid"), true),
        (names.label_sub_key("batch", "job-name"), false),
    ]
}

/// Adds the labels of the job to the pod template, and a selector for them, unless the user chooses the selector.
/// Labels of the user stay: validation reports those with other values.
pub(super) fn generate_selector(job: &mut Object, names: &Names) {
    if job.flag("spec.manualSelector") {
        return;
    }
    let (uid, name) = (job.uid().to_owned(), job.name().to_owned());
    let Some(spec) = part(job, "spec") else { return };
    let labels = map_or_insert(spec, "template")
        .and_then(|template| map_or_insert(template, "metadata"))
        .and_then(|metadata| map_or_insert(metadata, "labels"));
    if let Some(labels) = labels {
        for (key, is_uid) in pod_labels(names) {
            labels.entry(key).or_insert_with(|| json!(if is_uid { &uid } else { &name }));
        }
    }
    let selected =
        map_or_insert(spec, "selector").and_then(|selector| map_or_insert(selector, "matchLabels"));
    if let Some(labels) = selected {
        labels.entry(names.label_sub_key("batch", "controller-uid")).or_insert_with(|| json!(uid));
    }
}

/// Whether the labels of the pod template are valid.
pub(super) fn has_valid_template_labels(job: &Object) -> bool {
    let mut errors = FieldErrors::new();
    text::check_labels(&Field::new(job.find("spec.template.metadata.labels"), "labels"), &mut errors);
    errors.is_empty()
}

/// Validates a new job.
pub(super) fn validate(job: &Object, names: &Names) -> FieldErrors {
    let spec = Field::new(job.get("spec"), "spec");
    let mut errors = FieldErrors::new();
    generated_selector(job, &spec, names, &mut errors);
    job_spec::validate(&spec, names, &mut errors);
    selector(&spec, &mut errors);
    errors
}

/// Validates that the selector and its labels are the generated ones.
fn generated_selector(job: &Object, spec: &Field<'_, '_>, names: &Names, errors: &mut FieldErrors) {
    let selector = spec.child("selector");
    let Some(selected) = selector.value() else { return };
    if spec.child("manualSelector").flag() {
        return;
    }
    let template = spec.child("template");
    let metadata = template.child("metadata");
    let labels = metadata.child("labels");
    for (key, is_uid) in pod_labels(names) {
        let expected = if is_uid { job.uid() } else { job.name() };
        let entry = labels.entry(&key, labels.value().and_then(|labels| labels.get(&key)));
        match entry.value().and_then(Value::as_str) {
            None => errors.push(entry.required(&format!("must be '{expected}'"))),
            Some(value) if value != expected => {
                let shown = labels.value().cloned().unwrap_or_default();
                errors.push(entry.invalid_value(shown, &format!("must be '{expected}'")));
            }
            Some(_) => {}
        }
    }
    let generated = |key: &str| json!({"matchLabels": {key: job.uid()}});
    if *selected != generated(&names.label_sub_key("batch", "controller-uid"))
        && *selected != generated("controller-uid")
    {
        errors.push(labels::invalid_selector(&selector, "`selector` not auto-generated"));
    }
}

/// Validates that the selector selects the pods of the template.
fn selector(spec: &Field<'_, '_>, errors: &mut FieldErrors) {
    let selector = spec.child("selector");
    match selector.value() {
        None => errors.push(selector.required("")),
        Some(value) => {
            let invalid = labels::validate_selector(value, &selector.path());
            if !invalid.is_empty() {
                errors.extend(invalid);
                return;
            }
        }
    }
    let matches = |labels: &Value| selector.value().is_some_and(|selector| labels::matches(selector, labels));
    pods::matching_labels(&spec.child("template"), matches, errors);
}

/// Validates an update of a job.
pub(super) fn validate_update(new: &Object, old: &Object, names: &Names) -> FieldErrors {
    let mut errors = validate(new, names);
    let (new_spec, old_spec) = (Field::new(new.get("spec"), "spec"), Field::new(old.get("spec"), "spec"));
    completions(&new_spec, &old_spec, &mut errors);
    immutable(&new_spec, &old_spec, "selector", &mut errors);
    template(old, &new_spec.child("template"), &mut errors);
    for name in ["completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy"] {
        immutable(&new_spec, &old_spec, name, &mut errors);
    }
    errors
}

fn immutable(new: &Field<'_, '_>, old: &Field<'_, '_>, name: &str, errors: &mut FieldErrors) {
    let field = new.child(name);
    if field.value() != old.child(name).value() {
        errors.push(match name {
            "selector" => labels::invalid_selector(&field, "field is immutable"),
            _ => field.invalid("field is immutable"),
        });
    }
}

/// Validates that completions change only with the parallelism of an indexed job.
fn completions(new: &Field<'_, '_>, old: &Field<'_, '_>, errors: &mut FieldErrors) {
    let completions = new.child("completions");
    if completions.value() == old.child("completions").value() {
        return;
    }
    if new.child("completionMode").text() != "Indexed" || !completions.is_present() {
        errors.push(completions.invalid("field is immutable"));
    } else if completions.integer() != new.child("parallelism").integer() {
        errors.push(completions.invalid("can only be modified in tandem with spec.parallelism"));
    }
}

/// Validates that the template changes only in its scheduling, while the job is suspended and has not started.
fn template(old: &Object, template: &Field<'_, '_>, errors: &mut FieldErrors) {
    let is_mutable = old.flag("spec.suspend") && old.text("status.startTime").is_empty();
    let comparable = |template: Option<&Value>| {
        let mut template = template.cloned().unwrap_or_default();
        if is_mutable {
            if let Some(Value::Object(metadata)) = template.get_mut("metadata") {
                metadata.remove("labels");
                metadata.remove("annotations");
            }
            if let Some(Value::Object(spec)) = template.get_mut("spec") {
                spec.retain(|field, _| !MUTABLE_WHILE_SUSPENDED.contains(&field.as_str()));
            }
        }
        template
    };
    if comparable(template.value()) != comparable(old.find("spec.template")) {
        errors.push(template.invalid("field is immutable"));
    }
}

/// Validates a new status of a job.
pub(super) fn validate_status(new: &Object, old: &Object) -> FieldErrors {
    let status = Field::new(new.get("status"), "status");
    let mut errors = FieldErrors::new();
    for name in ["active", "succeeded", "failed", "ready", "terminating"] {
        number::check_not_negative(&status.child(name), &mut errors);
    }
    let (ready, active) = (status.child("ready"), status.child("active").integer().unwrap_or(0));
    if ready.integer().is_some_and(|ready| ready > active) {
        errors.push(ready.invalid("cannot set more ready pods than active"));
    }
    uncounted_pods(&status, &mut errors);
    for name in ["succeeded", "failed"] {
        let count = status.child(name).integer().unwrap_or(0);
        if count < old.integer(&format!("status.{name}")) {
            let detail = format!("cannot decrease the {name} counter");
            errors.push(status.child(name).invalid_value(count, &detail));
        }
    }
    indexes(new, &status, &mut errors);
    conditions(new, &status, &mut errors);
    end_of_job(new, &status, &mut errors);
    start_of_job(new, old, &status, &mut errors);
    errors
}

fn uncounted_pods(status: &Field<'_, '_>, errors: &mut FieldErrors) {
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

fn indexes(job: &Object, status: &Field<'_, '_>, errors: &mut FieldErrors) {
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

/// Reports conditions that exclude each other, or lack the condition that comes before them.
fn conditions(job: &Object, status: &Field<'_, '_>, errors: &mut FieldErrors) {
    let is_true = |kind: &str| job.is_condition_true(kind);
    let path = status.child("conditions").path();
    let mut reject = |detail: &str| errors.push(FieldError::invalid_without_value(&path, detail));
    for (first, second, detail) in [
        ("Complete", "Failed", "cannot set Complete=True and Failed=true conditions"),
        ("Complete", "FailureTarget", "cannot set Complete=True and FailureTarget=true conditions"),
        ("Failed", "SuccessCriteriaMet", "cannot set Failed=True and SuccessCriteriaMet=true conditions"),
        (
            "FailureTarget",
            "SuccessCriteriaMet",
            "cannot set FailureTarget=True and SuccessCriteriaMet=true conditions",
        ),
    ] {
        if is_true(first) && is_true(second) {
            reject(detail);
        }
    }
    if is_true("Complete") && !is_true("SuccessCriteriaMet") {
        reject("cannot set Complete=True condition without the SuccessCriteriaMet=true condition");
        if job.find("spec.successPolicy").is_some() {
            reject("cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True");
        }
    }
    if is_true("Failed") && !is_true("FailureTarget") {
        reject("cannot set Failed=True condition without the FailureTarget=true condition");
    }
}

/// Validates that the start of a job that is not suspended does not change.
fn start_of_job(new: &Object, old: &Object, status: &Field<'_, '_>, errors: &mut FieldErrors) {
    let start = status.child("startTime");
    let has_started = !old.text("status.startTime").is_empty();
    if !has_started || new.flag("spec.suspend") || start.value() == old.find("status.startTime") {
        return;
    }
    let change = if start.is_present() { "modified" } else { "removed" };
    errors.push(start.required(&format!("startTime cannot be {change} for unsuspended job")));
}

/// Validates the times and counts of a job that has ended.
fn end_of_job(job: &Object, status: &Field<'_, '_>, errors: &mut FieldErrors) {
    let (complete, failed) = (job.is_condition_true("Complete"), job.is_condition_true("Failed"));
    let (start, end) = (status.child("startTime"), status.child("completionTime"));
    if complete && !end.is_present() {
        errors.push(end.required("completionTime is required for Complete jobs"));
    }
    if end.is_present() && !complete {
        errors.push(end.invalid("cannot set completionTime when there is no Complete=True condition"));
    }
    if end.is_present() && start.is_present() && end.text() < start.text() {
        errors.push(end.invalid("must be equal to or after `startTime`"));
    }
    if !(complete || failed) {
        return;
    }
    for name in ["active", "terminating"] {
        let count = status.child(name);
        if count.integer().is_some_and(|count| count > 0) {
            errors.push(count.invalid(&format!("{name}>0 is invalid for finished job")));
        }
    }
    let uncounted = status.child("uncountedTerminatedPods");
    if ["succeeded", "failed"].iter().any(|list| !uncounted.child(list).list().is_empty()) {
        errors.push(uncounted.invalid("must be empty for finished job"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
            let errors: Vec<String> = validate_status(&new, &old).iter().map(ToString::to_string).collect();
            assert_eq!(errors, expected.into_iter().collect::<Vec<_>>());
        }
    }
}
