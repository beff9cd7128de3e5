//! ServiceCIDR: address ranges for services.

use apimachinery::clock::Clock;
use apimachinery::object::Object;
use serde_json::json;

use crate::table::cell::{PathReader, joined};
use crate::table::{AGE, NAME, age};
use crate::{Column, Kind, MetadataChecks, STANDARD_VERBS, Storage, Strategy, Subresource, Table};

pub(super) const KIND: Kind = Kind {
    group: "networking",
    versions: &["v1"],
    kind: "ServiceCIDR",
    resource: "servicecidrs",
    singular: "servicecidr",
    short_names: &[],
    categories: &[],
    namespaced: false,
    storage: Storage::Stored,
    verbs: STANDARD_VERBS,
    subresources: &[Subresource::status("ServiceCIDR")],
    schema: "networking/v1.ServiceCIDR",
    strategy: &ServiceCidr,
};

struct ServiceCidr;

impl Strategy for ServiceCidr {
    fn metadata_checks(&self) -> MetadataChecks {
        MetadataChecks::Changes
    }

    fn table(&self) -> Option<&'static Table> {
        Some(&TABLE)
    }
}

static TABLE: Table = Table {
    columns: &[NAME, Column::text("CIDRs", "The ranges."), AGE],
    cells: |object: &Object, clock: &dyn Clock| {
        vec![json!(object.name()), json!(joined(object.items("spec.cidrs"))), age(object, clock)]
    },
};
