//! ControllerRevision: an earlier state of a controller's template, for rollbacks.

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;
use serde_json::json;

use crate::table::cell::{NONE, PathReader};
use crate::table::{AGE, NAME, Source};
use crate::validation::{Field, number};
use crate::{Column, Context, Kind, Strategy};

pub(super) const KIND: Kind = Kind {
    columns: &[
        NAME,
        Column::text("Controller", "Controller of the revision."),
        Column::text("Revision", "Number of the revision.").of(Source::Number("revision")),
        AGE,
    ],
    cells: |object, _| vec![json!(controller(object))],
    strategy: &ControllerRevision,
    ..Kind::namespaced("apps/v1.ControllerRevision", "controllerrevisions")
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

fn controller(object: &Object) -> String {
    let owners = object.items("metadata.ownerReferences");
    let Some(owner) = owners.iter().find(|owner| owner.flag("controller")) else { return NONE.to_owned() };
    let (kind, name) = (owner.text("kind").to_lowercase(), owner.text("name"));
    match owner.text("apiVersion").split_once('/') {
        Some((group, _)) => format!("{kind}.{group}/{name}"),
        None => format!("{kind}/{name}"),
    }
}
