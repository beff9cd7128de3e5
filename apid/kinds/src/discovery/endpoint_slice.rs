//! EndpointSlice: a subset of the addresses behind a service.

use apimachinery::clock::Clock;
use apimachinery::object::Object;
use serde_json::{Value, json};

use crate::defaults::{each, fill};
use crate::table::cell::{PathReader, UNSET, first_three};
use crate::table::{AGE, NAME, age};
use crate::{Column, Context, Generation, Kind, MetadataChecks, STANDARD_VERBS, Storage, Strategy, Table};

pub(super) const KIND: Kind = Kind {
    group: "discovery",
    versions: &["v1"],
    kind: "EndpointSlice",
    resource: "endpointslices",
    singular: "endpointslice",
    short_names: &[],
    categories: &[],
    namespaced: true,
    storage: Storage::Stored,
    verbs: STANDARD_VERBS,
    subresources: &[],
    schema: "discovery/v1.EndpointSlice",
    strategy: &EndpointSlice,
};

struct EndpointSlice;

impl Strategy for EndpointSlice {
    fn default(&self, object: &mut Object, _ctx: &Context<'_>) {
        for port in each(&mut object.0, "ports") {
            fill(port, "name", "");
            fill(port, "protocol", "TCP");
        }
    }

    fn metadata_checks(&self) -> MetadataChecks {
        MetadataChecks::Changes
    }

    fn generation(&self) -> Generation {
        Generation::Counted(&["labels"])
    }

    fn table(&self) -> Option<&'static Table> {
        Some(&TABLE)
    }
}

static TABLE: Table = Table {
    columns: &[
        NAME,
        Column::text("AddressType", "What sort of addresses they are."),
        Column::text("Ports", "Ports of every address."),
        Column::text("Endpoints", "The addresses."),
        AGE,
    ],
    cells: |object: &Object, clock: &dyn Clock| {
        let port = |port: &Value| port.text_or_number("port", port.text_or("name", "*"));
        let ports: Vec<String> = object.items("ports").iter().map(port).collect();
        let addresses = object.items("endpoints").iter().flat_map(|endpoint| endpoint.items("addresses"));
        let addresses: Vec<String> = addresses.filter_map(Value::as_str).map(str::to_owned).collect();
        let shown =
            |texts: &[String]| if texts.is_empty() { UNSET.to_owned() } else { first_three(texts, ",") };
        vec![
            json!(object.name()),
            json!(object.text("addressType")),
            json!(shown(&ports)),
            json!(shown(&addresses)),
            age(object, clock),
        ]
    },
};
