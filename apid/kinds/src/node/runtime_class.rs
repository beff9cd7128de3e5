//! RuntimeClass: a container runtime configuration.

use apimachinery::clock::Clock;
use apimachinery::object::Object;
use serde_json::json;

use crate::table::cell::PathReader;
use crate::table::{AGE, NAME, age};
use crate::{Column, Kind, MetadataChecks, STANDARD_VERBS, Storage, Strategy, Table};

pub(super) const KIND: Kind = Kind {
    group: "node",
    versions: &["v1"],
    kind: "RuntimeClass",
    resource: "runtimeclasses",
    singular: "runtimeclass",
    short_names: &[],
    categories: &[],
    namespaced: false,
    storage: Storage::Stored,
    verbs: STANDARD_VERBS,
    subresources: &[],
    schema: "node/v1.RuntimeClass",
    strategy: &RuntimeClass,
};

struct RuntimeClass;

impl Strategy for RuntimeClass {
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
    columns: &[NAME, Column::text("Handler", "What runs them."), AGE],
    cells: |object: &Object, clock: &dyn Clock| {
        vec![json!(object.name()), json!(object.text("handler")), age(object, clock)]
    },
};
