//! Job: runs pods until the required number has succeeded.

use apimachinery::clock::Clock;
use apimachinery::field::FieldErrors;
use apimachinery::object::Object;
use serde_json::{Value, json};

use super::{job_rules, job_spec, job_status};
use crate::defaults::{fill, fill_text, label_like_template, maps_in_list, part};
use crate::pods;
use crate::table::cell::{PathReader, selector};
use crate::table::workload::{CONTAINERS, IMAGES, SELECTOR, template_cells};
use crate::table::{AGE, NAME, between, since};
use crate::{
    BuiltInKind, Column, Context, DefaultPropagation, Generation, MetadataChecks, Revalidation, Strategy,
    Subresource, WriteRules,
};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    categories: &["all"],
    subresources: &[Subresource::status("Job")],
    rules: WriteRules {
        metadata_checks: MetadataChecks::CHANGES,
        generation: Generation::Counted(&[]),
        revalidation: Revalidation::Never,
        // By default the deletion of a job orphans its pods, because users read the output of the job from the
        // pods.
        default_propagation: DefaultPropagation::Orphan,
        default_propagation_warning: Some(
            "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove \
             them or set propagationPolicy=Orphan to suppress this warning",
        ),
        ..WriteRules::BUILT_IN
    },
    selectable_fields: &["status.successful"],
    field_sources: &["status.succeeded"],
    columns: &[
        NAME,
        Column::text("Status", "State of the job."),
        Column::text("Completions", "Succeeded pods and required pods."),
        Column::text("Duration", "Time from the start of the job to its end, or to now."),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    cells,
    strategy: &Job,
    ..BuiltInKind::namespaced("batch/v1.Job", "jobs")
};

struct Job;

impl Strategy for Job {
    fn warnings(&self, new: &Object, old: Option<&Object>, ctx: &Context<'_>) -> Vec<String> {
        if !ctx.subresource.is_empty() {
            return Vec::new();
        }
        let mut warnings: Vec<String> = pods::warnings::workload_name(new, old).into_iter().collect();
        warnings.extend(job_spec::warnings(new, old, "spec", ctx.names));
        warnings
    }

    fn default(&self, object: &mut Object, ctx: &Context<'_>) {
        pods::defaults::template(object, "spec.template", ctx.names);
        label_like_template(object);
        let Some(spec) = part(object, "spec") else { return };
        if !spec.contains_key("parallelism") {
            fill(spec, "completions", 1);
        }
        fill(spec, "parallelism", 1);
        let by_index = spec.contains_key("backoffLimitPerIndex");
        fill(spec, "backoffLimit", if by_index { i64::from(i32::MAX) } else { 6 });
        fill(spec, "completionMode", "NonIndexed");
        fill(spec, "suspend", false);
        fill(spec, "manualSelector", false);
        let replacement_policy =
            if spec.contains_key("podFailurePolicy") { "Failed" } else { "TerminatingOrFailed" };
        fill(spec, "podReplacementPolicy", replacement_policy);
        if let Some(policy) = spec.get_mut("podFailurePolicy").and_then(Value::as_object_mut) {
            for rule in maps_in_list(policy, "rules") {
                maps_in_list(rule, "onPodConditions")
                    .for_each(|condition| fill_text(condition, "status", "True"));
            }
        }
    }

    fn prepare_create(&self, object: &mut Object, ctx: &Context<'_>) {
        job_rules::generate_selector(object, ctx.names);
    }

    /// Copies the labels of the pod template to a job without labels. Defaulting has done the same, but since
    /// then the template has received generated labels, or its stored value again. Does nothing if the labels
    /// of the template are invalid: kube-apiserver copies the labels after validation.
    fn canonicalize(&self, object: &mut Object, _ctx: &Context<'_>) {
        if job_rules::has_valid_template_labels(object) {
            label_like_template(object);
        }
    }

    fn validate(&self, object: &Object, ctx: &Context<'_>) -> FieldErrors {
        job_rules::validate(object, ctx.names)
    }

    fn validate_update(&self, new: &Object, old: &Object, ctx: &Context<'_>) -> FieldErrors {
        match ctx.subresource {
            "status" => job_status::validate(new, old),
            _ => job_rules::validate_update(new, old, ctx.names),
        }
    }

    /// The value of the only selectable field: the number of succeeded pods.
    fn field(&self, object: &Object, _field: &str) -> String {
        object.integer("status.succeeded").to_string()
    }
}

fn cells(object: &Object, clock: &dyn Clock) -> Vec<Value> {
    let succeeded = object.integer("status.succeeded");
    let completions = match (object.find("spec.completions"), object.integer("spec.parallelism")) {
        (Some(desired), _) => format!("{succeeded}/{desired}"),
        (None, parallel @ 2..) => format!("{succeeded}/1 of {parallel}"),
        (None, _) => format!("{succeeded}/1"),
    };
    let start = object.text("status.startTime");
    let duration = match (start, object.text("status.completionTime")) {
        ("", _) => String::new(),
        (start, "") => since(start, clock),
        (start, end) => between(start, end),
    };
    let mut cells = vec![json!(state(object)), json!(completions), json!(duration)];
    cells.extend(template_cells(object, "spec.template", selector(object, "spec.selector")));
    cells
}

fn state(object: &Object) -> &'static str {
    let first =
        |conditions: &[&'static str]| conditions.iter().copied().find(|c| object.is_condition_true(c));
    if let Some(end) = first(&["Complete", "Failed"]) {
        return end;
    }
    if object.is_terminating() {
        return "Terminating";
    }
    first(&["Suspended", "FailureTarget", "SuccessCriteriaMet"]).unwrap_or("Running")
}
