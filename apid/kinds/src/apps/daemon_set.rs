//! DaemonSet: one pod on every node, or on every selected node.

use apimachinery::clock::Clock;
use apimachinery::object::Object;
use serde_json::json;

use crate::defaults::{fill, fill_text, map_or_insert, part};
use crate::pods;
use crate::table::cell::{PathReader, labels, selector};
use crate::table::workload::{CONTAINERS, IMAGES, SELECTOR, of_template};
use crate::table::{AGE, NAME};
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
