//! Defaults, and the removal of nulls that are not nullable.
//!
//! # Contract
//!
//! [`drop_nulls`] removes a null field if its schema is not nullable and has no default; it keeps nulls in
//! lists. [`set`] then replaces absent fields and remaining nulls that are not nullable by their defaults.

use apimachinery::codec::{Budget, Cost, DecodeError, Limits};
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

/// Limits of the defaults that a stored object gets when it is read, after a change of the schema.
pub(super) const STORED_LIMITS: Limits = Limits { tree_bytes: 1 << 20, ..Limits::BODY };

/// Sets the defaults of the fields of an object, and charges them to a budget.
///
/// # Errors
///
/// The next default exceeds the budget. The defaults before it are set.
pub(super) fn set(
    node: &Node,
    fields: &mut Map<String, Value>,
    budget: &mut Budget,
) -> Result<(), DecodeError> {
    if !node.has(Flag::HasDefaults) {
        return Ok(());
    }
    for property in &node.properties {
        let Some(default) = &property.node.default else { continue };
        match fields.get_mut(&*property.name) {
            None => {
                budget.charge(Cost::key(property.name.len(), fields.len()))?;
                budget.charge_tree(default)?;
                fields.insert(property.name.to_string(), (**default).clone());
            }
            Some(value) => replace_null(&property.node, value, budget)?,
        }
    }
    for (name, value) in fields.iter_mut() {
        if let Some(child) = node.property(name) {
            set_below(child, value, budget)?;
        } else if let Some(child) = node.additional() {
            replace_null(child, value, budget)?;
            set_below(child, value, budget)?;
        }
    }
    Ok(())
}

fn set_below(node: &Node, value: &mut Value, budget: &mut Budget) -> Result<(), DecodeError> {
    if !node.has(Flag::HasDefaults) {
        return Ok(());
    }
    match value {
        Value::Object(fields) => set(node, fields, budget),
        Value::Array(items) => {
            let Some(child) = node.items.as_deref() else { return Ok(()) };
            items.iter_mut().try_for_each(|item| {
                replace_null(child, item, budget)?;
                set_below(child, item, budget)
            })
        }
        _ => Ok(()),
    }
}

/// Replaces a null that is not nullable by the default.
fn replace_null(node: &Node, value: &mut Value, budget: &mut Budget) -> Result<(), DecodeError> {
    if let (true, Some(default)) = (value.is_null() && !node.has(Flag::Nullable), &node.default) {
        budget.charge_tree(default)?;
        *value = (**default).clone();
    }
    Ok(())
}
