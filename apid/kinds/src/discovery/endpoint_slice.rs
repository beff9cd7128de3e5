//! EndpointSlice: a subset of the addresses behind a service.

use apimachinery::clock::Clock;
use apimachinery::field::FieldErrors;
use apimachinery::object::Object;
use serde_json::{Value, json};

use super::endpoint_slice_rules;
use crate::defaults::{fill, map_at, maps_in_list};
use crate::table::cell::{PathReader, UNSET, first_three};
use crate::table::{AGE, NAME};
use crate::validation::immutable_fields;
use crate::{BuiltInKind, Column, Context, Generation, MetadataChecks, Strategy, WriteRules};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    rules: WriteRules {
        metadata_checks: MetadataChecks::ALL,
        generation: Generation::Counted(&["labels"]),
        ..WriteRules::BUILT_IN
    },
    columns: &[
        NAME,
        Column::text("AddressType", "Type of the addresses.").text_at("addressType"),
        Column::text("Ports", "Ports of each address."),
        Column::text("Endpoints", "Addresses of the endpoints."),
        AGE,
    ],
    cells,
    strategy: &EndpointSlice,
    ..BuiltInKind::namespaced("discovery/v1.EndpointSlice", "endpointslices")
};

struct EndpointSlice;

impl Strategy for EndpointSlice {
    fn default(&self, object: &mut Object, _ctx: &Context<'_>) {
        for port in maps_in_list(&mut object.0, "ports") {
            fill(port, "name", "");
            fill(port, "protocol", "TCP");
        }
    }

    fn prepare_create(&self, object: &mut Object, _ctx: &Context<'_>) {
        drop_topology(object);
    }

    fn prepare_update(&self, new: &mut Object, old: &Object, _ctx: &Context<'_>) {
        if new.get("endpoints") != old.get("endpoints") {
            drop_topology(new);
        }
    }

    fn canonicalize(&self, object: &mut Object, _ctx: &Context<'_>) {
        // The feature gate of `forNodes`, PreferSameTrafficDistribution, is off by default.
        for endpoint in maps_in_list(&mut object.0, "endpoints") {
            if let Some(hints) = map_at(endpoint, "hints") {
                hints.remove("forNodes");
            }
        }
    }

    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        endpoint_slice_rules::validate(object)
    }

    fn warnings(&self, new: &Object, _old: Option<&Object>, ctx: &Context<'_>) -> Vec<String> {
        endpoint_slice_rules::warnings(new, ctx.names)
    }

    fn validate_update(&self, new: &Object, old: &Object, _ctx: &Context<'_>) -> FieldErrors {
        immutable_fields(new, old, &["addressType"])
    }
}

/// Removes `deprecatedTopology`, which other fields of endpoints replaced.
fn drop_topology(object: &mut Object) {
    for endpoint in maps_in_list(&mut object.0, "endpoints") {
        endpoint.remove("deprecatedTopology");
    }
}

fn cells(object: &Object, _clock: &dyn Clock) -> Vec<Value> {
    let port = |port: &Value| port.text_or_number("port", port.text_or("name", "*"));
    let ports: Vec<String> = object.items("ports").iter().map(port).collect();
    let addresses = object.items("endpoints").iter().flat_map(|endpoint| endpoint.items("addresses"));
    let addresses: Vec<String> = addresses.filter_map(Value::as_str).map(str::to_owned).collect();
    let first_texts =
        |texts: &[String]| if texts.is_empty() { UNSET.to_owned() } else { first_three(texts, ",") };
    vec![json!(first_texts(&ports)), json!(first_texts(&addresses))]
}
