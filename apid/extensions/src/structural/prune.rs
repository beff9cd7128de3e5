//! Pruning: removal of fields that the schema does not declare.

use std::fmt::Write as _;

use apimachinery::field::shorten_name;
use apimachinery::object::{Map, Value};

use super::node::{Additional, Flag, Node, is_type_or_metadata};

/// Maximum number of reported fields; further unknown fields are dropped without a report.
pub(super) const UNKNOWN_MAX: usize = 100;

/// Prunes an object. Returns the sorted paths of dropped fields, at most [`UNKNOWN_MAX`].
pub(super) fn object(node: &Node, fields: &mut Map<String, Value>) -> Vec<String> {
    let mut pruner = Pruner { path: String::new(), unknown: Vec::new() };
    pruner.prune_fields(Some(node), fields);
    pruner.finish()
}

/// Prunes a single value.
pub(super) fn value(node: &Node, value: &mut Value) -> Vec<String> {
    let mut pruner = Pruner { path: String::new(), unknown: Vec::new() };
    pruner.prune_value(Some(node), value);
    pruner.finish()
}

struct Pruner {
    /// Path of the current value.
    path: String,
    /// Paths of the dropped fields.
    unknown: Vec<String>,
}

impl Pruner {
    fn finish(mut self) -> Vec<String> {
        self.unknown.sort();
        self.unknown
    }

    /// Prunes a value. Without a schema every field of every object is unknown.
    fn prune_value(&mut self, node: Option<&Node>, value: &mut Value) {
        match value {
            Value::Object(fields) => self.prune_fields(node, fields),
            Value::Array(items) => {
                // A list in a part that preserves unknown fields preserves them in its items too.
                match node {
                    Some(node) if node.preserves_unknown() => self.prune_preserved_items(node, items),
                    _ => {
                        let items_node = node.and_then(|node| node.items.as_deref());
                        self.visit_items(items, |pruner, item| pruner.prune_value(items_node, item));
                    }
                }
            }
            _ => {}
        }
    }

    fn prune_preserved_items(&mut self, node: &Node, items: &mut [Value]) {
        let Some(items_node) = node.items.as_deref() else { return };
        self.visit_items(items, |pruner, item| pruner.prune_preserved(items_node, item));
    }

    /// Prunes a value under `preserve-unknown-fields`: unknown fields stay, and the values of declared fields
    /// are pruned.
    fn prune_preserved(&mut self, node: &Node, value: &mut Value) {
        match value {
            Value::Object(fields) => self.prune_declared(node, fields),
            Value::Array(items) => self.prune_preserved_items(node, items),
            _ => {}
        }
    }

    fn visit_items(&mut self, items: &mut [Value], visit: impl Fn(&mut Pruner, &mut Value)) {
        for (index, item) in items.iter_mut().enumerate() {
            if matches!(item, Value::Object(_) | Value::Array(_)) {
                let end = self.path.len();
                let _ = write!(self.path, "[{index}]");
                visit(self, item);
                self.path.truncate(end);
            }
        }
    }

    fn prune_fields(&mut self, node: Option<&Node>, fields: &mut Map<String, Value>) {
        let Some(node) = node else {
            return self.retain(fields, |_, _, _| false);
        };
        if node.preserves_unknown() {
            return self.prune_declared(node, fields);
        }
        self.retain(fields, |pruner, name, value| {
            if node.has(Flag::Embedded) && is_type_or_metadata(name) {
                return true;
            }
            let child = match (node.property(name), &node.additional) {
                (Some(child), _) => Some(child),
                (None, Additional::Schema(child)) => Some(&**child),
                (None, Additional::Allowed(_)) => None,
                (None, Additional::Absent) => return false,
            };
            pruner.with_field(name, |pruner| pruner.prune_value(child, value));
            true
        });
    }

    /// Prunes the values of the declared fields of an object, and keeps all its fields.
    fn prune_declared(&mut self, node: &Node, fields: &mut Map<String, Value>) {
        for (name, value) in fields.iter_mut() {
            let is_kept = node.has(Flag::Embedded) && is_type_or_metadata(name);
            if is_kept || !matches!(value, Value::Object(_) | Value::Array(_)) {
                continue;
            }
            let child = match (node.property(name), &node.additional) {
                (Some(child), _) => Some(child),
                (None, Additional::Schema(child)) => Some(&**child),
                (None, Additional::Allowed(_)) => None,
                (None, Additional::Absent) => continue,
            };
            self.with_field(name, |pruner| pruner.prune_value(child, value));
        }
    }

    /// Keeps the fields that `visit` accepts and reports the others.
    fn retain(
        &mut self,
        fields: &mut Map<String, Value>,
        mut visit: impl FnMut(&mut Pruner, &str, &mut Value) -> bool,
    ) {
        fields.retain(|name, value| {
            let is_kept = visit(self, name, value);
            if !is_kept {
                self.report(name);
            }
            is_kept
        });
    }

    fn report(&mut self, name: &str) {
        // The reference does not report type and metadata at the root.
        if self.unknown.len() < UNKNOWN_MAX && !(self.path.is_empty() && is_type_or_metadata(name)) {
            self.with_field(name, |pruner| pruner.unknown.push(pruner.path.clone()));
        }
    }

    /// Runs `visit` while `path` is the path of a field.
    fn with_field(&mut self, name: &str, visit: impl FnOnce(&mut Pruner)) {
        let end = self.path.len();
        if end > 0 {
            self.path.push('.');
        }
        self.path.push_str(&shorten_name(name));
        visit(self);
        self.path.truncate(end);
    }
}
