//! PriorityLevelConfiguration: concurrency limit and queuing of a priority level.

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
    kind: "PriorityLevelConfiguration",
    resource: "prioritylevelconfigurations",
    singular: "prioritylevelconfiguration",
    short_names: &[],
    categories: &[],
    namespaced: false,
    storage: Storage::Stored,
    verbs: STANDARD_VERBS,
    subresources: &[Subresource::status("PriorityLevelConfiguration")],
    schema: "flowcontrol/v1.PriorityLevelConfiguration",
    strategy: &PriorityLevelConfiguration,
};

struct PriorityLevelConfiguration;

impl Strategy for PriorityLevelConfiguration {
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
        Column::text("Type", "Whether it is limited."),
        Column::text("NominalConcurrencyShares", "Its share of the requests that run."),
        Column::text("Queues", "The number of its queues."),
        Column::text("HandSize", "Queues that a flow may wait in."),
        Column::text("QueueLengthLimit", "Requests that a queue holds."),
        AGE,
    ],
    cells: |object: &Object, clock: &dyn Clock| {
        let limited = |field: &str| {
            let value = object.find(&format!("spec.limited.{field}"));
            value.cloned().unwrap_or_else(|| json!(NONE))
        };
        vec![
            json!(object.name()),
            json!(object.text("spec.type")),
            limited("nominalConcurrencyShares"),
            limited("limitResponse.queuing.queues"),
            limited("limitResponse.queuing.handSize"),
            limited("limitResponse.queuing.queueLengthLimit"),
            age(object, clock),
        ]
    },
};
