//! MutatingWebhookConfiguration: admission webhooks that may change objects.

use apimachinery::clock::Clock;
use apimachinery::object::Object;
use serde_json::json;

use crate::table::cell::PathReader;
use crate::table::{AGE, NAME, age};
use crate::{Column, Generation, Kind, MetadataChecks, STANDARD_VERBS, Storage, Strategy, Table};

pub(super) const KIND: Kind = Kind {
    group: "admissionregistration",
    versions: &["v1"],
    kind: "MutatingWebhookConfiguration",
    resource: "mutatingwebhookconfigurations",
    singular: "mutatingwebhookconfiguration",
    short_names: &[],
    categories: &["api-extensions"],
    namespaced: false,
    storage: Storage::Stored,
    verbs: STANDARD_VERBS,
    subresources: &[],
    schema: "admissionregistration/v1.MutatingWebhookConfiguration",
    strategy: &MutatingWebhookConfiguration,
};

struct MutatingWebhookConfiguration;

impl Strategy for MutatingWebhookConfiguration {
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
    columns: &[NAME, Column::integer("Webhooks", "Number of its webhooks."), AGE],
    cells: |object: &Object, clock: &dyn Clock| {
        vec![json!(object.name()), json!(object.items("webhooks").len()), age(object, clock)]
    },
};
