//! PriorityClass: a pod priority for scheduling and preemption.

use apimachinery::clock::Clock;
use apimachinery::object::Object;
use serde_json::json;

use crate::table::cell::PathReader;
use crate::table::{AGE, NAME, age};
use crate::{Column, Generation, Kind, MetadataChecks, STANDARD_VERBS, Storage, Strategy, Table};

pub(super) const KIND: Kind = Kind {
    group: "scheduling",
    versions: &["v1"],
    kind: "PriorityClass",
    resource: "priorityclasses",
    singular: "priorityclass",
    short_names: &["pc"],
    categories: &[],
    namespaced: false,
    storage: Storage::Stored,
    verbs: STANDARD_VERBS,
    subresources: &[],
    schema: "scheduling/v1.PriorityClass",
    strategy: &PriorityClass,
};

struct PriorityClass;

impl Strategy for PriorityClass {
    fn metadata_checks(&self) -> MetadataChecks {
        MetadataChecks::Changes
    }

    /// The generation is fixed, because no counted field is mutable.
    fn generation(&self) -> Generation {
        Generation::Fixed
    }

    fn table(&self) -> Option<&'static Table> {
        Some(&TABLE)
    }
}

static TABLE: Table = Table {
    columns: &[
        NAME,
        Column::text("Value", "Higher comes first."),
        Column::boolean("Global-Default", "Whether pods without a class have this one."),
        AGE,
        Column::text("PreemptionPolicy", "Whether pods of this class push others out."),
    ],
    cells: |object: &Object, clock: &dyn Clock| {
        vec![
            json!(object.name()),
            json!(object.integer("value")),
            json!(object.flag("globalDefault")),
            age(object, clock),
            json!(object.text_or("preemptionPolicy", "PreemptLowerPriority")),
        ]
    },
};
