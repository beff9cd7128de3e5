//! The position of a value during a walk, and the value that it replaces.
//!
//! # Contract
//!
//! A [`Place`] renders the path of a value and correlates the value with the old object on demand, for
//! validation ratcheting. Fields correlate by name, items of map lists by their keys. Items of other lists do
//! not correlate: the errors of such a list are tolerated only if the whole list is unchanged.
//!
//! # Reference
//!
//! An object equals its old value only if the schema declares all its fields. Map lists are equal in any
//! order.

use std::cell::OnceCell;
use std::collections::HashMap;

use apimachinery::field::FieldPath;
use apimachinery::object::{Map, Value};

use super::node::{ListType, Node};

/// The last step of the path of a value.
#[derive(Clone, Copy)]
pub(super) enum PlaceStep<'a> {
    /// The validated value itself.
    Root,
    /// A declared property.
    Property(&'a str),
    /// An entry of a map.
    Key(&'a str),
    /// An item of a list.
    Index(usize),
}

/// A value, or the fields of an object.
#[derive(Clone, Copy)]
pub(super) enum Data<'a> {
    /// The fields of an object.
    Object(&'a Map<String, Value>),
    /// A value other than an object.
    Other(&'a Value),
}

impl<'a> Data<'a> {
    pub(super) fn from_value(value: &'a Value) -> Data<'a> {
        match value {
            Value::Object(fields) => Data::Object(fields),
            other => Data::Other(other),
        }
    }

    pub(super) fn is_null(self) -> bool {
        matches!(self, Data::Other(Value::Null))
    }

    /// The fields of an object.
    pub(super) fn fields(self) -> Option<&'a Map<String, Value>> {
        match self {
            Data::Object(fields) => Some(fields),
            Data::Other(_) => None,
        }
    }

    /// The items of a list.
    pub(super) fn items(self) -> Option<&'a [Value]> {
        match self {
            Data::Other(Value::Array(items)) => Some(items),
            _ => None,
        }
    }

    /// A copy of the value.
    pub(super) fn to_value(self) -> Value {
        match self {
            Data::Object(fields) => Value::Object(fields.clone()),
            Data::Other(value) => value.clone(),
        }
    }
}

/// A value with its schema and its position.
pub(super) struct Place<'p, 'a> {
    parent: Option<&'p Place<'p, 'a>>,
    step: PlaceStep<'a>,
    pub(super) node: &'a Node,
    pub(super) data: Data<'a>,
    /// The old value at this position; set by the first lookup.
    old: OnceCell<Option<Data<'a>>>,
    /// Whether the value equals `old`; set by the first comparison.
    is_equal: OnceCell<bool>,
    /// Items of the old map list by their keys.
    items: OnceCell<HashMap<String, &'a Value>>,
}

impl<'p, 'a> Place<'p, 'a> {
    /// The validated value, with the value that it replaces.
    pub(super) fn root(node: &'a Node, data: Data<'a>, old: Option<Data<'a>>) -> Place<'p, 'a> {
        let place = Place::new(None, PlaceStep::Root, node, data);
        let _ = place.old.set(old);
        place
    }

    /// A part of this value.
    pub(super) fn child<'q>(
        &'q self,
        step: PlaceStep<'a>,
        node: &'a Node,
        value: &'a Value,
    ) -> Place<'q, 'a> {
        Place::new(Some(self), step, node, Data::from_value(value))
    }

    /// The same value under the schema of a combination.
    pub(super) fn alternative<'q>(&'q self, node: &'a Node) -> Place<'q, 'a> {
        Place::new(self.parent, self.step, node, self.data)
    }

    fn new(
        parent: Option<&'p Place<'p, 'a>>,
        step: PlaceStep<'a>,
        node: &'a Node,
        data: Data<'a>,
    ) -> Place<'p, 'a> {
        Place {
            parent,
            step,
            node,
            data,
            old: OnceCell::new(),
            is_equal: OnceCell::new(),
            items: OnceCell::new(),
        }
    }

    /// The path as messages of value validation show it: `spec.list[0].key`. Keys of maps follow a dot.
    pub(super) fn name(&self) -> String {
        let mut name = self.parent.map_or_else(String::new, Place::name);
        match self.step {
            PlaceStep::Root => {}
            PlaceStep::Property(field) => {
                if !name.is_empty() {
                    name.push('.');
                }
                name.push_str(field);
            }
            PlaceStep::Key(key) => {
                name.push('.');
                name.push_str(key);
            }
            PlaceStep::Index(index) => {
                name.push('[');
                name.push_str(&index.to_string());
                name.push(']');
            }
        }
        name
    }

    /// The path below `base`: `spec.map[key].list[0]`.
    pub(super) fn path(&self, base: &FieldPath) -> FieldPath {
        let parent =
            |place: &Place<'_, '_>| place.parent.map_or_else(|| base.clone(), |parent| parent.path(base));
        match self.step {
            PlaceStep::Root => base.clone(),
            PlaceStep::Property(field) => parent(self).child(field),
            PlaceStep::Key(key) => parent(self).key(key),
            PlaceStep::Index(index) => parent(self).index(index),
        }
    }

    /// The old value at this position, if it correlates.
    fn old(&self) -> Option<Data<'a>> {
        *self.old.get_or_init(|| {
            let parent = self.parent?;
            let old = parent.old()?;
            match self.step {
                PlaceStep::Root => None,
                PlaceStep::Property(field) | PlaceStep::Key(field) => {
                    old.fields()?.get(field).map(Data::from_value)
                }
                PlaceStep::Index(_) => match &parent.node.list {
                    ListType::Map(keys) => {
                        let old = old.items()?;
                        let items = parent.items.get_or_init(|| items_by_key(parent.node, keys, old));
                        let key = item_key(parent.node, keys, self.data.fields()?)?;
                        items.get(&key).copied().map(Data::from_value)
                    }
                    ListType::Set | ListType::Atomic => None,
                },
            }
        })
    }

    fn is_equal(&self, old: Data<'_>) -> bool {
        *self.is_equal.get_or_init(|| is_equal(self.node, self.data, old))
    }

    /// Whether this is `apiVersion` or `kind` of the object itself. Conversion sets both, so they never
    /// count as unchanged.
    pub(super) fn is_type_of_root(&self) -> bool {
        let is_below_root = self.parent.is_some_and(|parent| matches!(parent.step, PlaceStep::Root));
        is_below_root && matches!(self.step, PlaceStep::Property("apiVersion" | "kind"))
    }

    /// Whether the value, or a part of the object that contains it, equals its old value.
    pub(super) fn is_unchanged(&self) -> bool {
        let equals_old = !self.is_type_of_root() && self.old().is_some_and(|old| self.is_equal(old));
        equals_old || self.parent.is_some_and(Place::is_unchanged)
    }

    /// Whether the value equals its old value. Without an old value, whether the nearest part above that has
    /// an old value equals it.
    pub(super) fn is_nearest_unchanged(&self) -> bool {
        match (self.old(), self.parent) {
            (Some(old), _) => self.is_equal(old),
            (None, Some(parent)) => parent.is_nearest_unchanged(),
            (None, None) => false,
        }
    }
}

/// Whether a value equals its correlated old value.
fn is_equal(node: &Node, new: Data<'_>, old: Data<'_>) -> bool {
    match (new, old) {
        (Data::Object(new), Data::Object(old)) => {
            new.len() == old.len()
                && new.iter().all(|(name, new)| {
                    let pair = old.get(name).zip(node.field(name));
                    pair.is_some_and(|(old, child)| {
                        is_equal(child, Data::from_value(new), Data::from_value(old))
                    })
                })
        }
        (Data::Other(Value::Array(new)), Data::Other(Value::Array(old))) => {
            new.len() == old.len() && are_items_equal(node, new, old)
        }
        (Data::Other(new), Data::Other(old)) => new == old,
        _ => false,
    }
}

fn are_items_equal(node: &Node, new: &[Value], old: &[Value]) -> bool {
    match (&node.list, node.items.as_deref()) {
        (ListType::Map(keys), Some(child)) => {
            let items = items_by_key(node, keys, old);
            new.iter().all(|item| {
                let key = item.as_object().and_then(|fields| item_key(node, keys, fields));
                let old = key.and_then(|key| items.get(&key).copied());
                old.is_some_and(|old| is_equal(child, Data::from_value(item), Data::from_value(old)))
            })
        }
        _ => new == old,
    }
}

/// The items of a map list by their keys; the first of several items with equal keys.
pub(super) fn items_by_key<'v>(
    node: &Node,
    keys: &[Box<str>],
    items: &'v [Value],
) -> HashMap<String, &'v Value> {
    let mut found = HashMap::with_capacity(items.len());
    for item in items {
        if let Some(key) = item.as_object().and_then(|fields| item_key(node, keys, fields)) {
            found.entry(key).or_insert(item);
        }
    }
    found
}

/// The text of the values of an item's key fields, with defaults for absent fields. None if a value is not a
/// scalar.
pub(super) fn item_key(node: &Node, keys: &[Box<str>], fields: &Map<String, Value>) -> Option<String> {
    let mut text = String::new();
    for key in keys {
        let default = || node.items.as_deref()?.property(key)?.default.as_deref();
        match fields.get(&**key).or_else(default) {
            Some(Value::Object(_) | Value::Array(_)) => return None,
            Some(value) => text.push_str(&value.to_string()),
            None => {}
        }
        text.push('\n');
    }
    Some(text)
}
