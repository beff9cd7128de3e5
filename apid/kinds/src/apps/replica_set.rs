//! ReplicaSet: a fixed number of replicas of a pod template.

use apimachinery::object::Object;

use crate::defaults::{fill, part};
use crate::pods;
use crate::table::cell::{PathReader, selector};
use crate::table::workload::{REPLICATED, replicated};
use crate::{
    Context, Generation, Kind, MetadataChecks, STANDARD_VERBS, Storage, Strategy, Subresource, Table,
};

pub(super) const KIND: Kind = Kind {
    group: "apps",
    versions: &["v1"],
    kind: "ReplicaSet",
    resource: "replicasets",
    singular: "replicaset",
    short_names: &["rs"],
    categories: &["all"],
    namespaced: true,
    storage: Storage::Stored,
    verbs: STANDARD_VERBS,
    subresources: &[Subresource::scale(), Subresource::status("ReplicaSet")],
    schema: "apps/v1.ReplicaSet",
    strategy: &ReplicaSet,
};

struct ReplicaSet;

impl Strategy for ReplicaSet {
    fn warnings(&self, new: &Object, old: Option<&Object>, _ctx: &Context<'_>) -> Vec<String> {
        pods::warnings::template(new, old, "spec.template")
    }

    fn default(&self, object: &mut Object, _ctx: &Context<'_>) {
        if let Some(spec) = part(object, "spec") {
            fill(spec, "replicas", 1);
        }
        pods::defaults::template(object, "spec.template");
    }

    fn metadata_checks(&self) -> MetadataChecks {
        MetadataChecks::Changes
    }

    fn generation(&self) -> Generation {
        Generation::Counted(&[])
    }

    fn selectable_fields(&self) -> &'static [&'static str] {
        &["status.replicas"]
    }

    fn field(&self, object: &Object, _field: &str) -> String {
        object.integer("status.replicas").to_string()
    }

    fn table(&self) -> Option<&'static Table> {
        Some(&TABLE)
    }
}

static TABLE: Table = Table {
    columns: REPLICATED,
    cells: |object, clock| replicated(object, clock, selector(object, "spec.selector")),
};
