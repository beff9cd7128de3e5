//! PodTemplate: a template for pods of a controller.

use apimachinery::clock::Clock;
use apimachinery::field::{FieldErrors, FieldPath};
use apimachinery::object::Object;
use serde_json::{Value, json};

use crate::pods;
use crate::table::NAME;
use crate::table::cell::labels;
use crate::table::workload::containers;
use crate::{Column, Context, Generation, Kind, MetadataChecks, Strategy, Table};

pub(super) const KIND: Kind = Kind {
    group: "",
    kind: "PodTemplate",
    resource: "podtemplates",
    singular: "podtemplate",
    schema: "core/v1.PodTemplate",
    metadata_checks: MetadataChecks::CHANGES,
    generation: Generation::Counted(&[]),
    delete_returns_object: true,
    table: &TABLE,
    strategy: &PodTemplate,
    ..Kind::NAMESPACED
};

struct PodTemplate;

impl Strategy for PodTemplate {
    fn validate(&self, object: &Object, ctx: &Context<'_>) -> FieldErrors {
        let nothing = Value::Null;
        let template = object.get("template").unwrap_or(&nothing);
        pods::validation::template(template, &FieldPath::new("template"), ctx.names)
    }

    fn default(&self, object: &mut Object, _ctx: &Context<'_>) {
        pods::defaults::template(object, "template");
    }

    fn warnings(&self, new: &Object, old: Option<&Object>, ctx: &Context<'_>) -> Vec<String> {
        pods::warnings::template(new, old, "template", ctx.names)
    }
}

static TABLE: Table = Table {
    columns: &[
        NAME,
        Column::text("Containers", "Names of its containers."),
        Column::text("Images", "Images of its containers."),
        Column::text("Pod Labels", "Labels of its pods."),
    ],
    cells,
};

fn cells(object: &Object, _clock: &dyn Clock) -> Vec<Value> {
    let [containers, images] = containers(object, "template");
    vec![json!(object.name()), containers, images, json!(labels(object, "template.metadata.labels"))]
}
