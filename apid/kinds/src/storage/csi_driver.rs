//! CSIDriver: a volume driver and its requirements.

use apimachinery::clock::Clock;
use apimachinery::object::Object;
use serde_json::{Value, json};

use crate::table::cell::{PathReader, UNSET, joined, or_none};
use crate::table::{AGE, NAME, age};
use crate::{Column, Kind, MetadataChecks, STANDARD_VERBS, Storage, Strategy, Table};

pub(super) const KIND: Kind = Kind {
    group: "storage",
    versions: &["v1"],
    kind: "CSIDriver",
    resource: "csidrivers",
    singular: "csidriver",
    short_names: &[],
    categories: &[],
    namespaced: false,
    storage: Storage::Stored,
    verbs: STANDARD_VERBS,
    subresources: &[],
    schema: "storage/v1.CSIDriver",
    strategy: &CsiDriver,
};

struct CsiDriver;

impl Strategy for CsiDriver {
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
    columns: &[
        NAME,
        Column::boolean("AttachRequired", "Whether volumes must be attached to nodes."),
        Column::boolean("PodInfoOnMount", "Whether it is told about the pod that mounts."),
        Column::boolean("StorageCapacity", "Whether it reports how much is left."),
        Column::text("TokenRequests", "Audiences of the tokens it gets."),
        Column::boolean("RequiresRepublish", "Whether volumes are published again and again."),
        Column::text("Modes", "How long its volumes live."),
        AGE,
    ],
    cells,
};

fn cells(object: &Object, clock: &dyn Clock) -> Vec<Value> {
    let audiences = object.find("spec.tokenRequests").map_or_else(
        || UNSET.to_owned(),
        |_| {
            let requests = object.items("spec.tokenRequests");
            requests.iter().map(|request| request.text("audience")).collect::<Vec<_>>().join(",")
        },
    );
    vec![
        json!(object.name()),
        // Attach is required by default.
        json!(object.find("spec.attachRequired").is_none() || object.flag("spec.attachRequired")),
        json!(object.flag("spec.podInfoOnMount")),
        json!(object.flag("spec.storageCapacity")),
        json!(audiences),
        json!(object.flag("spec.requiresRepublish")),
        json!(or_none(joined(object.items("spec.volumeLifecycleModes")))),
        age(object, clock),
    ]
}
