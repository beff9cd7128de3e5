//! PodDisruptionBudget: limit on simultaneous voluntary disruptions of a set of pods.

use apimachinery::clock::Clock;
use apimachinery::object::Object;
use serde_json::json;

use crate::table::cell::PathReader;
use crate::table::{AGE, NAME, age};
use crate::{
    Column, Generation, Kind, MetadataChecks, STANDARD_VERBS, Storage, Strategy, Subresource, Table,
};

pub(super) const KIND: Kind = Kind {
    group: "policy",
    versions: &["v1"],
    kind: "PodDisruptionBudget",
    resource: "poddisruptionbudgets",
    singular: "poddisruptionbudget",
    short_names: &["pdb"],
    categories: &[],
    namespaced: true,
    storage: Storage::Stored,
    verbs: STANDARD_VERBS,
    subresources: &[Subresource::status("PodDisruptionBudget")],
    schema: "policy/v1.PodDisruptionBudget",
    strategy: &PodDisruptionBudget,
};

struct PodDisruptionBudget;

impl Strategy for PodDisruptionBudget {
    fn metadata_checks(&self) -> MetadataChecks {
        MetadataChecks::Changes
    }

    fn generation(&self) -> Generation {
        Generation::Counted(&[])
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
        Column::text("Min Available", "Pods that must stay."),
        Column::text("Max Unavailable", "Pods that may be missing."),
        Column::text("Allowed Disruptions", "Pods that may be disturbed now."),
        AGE,
    ],
    cells: |object: &Object, clock: &dyn Clock| {
        vec![
            json!(object.name()),
            json!(object.text_or_number("spec.minAvailable", "N/A")),
            json!(object.text_or_number("spec.maxUnavailable", "N/A")),
            json!(object.integer("status.disruptionsAllowed")),
            age(object, clock),
        ]
    },
};
