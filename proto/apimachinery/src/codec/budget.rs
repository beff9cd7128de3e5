//! Decode budget: limits the cost of a tree before the tree grows.
//!
//! # Contract
//!
//! A decoder charges every value and every key to a [`Budget`] before it allocates them, and stops at the
//! first error. [`Limits::check`] charges an existing tree, such as the result of a patch.
//!
//! The memory estimate is the size of the tree after the schema and the defaults have been applied:
//!
//! - An empty object, and a null that the schema reads as one, costs a map node, because defaulting inserts
//!   the first key. Empty objects of `fieldsV1` are the exception, because nothing inserts keys into them.
//!   Their names contain a colon or are a dot, unlike every field name of a schema.
//! - An object in a list costs a further node, because `managedFields` gets an object for it.

use serde_json::{Map, Value};

use super::{DecodeError, Limits};

/// Bytes of a value in its list or object, including the spare capacity of a growing list.
const VALUE_BYTES: usize = 48;
/// Bytes of a string or key beyond its content.
const TEXT_BYTES: usize = 16;
/// Bytes of the first node of a map, which has room for [`NODE_KEYS`] keys and values.
const NODE_BYTES: usize = 640;
/// Number of keys in the first node of a map.
const NODE_KEYS: usize = 11;
/// Bytes per key in further nodes of a map, which are about half full when keys arrive in order.
const FURTHER_KEY_BYTES: usize = 112;
/// Bytes of the smallest allocation of a list.
const LIST_BYTES: usize = 128;

/// Cost of a part of a tree: number of values, and estimated memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Number of scalars, lists and objects.
    pub elements: usize,
    /// Estimated memory in bytes.
    pub tree_bytes: usize,
}

impl Cost {
    /// Cost of null. It includes a map node, because the schema converts null to an object where the type is
    /// an object.
    pub const NULL: Cost = Cost { elements: 1, tree_bytes: VALUE_BYTES + NODE_BYTES };
    /// Cost of a boolean or number.
    pub const SCALAR: Cost = Cost { elements: 1, tree_bytes: VALUE_BYTES };
    /// Cost of a list without its items.
    pub const LIST: Cost = Cost { elements: 1, tree_bytes: VALUE_BYTES + LIST_BYTES };
    /// Cost of an object without its keys.
    pub const OBJECT: Cost = Cost { elements: 1, tree_bytes: VALUE_BYTES };
    /// Cost of an empty object in a list: no other value costs more memory per byte of JSON or YAML.
    pub const EMPTY_ITEM: Cost = Cost { elements: 1, tree_bytes: VALUE_BYTES + 2 * NODE_BYTES };
    /// Cost of a number with an empty key, in an object whose first map node is full.
    pub const NAMED_SCALAR: Cost =
        Cost { elements: 1, tree_bytes: VALUE_BYTES + TEXT_BYTES + FURTHER_KEY_BYTES };

    /// Returns the cost of a string of `bytes` bytes.
    pub const fn text(bytes: usize) -> Cost {
        Cost { elements: 1, tree_bytes: VALUE_BYTES + TEXT_BYTES + bytes }
    }

    /// Returns the cost of a key of `bytes` bytes in an object that already has `others` keys.
    pub const fn key(bytes: usize, others: usize) -> Cost {
        let node = match others {
            0 => NODE_BYTES,
            1..NODE_KEYS => 0,
            _ => FURTHER_KEY_BYTES,
        };
        Cost { elements: 0, tree_bytes: TEXT_BYTES + bytes + node }
    }

    /// Returns the part of the cost of an object that depends on its number of keys and on its key in its
    /// parent.
    ///
    /// `name` is the key of the object in its parent; None for an item of a list.
    pub fn object_end(keys: usize, name: Option<&str>) -> Cost {
        let is_owned_field = |name: &str| name == "." || name.contains(':');
        let default_node = if keys == 0 && !name.is_some_and(is_owned_field) { NODE_BYTES } else { 0 };
        let managed_fields_node = if name.is_none() { NODE_BYTES } else { 0 };
        Cost { elements: 0, tree_bytes: default_node + managed_fields_node }
    }

    /// Returns the cost of a value without its content.
    pub fn shallow(value: &Value) -> Cost {
        match value {
            Value::Null => Cost::NULL,
            Value::Bool(_) | Value::Number(_) => Cost::SCALAR,
            Value::String(text) => Cost::text(text.len()),
            Value::Array(_) => Cost::LIST,
            Value::Object(_) => Cost::OBJECT,
        }
    }

    /// Returns the sum of two costs.
    #[must_use]
    pub const fn plus(self, other: Cost) -> Cost {
        Cost {
            elements: self.elements.saturating_add(other.elements),
            tree_bytes: self.tree_bytes.saturating_add(other.tree_bytes),
        }
    }
}

/// The part of the limits that a tree has not used yet.
#[derive(Clone, Debug)]
pub struct Budget {
    left: Cost,
    limits: Limits,
}

impl Budget {
    /// Creates a budget from which nothing is spent.
    pub const fn new(limits: Limits) -> Self {
        Budget { left: Cost { elements: limits.elements, tree_bytes: limits.tree_bytes }, limits }
    }

    /// Returns the limits of the whole document.
    pub const fn limits(&self) -> Limits {
        self.limits
    }

    /// Charges the cost of a part of a tree.
    ///
    /// # Errors
    ///
    /// The tree exceeds the limit of values or the limit of memory.
    #[inline]
    pub fn charge(&mut self, cost: Cost) -> Result<(), DecodeError> {
        if self.left.elements < cost.elements || self.left.tree_bytes < cost.tree_bytes {
            return Err(self.excess(cost));
        }
        self.left.elements -= cost.elements;
        self.left.tree_bytes -= cost.tree_bytes;
        Ok(())
    }

    /// Charges a value and all its content.
    ///
    /// # Errors
    ///
    /// The tree exceeds the limit of values or the limit of memory.
    pub fn charge_tree(&mut self, value: &Value) -> Result<(), DecodeError> {
        self.charge_named(value, None)
    }

    /// Charges a value and all its content. `name` is its key in its parent; None for an item of a list.
    fn charge_named(&mut self, value: &Value, name: Option<&str>) -> Result<(), DecodeError> {
        self.charge(Cost::shallow(value))?;
        match value {
            Value::Array(items) => items.iter().try_for_each(|item| self.charge_named(item, None)),
            Value::Object(map) => self.charge_fields(map, name),
            _ => Ok(()),
        }
    }

    fn charge_fields(&mut self, map: &Map<String, Value>, name: Option<&str>) -> Result<(), DecodeError> {
        for (others, (key, value)) in map.iter().enumerate() {
            self.charge(Cost::key(key.len(), others))?;
            self.charge_named(value, Some(key))?;
        }
        self.charge(Cost::object_end(map.len(), name))
    }

    /// Returns the cost charged so far.
    pub const fn spent(&self) -> Cost {
        Cost {
            elements: self.limits.elements - self.left.elements,
            tree_bytes: self.limits.tree_bytes - self.left.tree_bytes,
        }
    }

    #[cold]
    fn excess(&self, cost: Cost) -> DecodeError {
        if self.left.elements < cost.elements {
            DecodeError::TooManyElements(self.limits.elements)
        } else {
            DecodeError::TreeTooLarge(self.limits.tree_bytes)
        }
    }
}

impl Limits {
    /// Checks elements and memory of an existing tree, such as the result of a patch.
    ///
    /// # Errors
    ///
    /// [`DecodeError::TooManyElements`], [`DecodeError::TreeTooLarge`].
    pub fn check(self, tree: &Value) -> Result<(), DecodeError> {
        Budget::new(self).charge_tree(tree)
    }

    /// Checks the fields of an object as [`Limits::check`] checks a tree.
    ///
    /// # Errors
    ///
    /// [`DecodeError::TooManyElements`], [`DecodeError::TreeTooLarge`].
    pub fn check_map(self, fields: &Map<String, Value>) -> Result<(), DecodeError> {
        let mut budget = Budget::new(self);
        budget.charge(Cost::OBJECT)?;
        budget.charge_fields(fields, None)
    }
}

#[cfg(test)]
#[path = "tests/budget.rs"]
mod tests;
