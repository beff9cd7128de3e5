//! ReplicationController: a fixed number of replicas of a pod template. Predecessor of ReplicaSet.

use apimachinery::field::FieldErrors;
use apimachinery::names::Names;
use apimachinery::object::{Map, Object, Value};

use crate::defaults::{fill, label_like_template, part};
use crate::pods;
use crate::pods::validation::{self, replicated_status};
use crate::table::cell::{PathReader, labels};
use crate::table::workload::{REPLICA_COLUMNS, replica_cells};
use crate::validation::{Field, number};
use crate::{
    BuiltInKind, Context, DefaultPropagation, Generation, MetadataChecks, Revalidation, Strategy,
    Subresource, WriteRules,
};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    short_names: &["rc"],
    categories: &["all"],
    subresources: &[Subresource::scale(), Subresource::status("ReplicationController")],
    rules: WriteRules {
        metadata_checks: MetadataChecks::CHANGES,
        generation: Generation::Counted(&[]),
        has_validation_tags: true,
        revalidation: Revalidation::Never,
        default_propagation: DefaultPropagation::Orphan,
        ..WriteRules::BUILT_IN
    },
    selectable_fields: &["status.replicas"],
    columns: REPLICA_COLUMNS,
    cells: |object, _| replica_cells(object, labels(object, "spec.selector")),
    strategy: &ReplicationController,
    ..BuiltInKind::namespaced("core/v1.ReplicationController", "replicationcontrollers")
};

struct ReplicationController;

impl Strategy for ReplicationController {
    /// Defaults the selector and the controller's labels to the labels of the template.
    fn default(&self, object: &mut Object, ctx: &Context<'_>) {
        pods::defaults::template(object, "spec.template", ctx.names);
        let labels = object.at(&["spec", "template", "metadata", "labels"]).cloned();
        let Some(spec) = part(object, "spec") else { return };
        fill(spec, "replicas", 1);
        if let Some(labels) = labels {
            fill(spec, "selector", labels);
        }
        label_like_template(object);
    }

    /// Copies the labels of the pod template to a controller without labels. Defaulting has done the same,
    /// but since then the template may have received its stored value again.
    fn canonicalize(&self, object: &mut Object, _ctx: &Context<'_>) {
        label_like_template(object);
    }

    fn validate(&self, object: &Object, ctx: &Context<'_>) -> FieldErrors {
        validate_spec(object, ctx.names)
    }

    fn warnings(&self, new: &Object, old: Option<&Object>, ctx: &Context<'_>) -> Vec<String> {
        let mut warnings: Vec<String> = pods::warnings::workload_name(new, old).into_iter().collect();
        warnings.extend(pods::warnings::template(new, old, "spec.template", ctx.names));
        warnings
    }

    fn validate_update(&self, new: &Object, _old: &Object, ctx: &Context<'_>) -> FieldErrors {
        if ctx.subresource == "status" { replicated_status(new) } else { validate_spec(new, ctx.names) }
    }

    fn field(&self, object: &Object, _field: &str) -> String {
        object.integer("status.replicas").to_string()
    }
}

fn validate_spec(object: &Object, names: &Names) -> FieldErrors {
    let spec = Field::new(object.get("spec"), "spec");
    let mut errors = FieldErrors::new();
    number::check_tagged_minimum(&spec.child("minReadySeconds"), &mut errors);
    let selector = spec.child("selector");
    if selector.value().and_then(Value::as_object).is_none_or(Map::is_empty) {
        errors.push(selector.required(""));
    }
    let replicas = spec.child("replicas");
    if replicas.is_present() {
        number::check_tagged_minimum(&replicas, &mut errors);
    } else {
        errors.push(replicas.required("").with_tag(schema::tags::REQUIRED));
    }
    let template = spec.child("template");
    if !template.is_present() {
        errors.push(template.required(""));
        return errors;
    }
    let selected = |labels: &Value| {
        let pairs = selector.value().and_then(Value::as_object).into_iter().flatten();
        pairs.into_iter().all(|(key, value)| labels.get(key) == Some(value))
    };
    validation::matching_labels(&template, selected, &mut errors);
    validation::always_restarting(&template, "ReplicationController", names, &mut errors);
    errors
}
