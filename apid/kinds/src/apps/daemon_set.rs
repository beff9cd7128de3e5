//! DaemonSet: one pod on every node, or on every selected node.

use apimachinery::clock::Clock;
use apimachinery::field::FieldErrors;
use apimachinery::object::Object;
use serde_json::json;

use crate::defaults::{fill, fill_text, map_or_insert, part};
use crate::pods;
use crate::pods::validation::{self, WorkloadNames};
use crate::table::cell::{PathReader, labels, selector};
use crate::table::workload::{CONTAINERS, IMAGES, SELECTOR, of_template};
use crate::table::{AGE, NAME};
use crate::validation::{Field, number};
use crate::{
    Column, Context, Generation, Kind, MetadataChecks, STANDARD_VERBS, Storage, Strategy, Subresource, Table,
};

pub(super) const KIND: Kind = Kind {
    group: "apps",
    versions: &["v1"],
    kind: "DaemonSet",
    resource: "daemonsets",
    singular: "daemonset",
    short_names: &["ds"],
    categories: &["all"],
    namespaced: true,
    storage: Storage::Stored,
    verbs: STANDARD_VERBS,
    subresources: &[Subresource::status("DaemonSet")],
    schema: "apps/v1.DaemonSet",
    strategy: &DaemonSet,
};

struct DaemonSet;

impl Strategy for DaemonSet {
    fn warnings(&self, new: &Object, old: Option<&Object>, _ctx: &Context<'_>) -> Vec<String> {
        pods::warnings::template(new, old, "spec.template")
    }

    fn default(&self, object: &mut Object, _ctx: &Context<'_>) {
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
        }
        pods::defaults::template(object, "spec.template");
    }

    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        spec(object)
    }

    fn revalidates(&self, _subresource: &str) -> bool {
        false
    }

    fn validate_update(&self, new: &Object, old: &Object, ctx: &Context<'_>) -> FieldErrors {
        validation::workload_update(new, old, ctx.subresource, spec, status)
    }

    fn metadata_checks(&self) -> MetadataChecks {
        MetadataChecks::Changes
    }

    fn generation(&self) -> Generation {
        Generation::Counted(&[])
    }

    fn table(&self) -> Option<&'static Table> {
        Some(&TABLE)
    }
}

const NAMES: WorkloadNames = WorkloadNames { selector: "daemonset", deadline: "DaemonSet" };

fn spec(object: &Object) -> FieldErrors {
    let spec = Field::new(object.get("spec"), "spec");
    let mut errors = FieldErrors::new();
    validation::workload(&spec, NAMES, &mut errors);
    number::check_not_negative(&spec.child("minReadySeconds"), &mut errors);
    update_strategy(&spec.child("updateStrategy"), &mut errors);
    number::check_not_negative(&spec.child("revisionHistoryLimit"), &mut errors);
    errors
}

fn update_strategy(strategy: &Field<'_, '_>, errors: &mut FieldErrors) {
    let rolling = strategy.child("rollingUpdate");
    match strategy.child("type").text() {
        "OnDelete" => {}
        "RollingUpdate" if !rolling.is_present() => errors.push(rolling.required("")),
        "RollingUpdate" => {
            let (unavailable, surge) = (rolling.child("maxUnavailable"), rolling.child("maxSurge"));
            for field in [&unavailable, &surge] {
                validation::count_or_percent(field, errors);
                validation::at_most_all(field, errors);
            }
            match (validation::is_zero(&unavailable), validation::is_zero(&surge)) {
                (false, false) => {
                    errors.push(surge.invalid("may not be set when maxUnavailable is non-zero"))
                }
                (true, true) => errors.push(unavailable.required("cannot be 0 when maxSurge is 0")),
                _ => {}
            }
        }
        _ => errors.push(strategy.not_supported(&["RollingUpdate", "OnDelete"])),
    }
}

fn status(object: &Object) -> FieldErrors {
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

static TABLE: Table = Table {
    columns: &[
        NAME,
        Column::integer("Desired", "Nodes that should run its pod."),
        Column::integer("Current", "Nodes that run its pod."),
        Column::integer("Ready", "Pods that are ready."),
        Column::integer("Up-to-date", "Pods of the newest template."),
        Column::integer("Available", "Pods that have been ready long enough."),
        Column::text("Node Selector", "Labels of the nodes that should run its pod."),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    cells: |object: &Object, clock: &dyn Clock| {
        let status = |field: &str| json!(object.integer(&format!("status.{field}")));
        let mut cells = vec![
            json!(object.name()),
            status("desiredNumberScheduled"),
            status("currentNumberScheduled"),
            status("numberReady"),
            status("updatedNumberScheduled"),
            status("numberAvailable"),
            json!(labels(object, "spec.template.spec.nodeSelector")),
        ];
        cells.extend(of_template(object, clock, "spec.template", selector(object, "spec.selector")));
        cells
    },
};
