//! ReplicationController: a fixed number of replicas of a pod template. Predecessor of ReplicaSet.

use apimachinery::object::Object;

use crate::defaults::{fill, part};
use crate::pods;
use crate::table::cell::{PathReader, labels};
use crate::table::workload::{REPLICATED, replicated};
use crate::{
    Context, DefaultPropagation, Generation, Kind, MetadataChecks, STANDARD_VERBS, Storage, Strategy,
    Subresource, Table,
};

pub(super) const KIND: Kind = Kind {
    group: "",
    versions: &["v1"],
    kind: "ReplicationController",
    resource: "replicationcontrollers",
    singular: "replicationcontroller",
    short_names: &["rc"],
    categories: &["all"],
    namespaced: true,
    storage: Storage::Stored,
    verbs: STANDARD_VERBS,
    subresources: &[Subresource::scale(), Subresource::status("ReplicationController")],
    schema: "core/v1.ReplicationController",
    strategy: &ReplicationController,
};

struct ReplicationController;

impl Strategy for ReplicationController {
    /// Defaults the selector and the controller's labels to the labels of the template.
    fn default(&self, object: &mut Object, _ctx: &Context<'_>) {
        pods::defaults::template(object, "spec.template");
        let labels = object.at(&["spec", "template", "metadata", "labels"]).cloned();
        let Some(spec) = part(object, "spec") else { return };
        fill(spec, "replicas", 1);
        if let Some(labels) = labels {
            fill(spec, "selector", labels.clone());
            fill(object.meta_mut(), "labels", labels);
        }
    }

    fn metadata_checks(&self) -> MetadataChecks {
        MetadataChecks::Changes
    }

    fn default_propagation(&self) -> DefaultPropagation {
        DefaultPropagation::Orphan
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
    cells: |object, clock| replicated(object, clock, labels(object, "spec.selector")),
};
