//! Columns that all kinds with a pod template have.

use apimachinery::clock::Clock;
use apimachinery::object::Object;
use serde_json::{Value, json};

use super::cell::Read;
use super::{AGE, NAME, age};
use crate::Column;

/// Containers, for `-o wide`.
pub(crate) const CONTAINERS: Column = Column::wide("Containers", "Names of the containers of its pods.");
/// Images, for `-o wide`.
pub(crate) const IMAGES: Column = Column::wide("Images", "Images of the containers of its pods.");
/// Selector, for `-o wide`.
pub(crate) const SELECTOR: Column = Column::wide("Selector", "Which pods are its own.");

/// The columns of kinds that keep a number of pods of one template.
pub(crate) const REPLICATED: &[Column] = &[
    NAME,
    Column::integer("Desired", "Pods wanted."),
    Column::integer("Current", "Pods there are."),
    Column::integer("Ready", "Pods that are ready."),
    AGE,
    CONTAINERS,
    IMAGES,
    SELECTOR,
];

/// The cells of [`REPLICATED`].
pub(crate) fn replicated(object: &Object, clock: &dyn Clock, selector: String) -> Vec<Value> {
    let mut cells = vec![
        json!(object.name()),
        json!(replicas(object)),
        json!(object.integer("status.replicas")),
        json!(object.integer("status.readyReplicas")),
    ];
    cells.extend(of_template(object, clock, "spec.template", selector));
    cells
}

/// The cells with which such tables end: age, containers, images, selector.
pub(crate) fn of_template(
    object: &Object,
    clock: &dyn Clock,
    template: &str,
    selector: String,
) -> [Value; 4] {
    let [containers, images] = containers(object, template);
    [age(object, clock), containers, images, json!(selector)]
}

/// The names and the images of the containers of a pod template.
pub(crate) fn containers(tree: &impl Read, template: &str) -> [Value; 2] {
    let containers = tree.items(&format!("{template}.spec.containers"));
    ["name", "image"]
        .map(|field| json!(containers.iter().map(|c| c.text(field)).collect::<Vec<_>>().join(",")))
}

/// The wanted number of pods; 1 when nobody said how many.
pub(crate) fn replicas(tree: &impl Read) -> i64 {
    tree.find("spec.replicas").and_then(Value::as_i64).unwrap_or(1)
}
