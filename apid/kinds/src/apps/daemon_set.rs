//! DaemonSet: one pod on every node, or on every selected node.

use apimachinery::field::FieldErrors;
use apimachinery::names::Names;
use apimachinery::object::Object;
use serde_json::{Value, json};

use crate::defaults::{annotation_number, fill, fill_text, map_or_insert, part};
use crate::labels;
use crate::pods;
use crate::pods::validation;
use crate::table::cell::{self, PathReader, selector};
use crate::table::workload::{CONTAINERS, IMAGES, SELECTOR, template_cells};
use crate::table::{AGE, NAME, Source};
use crate::validation::{Field, internal, number};
use crate::{
    BuiltInKind, Column, Context, Generation, MetadataChecks, Revalidation, Strategy, Subresource, WriteRules,
};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    short_names: &["ds"],
    categories: &["all"],
    subresources: &[Subresource::status("DaemonSet")],
    rules: WriteRules {
        metadata_checks: MetadataChecks::CHANGES,
        generation: Generation::Counted(&[]),
        revalidation: Revalidation::Never,
        ..WriteRules::BUILT_IN
    },
    columns: &[
        NAME,
        Column::integer("Desired", "Number of selected nodes.")
            .with_source(Source::Number("status.desiredNumberScheduled")),
        Column::integer("Current", "Number of nodes with a pod of the set.")
            .with_source(Source::Number("status.currentNumberScheduled")),
        Column::integer("Ready", "Number of ready pods.").with_source(Source::Number("status.numberReady")),
        Column::integer("Up-to-date", "Number of pods with the current template.")
            .with_source(Source::Number("status.updatedNumberScheduled")),
        Column::integer("Available", "Number of pods that have been ready for the minimum time.")
            .with_source(Source::Number("status.numberAvailable")),
        Column::text("Node Selector", "Labels of selected nodes."),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    cells: |object, _| {
        let mut cells = vec![json!(cell::labels(object, "spec.template.spec.nodeSelector"))];
        cells.extend(template_cells(object, "spec.template", selector(object, "spec.selector")));
        cells
    },
    strategy: &DaemonSet,
    ..BuiltInKind::namespaced("apps/v1.DaemonSet", "daemonsets")
};

struct DaemonSet;

/// Annotation with the generation of the pod template.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

fn template_generation(object: &Object) -> i64 {
    annotation_number(object, TEMPLATE_GENERATION).and_then(Result::ok).unwrap_or(0)
}

fn set_template_generation(object: &mut Object, generation: i64) {
    if let Some(annotations) = map_or_insert(object.meta_mut(), "annotations") {
        annotations.insert(TEMPLATE_GENERATION.to_owned(), json!(generation.to_string()));
    }
}

impl Strategy for DaemonSet {
    fn malformed_annotation(&self, object: &Object) -> Option<String> {
        annotation_number(object, TEMPLATE_GENERATION)?.err()
    }

    fn warnings(&self, new: &Object, old: Option<&Object>, ctx: &Context<'_>) -> Vec<String> {
        if old.is_some_and(|old| template_generation(old) == template_generation(new)) {
            return Vec::new();
        }
        pods::warnings::template(new, None, "spec.template", ctx.names)
    }

    fn default(&self, object: &mut Object, ctx: &Context<'_>) {
        let Some(spec) = part(object, "spec") else { return };
        fill(spec, "revisionHistoryLimit", 10);
        if let Some(strategy) = map_or_insert(spec, "updateStrategy") {
            fill_text(strategy, "type", "RollingUpdate");
            if strategy.get("type").is_some_and(|kind| kind == "RollingUpdate")
                && let Some(rolling) = map_or_insert(strategy, "rollingUpdate")
            {
                fill(rolling, "maxUnavailable", 1);
                fill(rolling, "maxSurge", 0);
            }
            // For other types of update strategies, kube-apiserver stores absent numbers as 0.
            if let Some(Value::Object(rolling)) = strategy.get_mut("rollingUpdate") {
                fill(rolling, "maxUnavailable", 0);
                fill(rolling, "maxSurge", 0);
            }
        }
        pods::defaults::template(object, "spec.template", ctx.names);
        // kube-apiserver converts an absent generation of the template to this annotation, so that a write without
        // the annotation owns the annotation.
        let has_annotation = object.annotation(TEMPLATE_GENERATION).is_some();
        if !has_annotation {
            set_template_generation(object, 0);
        }
    }

    fn prepare_create(&self, object: &mut Object, _ctx: &Context<'_>) {
        let generation = template_generation(object).max(1);
        set_template_generation(object, generation);
    }

    fn prepare_update(&self, new: &mut Object, old: &Object, ctx: &Context<'_>) {
        let is_changed = ctx.subresource.is_empty() && new.find("spec.template") != old.find("spec.template");
        set_template_generation(new, template_generation(old) + i64::from(is_changed));
    }

    fn validate(&self, object: &Object, ctx: &Context<'_>) -> FieldErrors {
        validate_spec(object, ctx.names)
    }

    fn validate_update(&self, new: &Object, old: &Object, ctx: &Context<'_>) -> FieldErrors {
        validation::workload_update(new, old, ctx, validate_spec, validate_status)
    }
}

/// Validates the selector and the pod template. Unlike those of other workloads, the selector is not required.
fn validate_selected_pods(spec: &Field<'_, '_>, names: &Names, errors: &mut FieldErrors) {
    let selector = spec.child("selector");
    let template = spec.child("template");
    if labels::validate_selector(&selector, errors) {
        let is_match =
            |found: &Value| selector.value().is_some_and(|selector| labels::matches(selector, found));
        validation::matching_labels(&template, is_match, errors);
    }
    if selector.value().is_some_and(labels::selects_all) {
        errors.push(selector.invalid("empty selector is invalid for daemonset"));
    }
    validation::always_restarting(&template, "DaemonSet", names, errors);
}

fn validate_spec(object: &Object, names: &Names) -> FieldErrors {
    let spec = Field::new(object.get("spec"), "spec");
    let mut errors = FieldErrors::new();
    validate_selected_pods(&spec, names, &mut errors);
    number::check_not_negative(&spec.child("minReadySeconds"), &mut errors);
    validate_update_strategy(&spec.child("updateStrategy"), &mut errors);
    number::check_not_negative(&spec.child("revisionHistoryLimit"), &mut errors);
    errors
}

fn validate_update_strategy(strategy: &Field<'_, '_>, errors: &mut FieldErrors) {
    let rolling = strategy.child("rollingUpdate");
    match strategy.child("type").text() {
        "OnDelete" => {}
        "RollingUpdate" if !rolling.is_present() => errors.push(rolling.required("")),
        "RollingUpdate" => {
            let (unavailable, surge) = (rolling.child("maxUnavailable"), rolling.child("maxSurge"));
            for field in [&unavailable, &surge] {
                validation::count_or_percent(field, errors);
                validation::at_most_100_percent(field, errors);
            }
            match (validation::is_zero(&unavailable), validation::is_zero(&surge)) {
                (false, false) => {
                    errors.push(surge.invalid("may not be set when maxUnavailable is non-zero"))
                }
                (true, true) => errors.push(unavailable.required("cannot be 0 when maxSurge is 0")),
                _ => {}
            }
        }
        _ => {
            let strategy_text = internal::text_of_type(strategy.value(), "apps/v1.DaemonSetUpdateStrategy");
            errors.push(internal::not_supported(strategy, &strategy_text, "\"RollingUpdate\", \"OnDelete\""));
        }
    }
}

fn validate_status(object: &Object) -> FieldErrors {
    let mut errors = FieldErrors::new();
    validation::status_counts(
        &Field::new(object.get("status"), "status"),
        &[
            "currentNumberScheduled",
            "numberMisscheduled",
            "desiredNumberScheduled",
            "numberReady",
            "observedGeneration",
            "updatedNumberScheduled",
            "numberAvailable",
            "numberUnavailable",
            "collisionCount",
        ],
        &[],
        &mut errors,
    );
    errors
}
