//! Rules of a job outside its spec: the generated selector, and the changes of an update.

use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::names::Names;
use apimachinery::object::{Map, Object};
use serde_json::{Value, json};

use super::job_spec;
use crate::defaults::{map_or_insert, part};
use crate::pods::validation as pods;
use crate::table::cell::PathReader as _;
use crate::validation::{Field, internal, text};
use crate::{format, labels};

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

/// Adds labels with the uid and name of the job to the pod template, and a selector on the uid. Does nothing
/// if the user chooses the selector (`manualSelector`). Labels that the user has set keep their values:
/// validation reports a value that differs from the uid or name of the job.
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
    validate_generated_selector(job, &pod_labels(names), &spec, &mut errors);
    job_spec::validate(&spec, names, &mut errors);
    validate_selector(&spec, &mut errors);
    validate_hostnames(job, &mut errors);
    errors
}

/// Validates that the name of an indexed job is short enough for the hostnames of its pods: NAME-INDEX is a
/// DNS label. The pod with the highest index has the longest hostname.
fn validate_hostnames(job: &Object, errors: &mut FieldErrors) {
    let completions = job.integer("spec.completions");
    if job.text("spec.completionMode") != "Indexed" || completions <= 0 {
        return;
    }
    let hostname = format!("{}-{}", job.name(), completions - 1);
    if !format::label(&hostname).is_empty() {
        let detail = format!("will not able to create pod with invalid DNS label: {hostname}");
        errors.push(FieldError::invalid(&FieldPath::new("metadata").child("name"), job.name(), &detail));
    }
}

/// Validates that the selector and the pod labels have the values that [`generate_selector`] sets.
fn validate_generated_selector(
    job: &Object,
    pod_labels: &[(String, bool)],
    spec: &Field<'_, '_>,
    errors: &mut FieldErrors,
) {
    let selector = spec.child("selector");
    let Some(selected) = selector.value() else { return };
    if spec.child("manualSelector").flag() {
        return;
    }
    let template = spec.child("template");
    let metadata = template.child("metadata");
    let labels = metadata.child("labels");
    for (key, is_uid) in pod_labels {
        let expected = if *is_uid { job.uid() } else { job.name() };
        let entry = labels.entry(key, labels.value().and_then(|labels| labels.get(key)));
        match entry.value().and_then(Value::as_str) {
            None => errors.push(entry.required(&format!("must be '{expected}'"))),
            Some(value) if value != expected => {
                let all_labels = labels.value().cloned().unwrap_or_default();
                errors.push(entry.invalid_value(all_labels, &format!("must be '{expected}'")));
            }
            Some(_) => {}
        }
    }
    let expected: Map<String, Value> = pod_labels
        .iter()
        .map(|(key, is_uid)| (key.clone(), Value::from(if *is_uid { job.uid() } else { job.name() })))
        .collect();
    let is_valid = labels::validate_selector(&selector, &mut FieldErrors::new());
    if is_valid && !labels::matches(selected, &Value::Object(expected)) {
        errors.push(labels::invalid_selector(&selector, "`selector` not auto-generated"));
    }
}

/// Validates that the selector selects the pods of the template.
fn validate_selector(spec: &Field<'_, '_>, errors: &mut FieldErrors) {
    let selector = spec.child("selector");
    selector.require_present("", errors);
    if !labels::validate_selector(&selector, errors) {
        return;
    }
    let matches = |labels: &Value| selector.value().is_some_and(|selector| labels::matches(selector, labels));
    pods::matching_labels(&spec.child("template"), matches, errors);
}

/// Validates an update of a job.
pub(super) fn validate_update(new: &Object, old: &Object, names: &Names) -> FieldErrors {
    let (new_spec, old_spec) = (Field::new(new.get("spec"), "spec"), Field::new(old.get("spec"), "spec"));
    let mut errors = FieldErrors::new();
    // A job without the labels with a prefix needs none of them: it has a selector of its own, or an older release
    // has created it.
    let mut pod_labels = pod_labels(names).to_vec();
    let old_labels = old.find("spec.template.metadata.labels");
    let has_label = |(key, _): &(String, bool)| old_labels.is_some_and(|labels| labels.get(key).is_some());
    if !pod_labels.iter().filter(|(key, _)| key.contains('/')).all(has_label) {
        pod_labels.retain(|(key, _)| !key.contains('/'));
    }
    validate_generated_selector(new, &pod_labels, &new_spec, &mut errors);
    let mut spec_errors = FieldErrors::new();
    job_spec::validate(&new_spec, names, &mut spec_errors);
    validate_selector(&new_spec, &mut spec_errors);
    // kube-apiserver validates the spec of an update twice.
    errors.extend(spec_errors.clone());
    validate_hostnames(new, &mut errors);
    errors.extend(spec_errors);
    validate_completions(&new_spec, &old_spec, &mut errors);
    check_immutable(&new_spec, &old_spec, "selector", &mut errors);
    validate_template(old, &new_spec.child("template"), &mut errors);
    for name in ["completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy"] {
        check_immutable(&new_spec, &old_spec, name, &mut errors);
    }
    errors
}

fn check_immutable(new: &Field<'_, '_>, old: &Field<'_, '_>, name: &str, errors: &mut FieldErrors) {
    let field = new.child(name);
    if field.value() != old.child(name).value() {
        errors.push(match name {
            "selector" => labels::invalid_selector(&field, "field is immutable"),
            _ => internal::invalid_of_field(&field, "batch/v1.JobSpec", name, "field is immutable"),
        });
    }
}

/// Validates a change of `completions`: only an indexed job can change it, and the new value must equal the
/// new `parallelism`.
fn validate_completions(new: &Field<'_, '_>, old: &Field<'_, '_>, errors: &mut FieldErrors) {
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

/// Validates that the pod template does not change. While the job is suspended and has not started, the
/// labels, the annotations and the fields of [`MUTABLE_WHILE_SUSPENDED`] can change.
fn validate_template(old: &Object, template: &Field<'_, '_>, errors: &mut FieldErrors) {
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
        errors.push(internal::invalid_of_type(template, "core/v1.PodTemplateSpec", "field is immutable"));
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;

    use super::*;

    #[test]
    fn generated_selector_selects_the_generated_labels() {
        for (selector, is_generated) in [
            (json!({"matchLabels": {"controller-uid": "u"}}), true),
            (json!({"matchLabels": {"job-name": "j", "controller-uid": "u"}}), true),
            (json!({}), true),
            (json!({"matchLabels": {"controller-uid": "u", "a": "b"}}), false),
            (json!({"matchExpressions": [{"key": "a", "operator": "Exists"}]}), false),
        ] {
            let job = json!({"metadata": {"name": "j", "uid": "u"}, "spec": {"selector": selector}});
            let job = Object::from_value(job).unwrap();
            let mut errors = FieldErrors::new();
            let spec = Field::new(job.get("spec"), "spec");
            let names = Names::new(Preset::Kubernetes, "").unwrap();
            validate_generated_selector(&job, &pod_labels(&names), &spec, &mut errors);
            let has_error = errors.iter().any(|error| error.path.as_str() == "spec.selector");
            assert_eq!(has_error, !is_generated, "{selector}");
        }
    }

    #[test]
    fn job_without_prefixed_labels_needs_none_on_update() {
        let job = |labels: Value, manual: bool| {
            let template = json!({"metadata": {"labels": labels}, "spec": {}});
            let spec = json!({"manualSelector": manual, "selector": {"matchLabels": {"a": "b"}}, "template": template});
            Object::from_value(json!({"metadata": {"name": "j", "uid": "u"}, "spec": spec})).unwrap()
        };
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        for (old_labels, expected) in [
            (json!({"a": "b"}), 2),
            (json!({"a": "b", "batch.kubernetes.io/job-name": "j"}), 2),
            (
                json!({"a": "b", "batch.kubernetes.io/job-name": "j", "batch.kubernetes.io/controller-uid": "u"}),
                4,
            ),
        ] {
            let (old, new) = (job(old_labels.clone(), true), job(json!({"a": "b"}), false));
            let errors = validate_update(&new, &old, &names);
            let labels = errors.iter().filter(|error| error.path.as_str().contains("metadata.labels["));
            assert_eq!(labels.count(), expected, "{old_labels}");
        }
    }
}
