//! IPAddress: an allocated address and its owner. The object name is the address.

use apimachinery::clock::Clock;
use apimachinery::object::Object;
use serde_json::{Value, json};

use crate::table::NAME;
use crate::table::cell::PathReader;
use crate::{Column, Kind, MetadataChecks, NameRule, STANDARD_VERBS, Storage, Strategy, Table};

pub(super) const KIND: Kind = Kind {
    group: "networking",
    versions: &["v1"],
    kind: "IPAddress",
    resource: "ipaddresses",
    singular: "ipaddress",
    short_names: &["ip"],
    categories: &[],
    namespaced: false,
    storage: Storage::Stored,
    verbs: STANDARD_VERBS,
    subresources: &[],
    schema: "networking/v1.IPAddress",
    strategy: &IpAddress,
};

struct IpAddress;

impl Strategy for IpAddress {
    fn name_rule(&self) -> NameRule {
        NameRule::PathSegment
    }

    fn metadata_checks(&self) -> MetadataChecks {
        MetadataChecks::Changes
    }

    fn table(&self) -> Option<&'static Table> {
        Some(&TABLE)
    }
}

static TABLE: Table = Table { columns: &[NAME, Column::text("ParentRef", "The object that has it.")], cells };

fn cells(object: &Object, _clock: &dyn Clock) -> Vec<Value> {
    let parts = ["group", "resource", "namespace", "name"];
    let parts = parts.map(|part| object.text(&format!("spec.parentRef.{part}")).to_owned());
    let parent: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    vec![json!(object.name()), json!(parent.join("/"))]
}
