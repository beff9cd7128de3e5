//! Endpoints: the addresses behind a service (deprecated form of EndpointSlice).

use apimachinery::clock::Clock;
use apimachinery::names::Names;
use apimachinery::object::Object;
use serde_json::{Value, json};

use crate::defaults::{each, fill_text};
use crate::table::cell::{NONE, PathReader, first_three};
use crate::table::{AGE, NAME, age};
use crate::{Column, Context, Kind, STANDARD_VERBS, Storage, Strategy, Table};

pub(super) const KIND: Kind = Kind {
    group: "",
    versions: &["v1"],
    kind: "Endpoints",
    resource: "endpoints",
    singular: "endpoints",
    short_names: &["ep"],
    categories: &[],
    namespaced: true,
    storage: Storage::Stored,
    verbs: STANDARD_VERBS,
    subresources: &[],
    schema: "core/v1.Endpoints",
    strategy: &Endpoints,
};

struct Endpoints;

impl Strategy for Endpoints {
    fn default(&self, object: &mut Object, _ctx: &Context<'_>) {
        for subset in each(&mut object.0, "subsets") {
            for port in each(subset, "ports") {
                fill_text(port, "protocol", "TCP");
            }
        }
    }

    fn create_on_update(&self) -> bool {
        true
    }

    fn deprecation(&self, names: &Names) -> Option<String> {
        let slices = names.group("discovery");
        Some(format!("v1 Endpoints is deprecated in v1.33+; use {slices}/v1 EndpointSlice"))
    }

    fn table(&self) -> Option<&'static Table> {
        Some(&TABLE)
    }
}

static TABLE: Table =
    Table { columns: &[NAME, Column::text("Endpoints", "Addresses and ports that are ready."), AGE], cells };

fn cells(object: &Object, clock: &dyn Clock) -> Vec<Value> {
    let subsets = object.items("subsets");
    let shown = match subsets {
        [] => NONE.to_owned(),
        _ => first_three(&subsets.iter().flat_map(addresses).collect::<Vec<_>>(), ","),
    };
    vec![json!(object.name()), json!(shown), age(object, clock)]
}

/// Each address with each port, or the address alone if the subset has no ports.
fn addresses(subset: &Value) -> Vec<String> {
    let addresses = subset.items("addresses").iter().map(|address| address.text("ip"));
    match subset.items("ports") {
        [] => addresses.map(str::to_owned).collect(),
        ports => ports
            .iter()
            .flat_map(|port| addresses.clone().map(|address| at_port(address, port.integer("port"))))
            .collect(),
    }
}

fn at_port(address: &str, port: i64) -> String {
    if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") }
}
