//! Ingress: routes HTTP hosts and paths to services.

use apimachinery::clock::Clock;
use apimachinery::object::Object;
use serde_json::json;

use crate::table::cell::{NONE, PathReader, first_three, load_balancer};
use crate::table::{AGE, NAME, age};
use crate::{
    Column, Generation, Kind, MetadataChecks, STANDARD_VERBS, Storage, Strategy, Subresource, Table,
};

pub(super) const KIND: Kind = Kind {
    group: "networking",
    versions: &["v1"],
    kind: "Ingress",
    resource: "ingresses",
    singular: "ingress",
    short_names: &["ing"],
    categories: &[],
    namespaced: true,
    storage: Storage::Stored,
    verbs: STANDARD_VERBS,
    subresources: &[Subresource::status("Ingress")],
    schema: "networking/v1.Ingress",
    strategy: &Ingress,
};

struct Ingress;

impl Strategy for Ingress {
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
    columns: &[
        NAME,
        Column::text("Class", "The class of controllers that serve it."),
        Column::text("Hosts", "Hosts it answers for."),
        Column::text("Address", "Where it is reached."),
        Column::text("Ports", "Ports it listens on."),
        AGE,
    ],
    cells: |object: &Object, clock: &dyn Clock| {
        let hosts: Vec<String> = object
            .items("spec.rules")
            .iter()
            .map(|rule| rule.text("host"))
            .filter(|h| !h.is_empty())
            .map(str::to_owned)
            .collect();
        let hosts = if hosts.is_empty() { "*".to_owned() } else { first_three(&hosts, ",") };
        let ports = if object.items("spec.tls").is_empty() { "80" } else { "80, 443" };
        vec![
            json!(object.name()),
            json!(object.text_or("spec.ingressClassName", NONE)),
            json!(hosts),
            json!(load_balancer(object)),
            json!(ports),
            age(object, clock),
        ]
    },
};
