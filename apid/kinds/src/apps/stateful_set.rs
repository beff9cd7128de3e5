//! StatefulSet: pods with names and volumes of their own.

use apimachinery::clock::Clock;
use apimachinery::object::Object;
use serde_json::json;

use crate::table::cell::Read;
use crate::table::workload::{CONTAINERS, IMAGES, containers, replicas};
use crate::table::{AGE, NAME, age};
use crate::{
    Column, Generation, Kind, MetadataChecks, STANDARD_VERBS, Storage, Strategy, Subresource, Table,
};

pub(super) const KIND: Kind = Kind {
    group: "apps",
    versions: &["v1"],
    kind: "StatefulSet",
    resource: "statefulsets",
    singular: "statefulset",
    short_names: &["sts"],
    categories: &["all"],
    namespaced: true,
    storage: Storage::Stored,
    verbs: STANDARD_VERBS,
    subresources: &[Subresource::scale(), Subresource::status("StatefulSet")],
    schema: "apps/v1.StatefulSet",
    strategy: &StatefulSet,
};

struct StatefulSet;

impl Strategy for StatefulSet {
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
    columns: &[NAME, Column::text("Ready", "Pods that are ready, of those wanted."), AGE, CONTAINERS, IMAGES],
    cells: |object: &Object, clock: &dyn Clock| {
        let [containers, images] = containers(object, "spec.template");
        let ready = format!("{}/{}", object.integer("status.readyReplicas"), replicas(object));
        vec![json!(object.name()), json!(ready), age(object, clock), containers, images]
    },
};
