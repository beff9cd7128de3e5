//! Deployment: pods of one template, replaced step by step when it changes.

use apimachinery::clock::Clock;
use apimachinery::object::Object;
use serde_json::json;

use crate::table::cell::{Read, selector};
use crate::table::workload::{CONTAINERS, IMAGES, SELECTOR, containers, replicas};
use crate::table::{AGE, NAME, age};
use crate::{
    Column, Generation, Kind, MetadataChecks, STANDARD_VERBS, StatusWrites, Storage, Strategy, Subresource,
    Table,
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
        let [containers, images] = containers(object, "spec.template");
        vec![
            json!(object.name()),
            json!(format!("{}/{}", object.integer("status.readyReplicas"), replicas(object))),
            json!(object.integer("status.updatedReplicas")),
            json!(object.integer("status.availableReplicas")),
            age(object, clock),
            containers,
            images,
            json!(selector(object, "spec.selector")),
        ]
    },
};
