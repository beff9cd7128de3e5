//! Removing paths from an object.

use apimachinery::object::Value;
use schema::merge::Merge;

use super::{Fields, Form, child_or_any, element, form};
use crate::path::Element;
use crate::set::Set;

/// Removes the paths of a set from an object. Declared maps and lists that become empty are removed too.
pub fn remove(ty: &Merge, object: &Fields, paths: &Set) -> Fields {
    let mut remaining = Fields::new();
    for (name, value) in object {
        let value_to_keep = match paths.field(name) {
            Some(node) if node.member => None,
            Some(node) => {
                let (child, declared) = child_or_any(ty, name);
                // An entry of a map exists by its key, even if its value becomes empty.
                let empty_entry = || match value {
                    _ if declared => None,
                    Value::Array(_) => Some(Value::Array(Vec::new())),
                    _ => Some(Value::Object(Fields::new())),
                };
                remove_from_value(child, value, &node.below).or_else(empty_entry)
            }
            None => Some(value.clone()),
        };
        if let Some(value_to_keep) = value_to_keep {
            remaining.insert(name.clone(), value_to_keep);
        }
    }
    remaining
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
