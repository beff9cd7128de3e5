//! ControllerRevision: an earlier state of a controller's template, for rollbacks.

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;
use serde_json::json;

use crate::table::cell::{NONE, PathReader};
use crate::table::{AGE, NAME, Source};
use crate::validation::{Field, immutable_fields, number};
use crate::{BuiltInKind, Column, Context, Strategy};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    columns: &[
        NAME,
        Column::text("Controller", "Controller of the revision."),
        Column::text("Revision", "Number of the revision.").with_source(Source::Number("revision")),
        AGE,
    ],
    cells: |object, _| vec![json!(controller(object))],
    strategy: &ControllerRevision,
    ..BuiltInKind::namespaced("apps/v1.ControllerRevision", "controllerrevisions")
};

struct ControllerRevision;

impl Strategy for ControllerRevision {
    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        let mut errors = FieldErrors::new();
        Field::new(object.get("data"), "data").require_present("data is mandatory", &mut errors);
        number::check_not_negative(&Field::new(object.get("revision"), "revision"), &mut errors);
        errors
    }

    fn validate_update(&self, new: &Object, old: &Object, _ctx: &Context<'_>) -> FieldErrors {
        immutable_fields(new, old, &["data"])
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
