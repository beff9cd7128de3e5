//! Removing paths from an object.

use std::collections::BTreeMap;

use apimachinery::object::Value;
use schema::merge::Merge;

use super::{Fields, Form, ItemIdentity, child_or_any, element, form, is_empty};
use crate::path::Element;
use crate::set::Set;

/// Removes the paths of a set from an object.
///
/// A map or list that loses all its content stays, empty. It disappears only if the set contains its own path.
pub fn remove(ty: &Merge, object: &Fields, paths: &Set) -> Fields {
    let mut remaining = Fields::new();
    for (name, value) in object {
        let value_to_keep = match paths.field(name) {
            Some(node) if node.member => None,
            Some(node) => {
                let (child, _) = child_or_any(ty, name);
                let empty = || match value {
                    Value::Array(_) => Value::Array(Vec::new()),
                    _ => Value::Object(Fields::new()),
                };
                Some(remove_from_value(child, value, &node.below).unwrap_or_else(empty))
            }
            None => Some(value.clone()),
        };
        if let Some(value_to_keep) = value_to_keep {
            remaining.insert(name.clone(), value_to_keep);
        }
    }
    remaining
}

/// Replaces empty maps and lists of an object by null where the applied object has null.
pub fn restore_nulls(ty: &Merge, object: &mut Fields, applied: &Fields) {
    for (name, applied) in applied {
        let Some(value) = object.get_mut(name) else { continue };
        restore_nulls_below(child_or_any(ty, name).0, value, applied);
    }
}

fn restore_nulls_below(ty: &Merge, value: &mut Value, applied: &Value) {
    if applied.is_null() && is_empty(Some(value)) {
        *value = Value::Null;
    }
    match (value, applied) {
        (Value::Object(fields), Value::Object(applied)) => restore_nulls(ty, fields, applied),
        (Value::Array(items), Value::Array(applied)) => {
            let Form::List(item_type, identity @ ItemIdentity::Keyed(_)) = form(ty, None) else { return };
            let applied: BTreeMap<Element, &Value> =
                applied.iter().map(|item| (element(identity, item), item)).collect();
            for item in items {
                if let Some(applied) = applied.get(&element(identity, item)) {
                    restore_nulls_below(item_type, item, applied);
                }
            }
        }
        _ => {}
    }
}

/// Removes paths from a value; None when nothing remains.
fn remove_from_value(ty: &Merge, value: &Value, paths: &Set) -> Option<Value> {
    match (form(ty, Some(value)), value) {
        (Form::Map, Value::Object(map)) => {
            let remaining = remove(ty, map, paths);
            (!remaining.is_empty()).then_some(Value::Object(remaining))
        }
        (Form::List(item_type, identity), Value::Array(list)) => {
            let item_to_keep = |item: &Value| {
                let element: Element = element(identity, item);
                match paths.node(&element) {
                    Some(node) if node.member => None,
                    Some(node) => remove_from_value(item_type, item, &node.below),
                    None => Some(item.clone()),
                }
            };
            let remaining: Vec<Value> = list.iter().filter_map(item_to_keep).collect();
            (!remaining.is_empty()).then_some(Value::Array(remaining))
        }
        // An atomic value loses no parts.
        _ => Some(value.clone()),
    }
}
