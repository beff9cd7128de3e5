//! Deployment: replicas of a pod template with rolling updates.

use apimachinery::field::{FieldError, FieldErrors};
use apimachinery::names::Names;
use apimachinery::object::Object;

use crate::defaults::{annotation_number, fill, fill_text, map_or_insert, part};
use crate::pods;
use crate::pods::validation::{self, WorkloadTerms};
use crate::table::cell::selector;
use crate::table::workload::{CONTAINERS, IMAGES, SELECTOR, ready, template_cells};
use crate::table::{AGE, NAME, Source};
use crate::validation::internal;
use crate::validation::{Field, number};
use crate::{
    BuiltInKind, Column, Context, Generation, MetadataChecks, Revalidation, StatusWrites, Strategy,
    Subresource, WriteRules,
};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    short_names: &["deploy"],
    categories: &["all"],
    subresources: &[Subresource::scale(), Subresource::status("Deployment")],
    rules: WriteRules {
        metadata_checks: MetadataChecks::CHANGES,
        generation: Generation::Counted(&["annotations"]),
        revalidation: Revalidation::Never,
        status_writes: StatusWrites::MetadataWithoutLabels,
        ..WriteRules::BUILT_IN
    },
    columns: &[
        NAME,
        Column::text("Ready", "Ready pods and desired pods."),
        Column::text("Up-to-date", "Number of pods with the current template.")
            .with_source(Source::Number("status.updatedReplicas")),
        Column::text("Available", "Number of pods that have been ready for the minimum time.")
            .with_source(Source::Number("status.availableReplicas")),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    cells: |object, _| {
        let mut cells = vec![ready(object)];
        cells.extend(template_cells(object, "spec.template", selector(object, "spec.selector")));
        cells
    },
    strategy: &Deployment,
    ..BuiltInKind::namespaced("apps/v1.Deployment", "deployments")
};

struct Deployment;

/// Annotation with the revision of a requested rollback, which kube-apiserver converts to a field.
const ROLLBACK: &str = "deprecated.deployment.rollback.to";

impl Strategy for Deployment {
    fn malformed_annotation(&self, object: &Object) -> Option<String> {
        let error = annotation_number(object, ROLLBACK)?.err()?;
        let value = object.annotation(ROLLBACK).unwrap_or_default();
        Some(format!("failed to parse annotation[{ROLLBACK}]={value} as int64: {error}"))
    }

    fn prepare_update(&self, new: &mut Object, old: &Object, _ctx: &Context<'_>) {
        pods::drop_terminating_replicas(new, old);
    }

    fn validate(&self, object: &Object, ctx: &Context<'_>) -> FieldErrors {
        validate_spec(object, ctx.names)
    }

    fn validate_update(&self, new: &Object, old: &Object, ctx: &Context<'_>) -> FieldErrors {
        validation::workload_update(new, old, ctx, validate_spec, validate_status)
    }

    fn warnings(&self, new: &Object, old: Option<&Object>, ctx: &Context<'_>) -> Vec<String> {
        let mut warnings: Vec<String> = pods::warnings::workload_name(new, old).into_iter().collect();
        warnings.extend(pods::warnings::template(new, old, "spec.template", ctx.names));
        warnings
    }

    fn default(&self, object: &mut Object, ctx: &Context<'_>) {
        let Some(spec) = part(object, "spec") else { return };
        fill(spec, "replicas", 1);
        fill(spec, "revisionHistoryLimit", 10);
        fill(spec, "progressDeadlineSeconds", 600);
        if let Some(strategy) = map_or_insert(spec, "strategy") {
            fill_text(strategy, "type", "RollingUpdate");
            if strategy.get("type").is_some_and(|kind| kind == "RollingUpdate")
                && let Some(rolling) = map_or_insert(strategy, "rollingUpdate")
            {
                fill(rolling, "maxUnavailable", "25%");
                fill(rolling, "maxSurge", "25%");
            }
        }
        pods::defaults::template(object, "spec.template", ctx.names);
        if let Some(Ok(revision)) = annotation_number(object, ROLLBACK)
            && let Some(annotations) = part(object, "metadata.annotations")
        {
            annotations.insert(ROLLBACK.to_owned(), revision.to_string().into());
        }
    }
}

/// Terms of kube-apiserver, which calls a deployment a ReplicaSet in the message about a deadline.
const TERMS: WorkloadTerms = WorkloadTerms { selector: "deployment", deadline: "ReplicaSet" };

fn validate_spec(object: &Object, names: &Names) -> FieldErrors {
    let spec = Field::new(object.get("spec"), "spec");
    let mut errors = FieldErrors::new();
    number::check_not_negative(&spec.child("replicas"), &mut errors);
    validation::workload(&spec, TERMS, names, &mut errors);
    validate_strategy(&spec.child("strategy"), &mut errors);
    if let Some(Ok(revision)) = annotation_number(object, ROLLBACK)
        && revision < 0
    {
        let version = spec.child("rollback").child("version").path();
        errors.push(FieldError::invalid(&version, revision, "must be greater than or equal to 0"));
    }
    for field in ["minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"] {
        number::check_not_negative(&spec.child(field), &mut errors);
    }
    let deadline = spec.child("progressDeadlineSeconds");
    let min_ready = spec.child("minReadySeconds").integer().unwrap_or(0);
    if deadline.integer().is_some_and(|seconds| seconds <= min_ready) {
        errors.push(deadline.invalid("must be greater than minReadySeconds"));
    }
    errors
}

fn validate_strategy(strategy: &Field<'_, '_>, errors: &mut FieldErrors) {
    let rolling = strategy.child("rollingUpdate");
    match strategy.child("type").text() {
        "Recreate" => {
            rolling.forbid("may not be specified when strategy `type` is 'Recreate'", errors);
        }
        "RollingUpdate" if !rolling.is_present() => {
            errors.push(rolling.required("this should be defaulted and never be nil"));
        }
        "RollingUpdate" => {
            let (unavailable, surge) = (rolling.child("maxUnavailable"), rolling.child("maxSurge"));
            validation::count_or_percent(&unavailable, errors);
            validation::count_or_percent(&surge, errors);
            if validation::is_zero(&unavailable) && validation::is_zero(&surge) {
                errors.push(unavailable.invalid("may not be 0 when `maxSurge` is 0"));
            }
            validation::at_most_100_percent(&unavailable, errors);
        }
        _ => {
            let strategy_text = internal::text_of_type(strategy.value(), "apps/v1.DeploymentStrategy");
            errors.push(internal::not_supported(strategy, &strategy_text, "\"Recreate\", \"RollingUpdate\""));
        }
    }
}

fn validate_status(object: &Object) -> FieldErrors {
    let mut errors = FieldErrors::new();
    validation::status_counts(
        &Field::new(object.get("status"), "status"),
        &[
            "observedGeneration",
            "replicas",
            "updatedReplicas",
            "readyReplicas",
            "availableReplicas",
            "unavailableReplicas",
            "collisionCount",
        ],
        &[
            ("updatedReplicas", "replicas", "status.replicas"),
            ("readyReplicas", "replicas", "status.replicas"),
            ("availableReplicas", "replicas", "status.replicas"),
            ("availableReplicas", "readyReplicas", "readyReplicas"),
        ],
        &mut errors,
    );
    errors
}
