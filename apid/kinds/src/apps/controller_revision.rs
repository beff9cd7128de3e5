//! ControllerRevision: an earlier state of a controller's template, for rollbacks.

use apimachinery::clock::Clock;
use apimachinery::object::Object;
use serde_json::json;

use crate::table::cell::{NONE, PathReader};
use crate::table::{AGE, NAME, age};
use crate::{Column, Kind, MetadataChecks, STANDARD_VERBS, Storage, Strategy, Table};

pub(super) const KIND: Kind = Kind {
    group: "apps",
    versions: &["v1"],
    kind: "ControllerRevision",
    resource: "controllerrevisions",
    singular: "controllerrevision",
    short_names: &[],
    categories: &[],
    namespaced: true,
    storage: Storage::Stored,
    verbs: STANDARD_VERBS,
    subresources: &[],
    schema: "apps/v1.ControllerRevision",
    strategy: &ControllerRevision,
};

struct ControllerRevision;

impl Strategy for ControllerRevision {
    fn metadata_checks(&self) -> MetadataChecks {
        MetadataChecks::Changes
    }

    fn table(&self) -> Option<&'static Table> {
        Some(&TABLE)
    }
}

static TABLE: Table = Table {
    columns: &[
        NAME,
        Column::text("Controller", "The object whose state it is."),
        Column::text("Revision", "Its place in the history."),
        AGE,
    ],
    cells: |object: &Object, clock: &dyn Clock| {
        let owners = object.items("metadata.ownerReferences");
        let controller = owners.iter().find(|owner| owner.flag("controller"));
        let shown = controller.map_or_else(
            || NONE.to_owned(),
            |owner| {
                let kind = owner.text("kind").to_lowercase();
                let name = owner.text("name");
                match owner.text("apiVersion").split_once('/') {
                    Some((group, _)) => format!("{kind}.{group}/{name}"),
                    None => format!("{kind}/{name}"),
                }
            },
        );
        vec![json!(object.name()), json!(shown), json!(object.integer("revision")), age(object, clock)]
    },
};
