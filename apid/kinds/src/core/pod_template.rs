//! PodTemplate: a template for pods of a controller.

use apimachinery::clock::Clock;
use apimachinery::field::{FieldErrors, FieldPath};
use apimachinery::object::Object;
use serde_json::{Value, json};

use crate::pods;
use crate::table::NAME;
use crate::table::cell::labels;
use crate::table::workload::containers;
use crate::{BuiltInKind, Column, Context, Generation, MetadataChecks, Strategy, WriteRules};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    rules: WriteRules {
        metadata_checks: MetadataChecks::CHANGES,
        generation: Generation::Counted(&[]),
        delete_returns_object: true,
        ..WriteRules::BUILT_IN
    },
    columns: &[
        NAME,
        Column::text("Containers", "Names of its containers."),
        Column::text("Images", "Images of its containers."),
        Column::text("Pod Labels", "Labels of its pods."),
    ],
    cells,
    strategy: &PodTemplate,
    ..BuiltInKind::namespaced("core/v1.PodTemplate", "podtemplates")
};

struct PodTemplate;

impl Strategy for PodTemplate {
    fn validate(&self, object: &Object, ctx: &Context<'_>) -> FieldErrors {
        let nothing = Value::Null;
        let template = object.get("template").unwrap_or(&nothing);
        pods::validation::template(template, &FieldPath::new("template"), ctx.names)
    }

    fn default(&self, object: &mut Object, ctx: &Context<'_>) {
        pods::defaults::template(object, "template", ctx.names);
    }

    fn warnings(&self, new: &Object, _old: Option<&Object>, ctx: &Context<'_>) -> Vec<String> {
        pods::warnings::template(new, None, "template", ctx.names)
    }
}

fn cells(object: &Object, _clock: &dyn Clock) -> Vec<Value> {
    let [containers, images] = containers(object, "template");
    vec![containers, images, json!(labels(object, "template.metadata.labels"))]
}
