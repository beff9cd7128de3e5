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

/// Maximum memory in bytes of the defaults that a null or an object without fields can get. The descendants of the node
/// have their `default_bytes` already, so each default is visited once.
pub(super) fn bytes_of(node: &Node) -> u32 {
    if !node.has(Flag::HasDefaults) && node.default.is_none() {
        return 0;
    }
    let fields = node.properties.iter().filter_map(|property| {
        let default = property.node.default.as_deref()?;
        let key = bytes(Cost::key(property.name.len(), usize::MAX).plus(Cost::key(0, 0)));
        Some(key.saturating_add(expanded_bytes(&property.node, default)))
    });
    let of_object = fields.fold(0, u32::saturating_add);
    let of_null = node
        .default
        .as_deref()
        .map_or(0, |default| tree_bytes(default).saturating_add(bytes_within(node, default, of_object)));
    of_object.max(of_null)
}

/// Memory of the largest `default_bytes` of a node and its descendants.
pub(super) fn largest_bytes(node: &Node) -> u32 {
    node.children().map(largest_bytes).fold(node.default_bytes, u32::max)
}

/// Memory of a value and of the defaults that the value gets.
fn expanded_bytes(node: &Node, value: &Value) -> u32 {
    tree_bytes(value).saturating_add(bytes_within(node, value, node.default_bytes))
}

/// Memory of the defaults that a value gets; `of_object` is that of an object without fields.
fn bytes_within(node: &Node, value: &Value, of_object: u32) -> u32 {
    let child_bytes = |child: &Node, value: &Value| bytes_within(child, value, child.default_bytes);
    match value {
        Value::Null => node.default_bytes,
        Value::Object(fields) => {
            let children = fields.iter().filter_map(|(name, value)| Some((node.field(name)?, value)));
            children.map(|(child, value)| child_bytes(child, value)).fold(of_object, u32::saturating_add)
        }
        Value::Array(items) => {
            let Some(child) = node.items.as_deref() else { return 0 };
            items.iter().map(|item| child_bytes(child, item)).fold(0, u32::saturating_add)
        }
        _ => 0,
    }
}

/// Memory of a value.
fn tree_bytes(value: &Value) -> u32 {
    let mut budget = Budget::new(Limits::NONE);
    // Nothing exceeds no limits.
    let _ = budget.charge_tree(value);
    bytes(budget.spent())
}

fn bytes(cost: Cost) -> u32 {
    u32::try_from(cost.tree_bytes).unwrap_or(u32::MAX)
}

/// Replaces a null that is not nullable by the default.
fn replace_null(node: &Node, value: &mut Value, budget: &mut Budget) -> Result<(), DecodeError> {
    if let (true, Some(default)) = (value.is_null() && !node.has(Flag::Nullable), &node.default) {
        budget.charge_tree(default)?;
        *value = (**default).clone();
    }
    Ok(())
}
