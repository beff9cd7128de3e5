//! Columns that all kinds with a pod template have.

use serde_json::{Value, json};

use super::cell::Read;
use crate::Column;

/// Containers, for `-o wide`.
pub(crate) const CONTAINERS: Column = Column::wide("Containers", "Names of the containers of its pods.");
/// Images, for `-o wide`.
pub(crate) const IMAGES: Column = Column::wide("Images", "Images of the containers of its pods.");
/// Selector, for `-o wide`.
pub(crate) const SELECTOR: Column = Column::wide("Selector", "Which pods are its own.");

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
