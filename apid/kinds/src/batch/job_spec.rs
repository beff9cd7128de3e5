//! Validation of the spec of a job, which cron jobs share.

use std::collections::BTreeSet;

use apimachinery::field::{FieldError, FieldErrors};
use apimachinery::names::Names;
use apimachinery::object::Object;

use super::indexes::Indexes;
use crate::format;
use crate::pods::validation as pods;
use crate::pods::warnings::{is_new_generation, template as template_warnings};
use crate::table::cell::PathReader as _;
use crate::validation::internal;
use crate::validation::{Field, number, text};

/// Maximum value of `parallelism` and `maxFailedIndexes` of an indexed job. [`LARGE_JOB_MAX`] applies to jobs
/// whose `completions` are above this value.
const INDEXED_MAX: i64 = 100_000;
/// Maximum value of `parallelism` and `maxFailedIndexes` of an indexed job with a back-off limit per index
/// and more than [`INDEXED_MAX`] completions.
const LARGE_JOB_MAX: i64 = 10_000;
/// Maximum length, in bytes, of `managedBy`, the name of an external controller.
const MANAGED_BY_MAX: usize = 63;
/// Maximum number of rules of a success policy or pod failure policy.
const RULES_MAX: usize = 20;
/// Maximum number of exit codes in a rule of a pod failure policy.
const EXIT_CODES_MAX: usize = 255;
/// Maximum number of pod conditions in a rule of a pod failure policy.
const CONDITIONS_MAX: usize = 20;

/// Warnings about the job spec at a path of the object.
pub(super) fn warnings(new: &Object, old: Option<&Object>, path: &str, names: &Names) -> Vec<String> {
    let (spec, mut warnings) = (Field::new(new.find(path), path), Vec::new());
    let number = |name: &str| spec.child(name).integer().unwrap_or(0);
    let is_large = number("completions") > INDEXED_MAX && number("parallelism") > LARGE_JOB_MAX;
    if is_new_generation(new, old) && is_large && spec.child("completionMode").text() == "Indexed" {
        warnings.push(format!(
            "{path}: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, \
             Kubernetes might not be able to track completedIndexes when a big number of indexes fail"
        ));
    }
    warnings.extend(template_warnings(new, old, &format!("{path}.template"), names));
    warnings
}

/// Validates the spec of a job.
pub(super) fn validate(spec: &Field<'_, '_>, names: &Names, errors: &mut FieldErrors) {
    for name in [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ] {
        number::check_not_negative(&spec.child(name), errors);
    }
    let per_index = spec.child("backoffLimitPerIndex");
    if spec.child("maxFailedIndexes").is_present() && !per_index.is_present() {
        errors.push(per_index.required("when maxFailedIndexes is specified"));
    }
    validate_managed_by(&spec.child("managedBy"), errors);
    let mode = spec.child("completionMode");
    text::check_supported(&mode, &["NonIndexed", "Indexed"], errors);
    let is_indexed = mode.text() == "Indexed";
    if is_indexed {
        validate_indexed_job(spec, errors);
    } else {
        let is_non_indexed = !mode.is_present() || mode.text() == "NonIndexed";
        for name in ["backoffLimitPerIndex", "maxFailedIndexes", "successPolicy"] {
            let field = spec.child(name);
            if field.is_present() && (is_non_indexed || name == "successPolicy") {
                let detail = "requires indexed completion mode";
                errors.push(internal::invalid_of_field(&field, "batch/v1.JobSpec", name, detail));
            }
        }
    }
    validate_pod_failure_policy(spec, errors);
    if is_indexed {
        validate_success_policy(spec, errors);
    }
    validate_replacement_policy(spec, errors);
    pods::template_field(&spec.child("template"), names, errors);
    validate_restart_policy(spec, errors);
}

fn validate_managed_by(field: &Field<'_, '_>, errors: &mut FieldErrors) {
    if !field.is_present() {
        return;
    }
    text::check_domain_prefixed_path(field, errors);
    text::check_length(field, MANAGED_BY_MAX, errors);
}

fn validate_indexed_job(spec: &Field<'_, '_>, errors: &mut FieldErrors) {
    let (completions, parallelism) = (spec.child("completions"), spec.child("parallelism"));
    completions.require_present("when completion mode is Indexed", errors);
    let is_above = |field: &Field<'_, '_>, max: i64| field.integer().is_some_and(|number| number > max);
    if is_above(&parallelism, INDEXED_MAX) {
        let detail = format!("must be less than or equal to {INDEXED_MAX} when completion mode is Indexed");
        errors.push(parallelism.invalid(&detail));
    }
    let failed = spec.child("maxFailedIndexes");
    if let (Some(count), Some(all)) = (failed.integer(), completions.integer())
        && count > all
    {
        errors.push(failed.invalid("must be less than or equal to completions"));
    }
    if is_above(&failed, INDEXED_MAX) {
        errors.push(failed.invalid(&format!("must be less than or equal to {INDEXED_MAX}")));
    }
    if is_above(&completions, INDEXED_MAX) && spec.child("backoffLimitPerIndex").is_present() {
        if !failed.is_present() {
            let detail = format!("must be specified when completions is above {INDEXED_MAX}");
            errors.push(failed.required(&detail));
        }
        for field in [&parallelism, &failed] {
            if is_above(field, LARGE_JOB_MAX) {
                errors.push(field.invalid(&format!(
                    "must be less than or equal to {LARGE_JOB_MAX} when completions are above {INDEXED_MAX} and used \
                     with backoff limit per index"
                )));
            }
        }
    }
}

fn validate_restart_policy(spec: &Field<'_, '_>, errors: &mut FieldErrors) {
    let template = spec.child("template");
    let pod = template.child("spec");
    let policy = pod.child("restartPolicy");
    match policy.text() {
        "" | "Always" => errors.push(policy.required("valid values: \"OnFailure\", \"Never\"")),
        "OnFailure" if spec.child("podFailurePolicy").is_present() => {
            errors.push(policy.invalid("only \"Never\" is supported when podFailurePolicy is specified"));
        }
        "OnFailure" | "Never" => {}
        _ => errors.push(policy.not_supported(&["OnFailure", "Never"])),
    }
}

fn validate_replacement_policy(spec: &Field<'_, '_>, errors: &mut FieldErrors) {
    let has_failure_policy = spec.child("podFailurePolicy").is_present();
    let supported: &[&str] =
        if has_failure_policy { &["Failed"] } else { &["Failed", "TerminatingOrFailed"] };
    text::check_supported(&spec.child("podReplacementPolicy"), supported, errors);
}

fn validate_pod_failure_policy(spec: &Field<'_, '_>, errors: &mut FieldErrors) {
    let policy = spec.child("podFailurePolicy");
    let rules = policy.child("rules");
    rules.check_limit(RULES_MAX, errors);
    let template = spec.child("template");
    let pod = template.child("spec");
    let containers: BTreeSet<&str> = ["containers", "initContainers"]
        .iter()
        .flat_map(|list| pod.child(list).list())
        .filter_map(|container| container.get("name")?.as_str())
        .collect();
    for rule in rules.items() {
        validate_failure_rule(spec, &rule, &containers, errors);
    }
}

fn validate_failure_rule(
    spec: &Field<'_, '_>,
    rule: &Field<'_, '_>,
    containers: &BTreeSet<&str>,
    errors: &mut FieldErrors,
) {
    let action = rule.child("action");
    match action.text() {
        "" => {
            errors.push(action.required("valid values: [\"Count\" \"FailIndex\" \"FailJob\" \"Ignore\"]"));
        }
        "FailIndex" => {
            if !spec.child("backoffLimitPerIndex").is_present() {
                errors.push(action.invalid("requires the backoffLimitPerIndex to be set"));
            }
        }
        "Count" | "FailJob" | "Ignore" => {}
        _ => errors.push(action.not_supported(&["Count", "FailIndex", "FailJob", "Ignore"])),
    }
    let (codes, conditions) = (rule.child("onExitCodes"), rule.child("onPodConditions"));
    if codes.is_present() {
        validate_exit_codes(&codes, containers, errors);
    }
    validate_pod_conditions(&conditions, errors);
    let detail = match (codes.is_present(), conditions.list().is_empty()) {
        (true, false) => "specifying both OnExitCodes and OnPodConditions is not supported",
        (false, true) => "specifying one of OnExitCodes and OnPodConditions is required",
        _ => return,
    };
    errors.push(FieldError::invalid_without_value(&rule.path(), detail));
}

fn validate_exit_codes(codes: &Field<'_, '_>, containers: &BTreeSet<&str>, errors: &mut FieldErrors) {
    let operator = codes.child("operator");
    match operator.text() {
        "" => errors.push(operator.required("valid values: [\"In\" \"NotIn\"]")),
        "In" | "NotIn" => {}
        _ => errors.push(operator.not_supported(&["In", "NotIn"])),
    }
    let container = codes.child("containerName");
    if container.is_present() && !containers.contains(container.text()) {
        let detail = "must be one of the container or initContainer names in the pod template";
        errors.push(container.invalid(detail));
    }
    let values = codes.child("values");
    if values.list().is_empty() {
        errors.push(values.invalid("at least one value is required"));
    } else if values.list().len() > EXIT_CODES_MAX {
        errors.push(FieldError::too_many(&values.path(), values.list().len(), EXIT_CODES_MAX));
    }
    let mut seen = BTreeSet::new();
    let mut is_ordered = true;
    let mut previous = i64::MIN;
    for value in values.items() {
        let number = value.integer().unwrap_or(0);
        if operator.text() == "In" && number == 0 {
            errors.push(value.invalid("must not be 0 for the In operator"));
        }
        if !seen.insert(number) {
            errors.push(value.duplicate());
        }
        is_ordered &= previous <= number;
        previous = number;
    }
    if !is_ordered {
        errors.push(values.invalid("must be ordered"));
    }
}

fn validate_pod_conditions(conditions: &Field<'_, '_>, errors: &mut FieldErrors) {
    conditions.check_limit(CONDITIONS_MAX, errors);
    for condition in conditions.items() {
        text::check_format(&condition.child("type"), format::qualified_name, errors);
        let status = condition.child("status");
        match status.text() {
            "" => errors.push(status.required("valid values: [\"False\" \"True\" \"Unknown\"]")),
            "False" | "True" | "Unknown" => {}
            _ => errors.push(status.not_supported(&["False", "True", "Unknown"])),
        }
    }
}

fn validate_success_policy(spec: &Field<'_, '_>, errors: &mut FieldErrors) {
    let policy = spec.child("successPolicy");
    if !policy.is_present() {
        return;
    }
    let rules = policy.child("rules");
    if rules.list().is_empty() {
        let detail = "at least one rules must be specified when the successPolicy is specified";
        errors.push(rules.required(detail));
    }
    rules.check_limit(RULES_MAX, errors);
    let completions = spec.child("completions").integer().unwrap_or(0);
    for rule in rules.items() {
        validate_success_rule(&rule, completions, errors);
    }
}

fn validate_success_rule(rule: &Field<'_, '_>, completions: i64, errors: &mut FieldErrors) {
    let (count, indexes) = (rule.child("succeededCount"), rule.child("succeededIndexes"));
    if !count.is_present() && !indexes.is_present() {
        errors.push(rule.required("at least one of succeededCount or succeededIndexes must be specified"));
    }
    let mut index_count = None;
    if indexes.is_present() {
        // If the list is invalid, kube-apiserver continues with an index count of 0.
        let parsed = Indexes::parse(indexes.text(), completions);
        index_count = Some(parsed.as_ref().map_or(0, Indexes::len));
        if let Err(error) = parsed {
            errors.push(indexes.invalid(&format!("error parsing succeededIndexes: {error}")));
        }
    }
    let Some(number) = count.integer() else { return };
    number::check_not_negative(&count, errors);
    if number > completions {
        let detail =
            format!("must be less than or equal to {completions} (the number of specified completions)");
        errors.push(count.invalid(&detail));
    }
    if let Some(index_count) = index_count
        && number > index_count
    {
        let detail = format!(
            "must be less than or equal to {index_count} (the number of indexes in the specified succeededIndexes field)"
        );
        errors.push(count.invalid(&detail));
    }
}
