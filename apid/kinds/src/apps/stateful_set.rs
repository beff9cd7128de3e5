//! StatefulSet: replicas with stable names and their own volumes.

use apimachinery::clock::Clock;
use apimachinery::object::Object;
use serde_json::json;

use crate::defaults::{each, fill, fill_text, map_or_insert, part};
use crate::pods;
use crate::table::cell::PathReader;
use crate::table::workload::{CONTAINERS, IMAGES, containers, replicas};
use crate::table::{AGE, NAME, age};
use crate::{
    Column, Context, Generation, Kind, MetadataChecks, STANDARD_VERBS, Storage, Strategy, Subresource, Table,
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
    fn warnings(&self, new: &Object, old: Option<&Object>, _ctx: &Context<'_>) -> Vec<String> {
        pods::warnings::template(new, old, "spec.template")
    }

    fn default(&self, object: &mut Object, _ctx: &Context<'_>) {
        let Some(spec) = part(object, "spec") else { return };
        fill(spec, "replicas", 1);
        fill(spec, "revisionHistoryLimit", 10);
        fill_text(spec, "podManagementPolicy", "OrderedReady");
        if let Some(strategy) = map_or_insert(spec, "updateStrategy") {
            fill_text(strategy, "type", "RollingUpdate");
            if strategy.get("type").is_some_and(|kind| kind == "RollingUpdate")
                && let Some(rolling) = map_or_insert(strategy, "rollingUpdate")
            {
                fill(rolling, "partition", 0);
            }
        }
        if let Some(retention) = map_or_insert(spec, "persistentVolumeClaimRetentionPolicy") {
            fill_text(retention, "whenDeleted", "Retain");
            fill_text(retention, "whenScaled", "Retain");
        }
        for claim in each(spec, "volumeClaimTemplates") {
            claim.insert("apiVersion".to_owned(), json!("v1"));
            claim.insert("kind".to_owned(), json!("PersistentVolumeClaim"));
            if let Some(spec) = map_or_insert(claim, "spec") {
                fill_text(spec, "volumeMode", "Filesystem");
            }
            if let Some(status) = map_or_insert(claim, "status") {
                fill_text(status, "phase", "Pending");
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
    columns: &[NAME, Column::text("Ready", "Pods that are ready, of those wanted."), AGE, CONTAINERS, IMAGES],
    cells: |object: &Object, clock: &dyn Clock| {
        let [containers, images] = containers(object, "spec.template");
        let ready = format!("{}/{}", object.integer("status.readyReplicas"), replicas(object));
        vec![json!(object.name()), json!(ready), age(object, clock), containers, images]
    },
};
