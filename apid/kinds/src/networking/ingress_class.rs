//! IngressClass: a class of ingresses and its controller.

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;
use serde_json::json;

use super::ingress_rules;
use crate::defaults::{fill, part};
use crate::table::cell::{NONE, PathReader};
use crate::table::{AGE, NAME};
use crate::validation::{Field, text};
use crate::{BuiltInKind, Column, Context, Generation, Strategy, WriteRules};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    rules: WriteRules { generation: Generation::Counted(&[]), ..WriteRules::BUILT_IN },
    columns: &[
        NAME,
        Column::text("Controller", "Controller of the ingresses of this class.").text_at("spec.controller"),
        Column::text("Parameters", "Object with parameters of the controller."),
        AGE,
    ],
    cells: |object, _| vec![json!(parameters(object))],
    strategy: &IngressClass,
    ..BuiltInKind::cluster_scoped("networking/v1.IngressClass", "ingressclasses")
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
        text::check_length(&controller, CONTROLLER_MAX, &mut errors);
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

fn parameters(object: &Object) -> String {
    let Some(parameters) = object.find("spec.parameters") else { return NONE.to_owned() };
    let (kind, name) = (parameters.text("kind"), parameters.text("name"));
    match parameters.text("apiGroup") {
        "" => format!("{kind}/{name}"),
        group => format!("{kind}.{group}/{name}"),
    }
}
