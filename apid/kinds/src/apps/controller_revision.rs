//! ControllerRevision: an earlier state of a controller's template, for rollbacks.

use apimachinery::clock::Clock;
use apimachinery::field::FieldErrors;
use apimachinery::object::Object;
use serde_json::json;

use crate::table::cell::{NONE, PathReader};
use crate::table::{AGE, NAME, age};
use crate::validation::{Field, number};
use crate::{Column, Context, Kind, MetadataChecks, Revalidation, Strategy, Table};

pub(super) const KIND: Kind = Kind {
    group: "apps",
    kind: "ControllerRevision",
    resource: "controllerrevisions",
    singular: "controllerrevision",
    schema: "apps/v1.ControllerRevision",
    metadata_checks: MetadataChecks::full(Revalidation::Always),
    table: &TABLE,
    strategy: &ControllerRevision,
    ..Kind::NAMESPACED
};

struct ControllerRevision;

impl Strategy for ControllerRevision {
    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        let mut errors = FieldErrors::new();
        let data = Field::new(object.get("data"), "data");
        if !data.is_present() {
            errors.push(data.required("data is mandatory"));
        }
        number::check_not_negative(&Field::new(object.get("revision"), "revision"), &mut errors);
        errors
    }

    fn validate_update(&self, new: &Object, old: &Object, _ctx: &Context<'_>) -> FieldErrors {
        let mut errors = FieldErrors::new();
        let data = Field::new(new.get("data"), "data");
        if data.value() != old.get("data") {
            errors.push(data.invalid("field is immutable"));
        }
        errors
    }
}

static TABLE: Table = Table {
    columns: &[
        NAME,
        Column::text("Controller", "Controller of the revision."),
        Column::text("Revision", "Number of the revision."),
        AGE,
    ],
    cells: |object: &Object, clock: &dyn Clock| {
        let owners = object.items("metadata.ownerReferences");
        let controller = owners.iter().find(|owner| owner.flag("controller"));
        let controller_text = controller.map_or_else(
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
        vec![
            json!(object.name()),
            json!(controller_text),
            json!(object.integer("revision")),
            age(object, clock),
        ]
    },
};
