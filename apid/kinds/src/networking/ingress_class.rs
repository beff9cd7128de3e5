//! IngressClass: a class of ingresses and its controller.

use apimachinery::clock::Clock;
use apimachinery::field::{FieldError, FieldErrors};
use apimachinery::object::Object;
use serde_json::json;

use super::ingress_rules;
use crate::defaults::{fill, part};
use crate::table::cell::{NONE, PathReader};
use crate::table::{AGE, NAME, age};
use crate::validation::{Field, text};
use crate::{Column, Context, Generation, Kind, MetadataChecks, Revalidation, Strategy, Table};

pub(super) const KIND: Kind = Kind {
    group: "networking",
    kind: "IngressClass",
    resource: "ingressclasses",
    singular: "ingressclass",
    schema: "networking/v1.IngressClass",
    metadata_checks: MetadataChecks::full(Revalidation::Always),
    generation: Generation::Counted(&[]),
    table: &TABLE,
    strategy: &IngressClass,
    ..Kind::CLUSTER_SCOPED
};

struct IngressClass;

/// Maximum length, in bytes, of the name of a controller.
const CONTROLLER_MAX: usize = 250;

impl Strategy for IngressClass {
    fn default(&self, object: &mut Object, _ctx: &Context<'_>) {
        if let Some(parameters) = part(object, "spec.parameters") {
            fill(parameters, "scope", "Cluster");
        }
    }

    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        let mut errors = FieldErrors::new();
        let spec = Field::new(object.get("spec"), "spec");
        let controller = spec.child("controller");
        if controller.text().len() > CONTROLLER_MAX {
            errors.push(FieldError::too_long(&controller.path(), CONTROLLER_MAX));
        }
        text::check_domain_prefixed_path(&controller, &mut errors);
        let parameters = spec.child("parameters");
        if parameters.is_present() {
            ingress_rules::validate_class_parameters(&parameters, &mut errors);
        }
        errors
    }

    fn validate_update(&self, new: &Object, old: &Object, _ctx: &Context<'_>) -> FieldErrors {
        let mut errors = FieldErrors::new();
        let (new, old) = (Field::new(new.get("spec"), "spec"), Field::new(old.get("spec"), "spec"));
        let controller = new.child("controller");
        if controller.text() != old.child("controller").text() {
            errors.push(controller.invalid_value(controller.text(), "field is immutable"));
        }
        errors
    }
}

static TABLE: Table = Table {
    columns: &[
        NAME,
        Column::text("Controller", "Controller of the ingresses of this class."),
        Column::text("Parameters", "Object with parameters of the controller."),
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
