//! Printer columns of kinds with a pod template.

use apimachinery::clock::Clock;
use apimachinery::object::Object;
use serde_json::{Value, json};

use super::cell::PathReader;
use super::{AGE, NAME, age};
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
    Column::integer("Current", "Current number of pods."),
    Column::integer("Ready", "Number of ready pods."),
    AGE,
    CONTAINERS,
    IMAGES,
    SELECTOR,
];

/// Cells of [`REPLICA_COLUMNS`].
pub(crate) fn replica_cells(object: &Object, clock: &dyn Clock, selector: String) -> Vec<Value> {
    let mut cells = vec![
        json!(object.name()),
        json!(replicas(object)),
        json!(object.integer("status.replicas")),
        json!(object.integer("status.readyReplicas")),
    ];
    cells.extend(template_cells(object, clock, "spec.template", selector));
    cells
}

/// Last cells of workload tables: age, containers, images, selector.
pub(crate) fn template_cells(
    object: &Object,
    clock: &dyn Clock,
    template: &str,
    selector: String,
) -> [Value; 4] {
    let [containers, images] = containers(object, template);
    [age(object, clock), containers, images, json!(selector)]
}

/// Container names and images of a pod template.
pub(crate) fn containers(tree: &impl PathReader, template: &str) -> [Value; 2] {
    let containers = tree.items(&format!("{template}.spec.containers"));
    ["name", "image"]
        .map(|field| json!(containers.iter().map(|c| c.text(field)).collect::<Vec<_>>().join(",")))
}

/// Desired number of replicas; default 1.
pub(crate) fn replicas(tree: &impl PathReader) -> i64 {
    tree.find("spec.replicas").and_then(Value::as_i64).unwrap_or(1)
}
