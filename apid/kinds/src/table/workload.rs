//! Printer columns of kinds with a pod template.

use apimachinery::object::Object;
use serde_json::{Value, json};

use super::cell::PathReader;
use super::{AGE, NAME, Source};
use crate::Column;

/// Container names, for `-o wide`.
pub(crate) const CONTAINERS: Column = Column::wide("Containers", "Names of the containers of its pods.");
/// Container images, for `-o wide`.
pub(crate) const IMAGES: Column = Column::wide("Images", "Images of the containers of its pods.");
/// Selector, for `-o wide`.
pub(crate) const SELECTOR: Column = Column::wide("Selector", "Selector of the pods.");

/// Columns of kinds with replicas.
pub(crate) const REPLICA_COLUMNS: &[Column] = &[
    NAME,
    Column::integer("Desired", "Desired number of pods."),
    Column::integer("Current", "Current number of pods.").with_source(Source::Number("status.replicas")),
    Column::integer("Ready", "Number of ready pods.").with_source(Source::Number("status.readyReplicas")),
    AGE,
    CONTAINERS,
    IMAGES,
    SELECTOR,
];

/// Cells of [`REPLICA_COLUMNS`].
pub(crate) fn replica_cells(object: &Object, selector: String) -> Vec<Value> {
    let mut cells = vec![json!(replicas(object))];
    cells.extend(template_cells(object, "spec.template", selector));
    cells
}

/// Last cells of workload tables: containers, images, selector.
pub(crate) fn template_cells(object: &Object, template: &str, selector: String) -> [Value; 3] {
    let [containers, images] = containers(object, template);
    [containers, images, json!(selector)]
}

/// Ready pods and desired pods.
pub(crate) fn ready(tree: &impl PathReader) -> Value {
    json!(format!("{}/{}", tree.integer("status.readyReplicas"), replicas(tree)))
}

/// Container names and images of a pod template.
pub(crate) fn containers(tree: &impl PathReader, template: &str) -> [Value; 2] {
    let containers = tree.items(&format!("{template}.spec.containers"));
    ["name", "image"]
        .map(|field| json!(containers.iter().map(|c| c.text(field)).collect::<Vec<_>>().join(",")))
}

/// Desired number of replicas; default 1.
fn replicas(tree: &impl PathReader) -> i64 {
    tree.find("spec.replicas").and_then(Value::as_i64).unwrap_or(1)
}
