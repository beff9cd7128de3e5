//! NetworkPolicy: allowed traffic from and to pods.

use apimachinery::clock::Clock;
use apimachinery::object::Object;
use serde_json::json;

use crate::table::cell::selector;
use crate::table::{AGE, NAME, age};
use crate::{Column, Generation, Kind, MetadataChecks, STANDARD_VERBS, Storage, Strategy, Table};

pub(super) const KIND: Kind = Kind {
    group: "networking",
    versions: &["v1"],
    kind: "NetworkPolicy",
    resource: "networkpolicies",
    singular: "networkpolicy",
    short_names: &["netpol"],
    categories: &[],
    namespaced: true,
    storage: Storage::Stored,
    verbs: STANDARD_VERBS,
    subresources: &[],
    schema: "networking/v1.NetworkPolicy",
    strategy: &NetworkPolicy,
};

struct NetworkPolicy;

impl Strategy for NetworkPolicy {
    fn metadata_checks(&self) -> MetadataChecks {
        MetadataChecks::Changes
    }

    fn generation(&self) -> Generation {
        Generation::Counted(&[])
    }

    fn table(&self) -> Option<&'static Table> {
        Some(&TABLE)
    }
}

static TABLE: Table = Table {
    columns: &[NAME, Column::text("Pod-Selector", "Pods it holds for."), AGE],
    cells: |object: &Object, clock: &dyn Clock| {
        vec![json!(object.name()), json!(selector(object, "spec.podSelector")), age(object, clock)]
    },
};
