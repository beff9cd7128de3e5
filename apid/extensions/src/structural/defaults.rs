//! Defaults, and the removal of nulls that are not nullable.
//!
//! # Contract
//!
//! [`drop_nulls`] removes a null field if its schema is not nullable and has no default; it keeps nulls in
//! lists. [`set`] then replaces absent fields and remaining nulls that are not nullable by their defaults.

use apimachinery::object::{Map, Value};

use super::node::{Flag, Node};

/// Removes null fields that are not nullable and have no default.
pub(super) fn drop_nulls(node: &Node, fields: &mut Map<String, Value>) {
    fields.retain(|name, value| {
        let Some(child) = node.field(name) else { return true };
        if value.is_null() {
            return child.has(Flag::Nullable) || child.default.is_some();
        }
        drop_nulls_below(child, value);
        true
    });
}

fn drop_nulls_below(node: &Node, value: &mut Value) {
    match value {
        Value::Object(fields) => drop_nulls(node, fields),
        Value::Array(items) => {
            if let Some(child) = node.items.as_deref() {
                items.iter_mut().for_each(|item| drop_nulls_below(child, item));
            }
        }
        _ => {}
    }
}

/// Sets the defaults of the fields of an object.
pub(super) fn set(node: &Node, fields: &mut Map<String, Value>) {
    if !node.has(Flag::HasDefaults) {
        return;
    }
    for property in &node.properties {
        let Some(default) = &property.node.default else { continue };
        match fields.get_mut(&*property.name) {
            None => drop(fields.insert(property.name.to_string(), (**default).clone())),
            Some(value) => replace_null(&property.node, value),
        }
    }
    for (name, value) in fields.iter_mut() {
        if let Some(child) = node.property(name) {
            set_below(child, value);
        } else if let Some(child) = node.additional() {
            replace_null(child, value);
            set_below(child, value);
        }
    }
}

fn set_below(node: &Node, value: &mut Value) {
    if !node.has(Flag::HasDefaults) {
        return;
    }
    match value {
        Value::Object(fields) => set(node, fields),
        Value::Array(items) => {
            if let Some(child) = node.items.as_deref() {
                for item in items {
                    replace_null(child, item);
                    set_below(child, item);
                }
            }
        }
        _ => {}
    }
}

/// Replaces a null that is not nullable by the default.
fn replace_null(node: &Node, value: &mut Value) {
    if value.is_null() && !node.has(Flag::Nullable) {
        if let Some(default) = &node.default {
            *value = (**default).clone();
        }
    }
}
