//! IngressClass: a class of ingresses and its controller.

use apimachinery::clock::Clock;
use apimachinery::object::Object;
use serde_json::json;

use crate::table::cell::{NONE, PathReader};
use crate::table::{AGE, NAME, age};
use crate::{Column, Generation, Kind, MetadataChecks, STANDARD_VERBS, Storage, Strategy, Table};

pub(super) const KIND: Kind = Kind {
    group: "networking",
    versions: &["v1"],
    kind: "IngressClass",
    resource: "ingressclasses",
    singular: "ingressclass",
    short_names: &[],
    categories: &[],
    namespaced: false,
    storage: Storage::Stored,
    verbs: STANDARD_VERBS,
    subresources: &[],
    schema: "networking/v1.IngressClass",
    strategy: &IngressClass,
};

struct IngressClass;

impl Strategy for IngressClass {
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
        Column::text("Controller", "Who serves ingresses of this class."),
        Column::text("Parameters", "An object with more of its configuration."),
        AGE,
    ],
    cells: |object: &Object, clock: &dyn Clock| {
        let parameters = object.find("spec.parameters").map_or_else(
            || NONE.to_owned(),
            |parameters| {
                let (kind, name) = (parameters.text("kind"), parameters.text("name"));
                match parameters.text("apiGroup") {
                    "" => format!("{kind}/{name}"),
                    group => format!("{kind}.{group}/{name}"),
                }
            },
        );
        vec![
            json!(object.name()),
            json!(object.text("spec.controller")),
            json!(parameters),
            age(object, clock),
        ]
    },
};
