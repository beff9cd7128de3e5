//! CSIStorageCapacity: available storage capacity of a topology segment.

use apimachinery::clock::Clock;
use apimachinery::object::Object;
use serde_json::{Value, json};

use crate::table::NAME;
use crate::table::cell::{PathReader, UNSET};
use crate::{Column, Kind, MetadataChecks, STANDARD_VERBS, Storage, Strategy, Table};

pub(super) const KIND: Kind = Kind {
    group: "storage",
    versions: &["v1"],
    kind: "CSIStorageCapacity",
    resource: "csistoragecapacities",
    singular: "csistoragecapacity",
    short_names: &[],
    categories: &[],
    namespaced: true,
    storage: Storage::Stored,
    verbs: STANDARD_VERBS,
    subresources: &[],
    schema: "storage/v1.CSIStorageCapacity",
    strategy: &CsiStorageCapacity,
};

struct CsiStorageCapacity;

impl Strategy for CsiStorageCapacity {
    fn metadata_checks(&self) -> MetadataChecks {
        MetadataChecks::Changes
    }

    fn unconditional_update(&self) -> bool {
        false
    }

    fn table(&self) -> Option<&'static Table> {
        Some(&TABLE)
    }
}

static TABLE: Table = Table {
    columns: &[
        NAME,
        Column::text("StorageClassName", "The class it is about."),
        Column::text("Capacity", "How much is left."),
    ],
    cells,
};

fn cells(object: &Object, _clock: &dyn Clock) -> Vec<Value> {
    vec![
        json!(object.name()),
        json!(object.text("storageClassName")),
        json!(object.text_or_number("capacity", UNSET)),
    ]
}
