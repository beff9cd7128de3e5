//! Walk through the values of an object that a schema describes.

use apimachinery::field::FieldPath;
use apimachinery::object::{Map, Value};

use super::node::{Flag, Node};

/// A visit of a value at a path; returns whether the walk visits the parts of the value.
type ValueVisitor<'v> = dyn FnMut(&Node, &Value, &FieldPath) -> bool + 'v;

/// Visits the values of the fields whose schemas have one of `flags`, and the values below them.
pub(super) fn visit_fields(
    node: &Node,
    fields: &Map<String, Value>,
    path: &FieldPath,
    flags: &[Flag],
    visit: &mut ValueVisitor<'_>,
) {
    for (name, value) in fields {
        match (node.property(name), node.additional()) {
            (Some(child), _) if child.has_any(flags) => {
                visit_value(child, value, &path.child(name), flags, visit);
            }
            (None, Some(child)) if child.has_any(flags) => {
                visit_value(child, value, &path.key(name), flags, visit);
            }
            _ => {}
        }
    }
}

/// Visits a value, and then the values below it whose schemas have one of `flags`.
pub(super) fn visit_value(
    node: &Node,
    value: &Value,
    path: &FieldPath,
    flags: &[Flag],
    visit: &mut ValueVisitor<'_>,
) {
    if !visit(node, value, path) {
        return;
    }
    match value {
        Value::Object(fields) => visit_fields(node, fields, path, flags, visit),
        Value::Array(items) => {
            let Some(child) = node.items.as_deref().filter(|child| child.has_any(flags)) else { return };
            for (index, item) in items.iter().enumerate() {
                visit_value(child, item, &path.index(index), flags, visit);
            }
        }
        _ => {}
    }
}
