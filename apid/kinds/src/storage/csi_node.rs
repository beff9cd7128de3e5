//! CSINode: the volume drivers on a node.

use apimachinery::clock::Clock;
use apimachinery::object::Object;
use serde_json::json;

use crate::table::cell::PathReader;
use crate::table::{AGE, NAME, age};
use crate::{Column, Kind, MetadataChecks, STANDARD_VERBS, Storage, Strategy, Table};

pub(super) const KIND: Kind = Kind {
    group: "storage",
    versions: &["v1"],
    kind: "CSINode",
    resource: "csinodes",
    singular: "csinode",
    short_names: &[],
    categories: &[],
    namespaced: false,
    storage: Storage::Stored,
    verbs: STANDARD_VERBS,
    subresources: &[],
    schema: "storage/v1.CSINode",
    strategy: &CsiNode,
};

struct CsiNode;

impl Strategy for CsiNode {
    fn metadata_checks(&self) -> MetadataChecks {
        MetadataChecks::Changes
    }

    fn delete_returns_object(&self) -> bool {
        true
    }

    fn unconditional_update(&self) -> bool {
        false
    }

    fn table(&self) -> Option<&'static Table> {
        Some(&TABLE)
    }
}

static TABLE: Table = Table {
    columns: &[NAME, Column::integer("Drivers", "Number of drivers."), AGE],
    cells: |object: &Object, clock: &dyn Clock| {
        vec![json!(object.name()), json!(object.items("spec.drivers").len()), age(object, clock)]
    },
};
