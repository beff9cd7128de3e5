//! PodTemplate: a template for pods of a controller.

use apimachinery::clock::Clock;
use apimachinery::field::{FieldErrors, FieldPath};
use apimachinery::object::Object;
use serde_json::{Value, json};

use crate::pods;
use crate::table::NAME;
use crate::table::cell::labels;
use crate::table::workload::containers;
use crate::{Column, Context, Generation, Kind, MetadataChecks, STANDARD_VERBS, Storage, Strategy, Table};

pub(super) const KIND: Kind = Kind {
    group: "",
    versions: &["v1"],
    kind: "PodTemplate",
    resource: "podtemplates",
    singular: "podtemplate",
    short_names: &[],
    categories: &[],
    namespaced: true,
    storage: Storage::Stored,
    verbs: STANDARD_VERBS,
    subresources: &[],
    schema: "core/v1.PodTemplate",
    strategy: &PodTemplate,
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

    fn metadata_checks(&self) -> MetadataChecks {
        MetadataChecks::Changes
    }

    fn delete_returns_object(&self) -> bool {
        true
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
