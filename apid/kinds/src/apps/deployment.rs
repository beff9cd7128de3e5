//! Deployment: replicas of a pod template with rolling updates.

use apimachinery::clock::Clock;
use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::object::Object;
use serde_json::json;

use crate::defaults::{fill, fill_text, map_or_insert, part};
use crate::pods;
use crate::pods::validation::not_negative;
use crate::table::cell::{PathReader, selector};
use crate::table::workload::{CONTAINERS, IMAGES, SELECTOR, of_template, replicas};
use crate::table::{AGE, NAME};
use crate::{
    Column, Context, Generation, Kind, MetadataChecks, STANDARD_VERBS, StatusWrites, Storage, Strategy,
    Subresource, Table,
};

pub(super) const KIND: Kind = Kind {
    group: "apps",
    versions: &["v1"],
    kind: "Deployment",
    resource: "deployments",
    singular: "deployment",
    short_names: &["deploy"],
    categories: &["all"],
    namespaced: true,
    storage: Storage::Stored,
    verbs: STANDARD_VERBS,
    subresources: &[Subresource::scale(), Subresource::status("Deployment")],
    schema: "apps/v1.Deployment",
    strategy: &Deployment,
};

struct Deployment;

impl Strategy for Deployment {
    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        spec(object)
    }

    fn revalidates(&self, _subresource: &str) -> bool {
        false
    }

    fn validate_update(&self, new: &Object, old: &Object, ctx: &Context<'_>) -> FieldErrors {
        if ctx.subresource == "status" {
            return status(new);
        }
        let selector = |object: &Object| object.find("spec.selector").cloned().unwrap_or_default();
        let (selects, selected) = (selector(new), selector(old));
        let mut errors = spec(new);
        if selects != selected {
            let path = FieldPath::new("spec.selector");
            errors.push(FieldError::invalid(&path, selects, "field is immutable"));
        }
        errors
    }

    fn warnings(&self, new: &Object, old: Option<&Object>, _ctx: &Context<'_>) -> Vec<String> {
        pods::warnings::template(new, old, "spec.template")
    }

    fn default(&self, object: &mut Object, _ctx: &Context<'_>) {
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
        pods::defaults::template(object, "spec.template");
    }

    fn metadata_checks(&self) -> MetadataChecks {
        MetadataChecks::Changes
    }

    fn generation(&self) -> Generation {
        Generation::Counted(&["annotations"])
    }

    fn status_writes(&self) -> StatusWrites {
        StatusWrites::MetadataWithoutLabels
    }

    fn table(&self) -> Option<&'static Table> {
        Some(&TABLE)
    }
}

fn spec(object: &Object) -> FieldErrors {
    let path = FieldPath::new("spec");
    let mut errors: FieldErrors = not_negative(object, "spec.replicas").into_iter().collect();
    errors.extend(pods::validation::workload(object));
    let strategy = path.child("strategy");
    match object.text("spec.strategy.type") {
        "Recreate" if object.find("spec.strategy.rollingUpdate").is_some() => {
            let detail = "may not be specified when strategy `type` is 'Recreate'";
            errors.push(FieldError::forbidden(&strategy.child("rollingUpdate"), detail));
        }
        "Recreate" | "RollingUpdate" => {}
        other => {
            let supported = ["Recreate", "RollingUpdate"];
            errors.push(FieldError::not_supported(&strategy.child("type"), other, &supported));
        }
    }
    errors.extend(
        ["minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"]
            .iter()
            .filter_map(|field| not_negative(object, path.child(field).as_str())),
    );
    let deadline = object.integer("spec.progressDeadlineSeconds");
    if deadline <= object.integer("spec.minReadySeconds") {
        let path = path.child("progressDeadlineSeconds");
        errors.push(FieldError::invalid(&path, deadline, "must be greater than minReadySeconds"));
    }
    errors
}

fn status(object: &Object) -> FieldErrors {
    let numbers = [
        "observedGeneration",
        "replicas",
        "updatedReplicas",
        "readyReplicas",
        "availableReplicas",
        "unavailableReplicas",
    ];
    let path = |field: &str| FieldPath::new("status").child(field);
    let mut errors: FieldErrors =
        numbers.iter().filter_map(|field| not_negative(object, path(field).as_str())).collect();
    let number = |field: &str| object.integer(path(field).as_str());
    for (field, most, detail) in [
        ("updatedReplicas", "replicas", "cannot be greater than status.replicas"),
        ("readyReplicas", "replicas", "cannot be greater than status.replicas"),
        ("availableReplicas", "replicas", "cannot be greater than status.replicas"),
        ("availableReplicas", "readyReplicas", "cannot be greater than readyReplicas"),
    ] {
        if number(field) > number(most) {
            errors.push(FieldError::invalid(&path(field), number(field), detail));
        }
    }
    errors
}

static TABLE: Table = Table {
    columns: &[
        NAME,
        Column::text("Ready", "Pods that are ready, of those wanted."),
        Column::text("Up-to-date", "Pods of the newest template."),
        Column::text("Available", "Pods that have been ready long enough."),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    cells: |object: &Object, clock: &dyn Clock| {
        let mut cells = vec![
            json!(object.name()),
            json!(format!("{}/{}", object.integer("status.readyReplicas"), replicas(object))),
            json!(object.integer("status.updatedReplicas")),
            json!(object.integer("status.availableReplicas")),
        ];
        cells.extend(of_template(object, clock, "spec.template", selector(object, "spec.selector")));
        cells
    },
};
