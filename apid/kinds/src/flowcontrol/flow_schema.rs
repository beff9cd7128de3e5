//! FlowSchema: assigns requests to a priority level.

use apimachinery::clock::Clock;
use apimachinery::object::Object;
use serde_json::json;

use crate::table::cell::{NONE, PathReader};
use crate::table::{AGE, NAME, age};
use crate::{
    Column, Generation, Kind, MetadataChecks, STANDARD_VERBS, StatusWrites, Storage, Strategy, Subresource,
    Table,
};

pub(super) const KIND: Kind = Kind {
    group: "flowcontrol.apiserver",
    versions: &["v1"],
    kind: "FlowSchema",
    resource: "flowschemas",
    singular: "flowschema",
    short_names: &[],
    categories: &[],
    namespaced: false,
    storage: Storage::Stored,
    verbs: STANDARD_VERBS,
    subresources: &[Subresource::status("FlowSchema")],
    schema: "flowcontrol/v1.FlowSchema",
    strategy: &FlowSchema,
};

struct FlowSchema;

impl Strategy for FlowSchema {
    fn metadata_checks(&self) -> MetadataChecks {
        MetadataChecks::Changes
    }

    fn generation(&self) -> Generation {
        Generation::Counted(&[])
    }

    fn status_writes(&self) -> StatusWrites {
        StatusWrites::StatusOnly
    }

    fn table(&self) -> Option<&'static Table> {
        Some(&TABLE)
    }
}

static TABLE: Table = Table {
    columns: &[
        NAME,
        Column::text("PriorityLevel", "The level of its requests."),
        Column::text("MatchingPrecedence", "Lower is asked first."),
        Column::text("DistinguisherMethod", "What tells its flows apart."),
        AGE,
        Column::text("MissingPL", "Whether its level does not exist."),
    ],
    cells: |object: &Object, clock: &dyn Clock| {
        let dangling = object.condition("Dangling");
        vec![
            json!(object.name()),
            json!(object.text("spec.priorityLevelConfiguration.name")),
            json!(object.integer("spec.matchingPrecedence")),
            json!(object.text_or("spec.distinguisherMethod.type", NONE)),
            age(object, clock),
            json!(dangling.map_or("?", |condition| condition.text("status"))),
        ]
    },
};
