//! Removing paths from an object.

use apimachinery::object::Value;
use schema::merge::Merge;

use super::{Fields, Form, child_or_any, element, form};
use crate::path::Element;
use crate::set::Set;

/// Removes the paths of a set from an object. Declared maps and lists that become empty are removed too.
pub fn remove(ty: &Merge, object: &Fields, paths: &Set) -> Fields {
    let mut left = Fields::new();
    for (name, value) in object {
        let kept = match paths.field(name) {
            Some(node) if node.member => None,
            Some(node) => {
                let (child, declared) = child_or_any(ty, name);
                // An entry of a map exists by its key, even if its value becomes empty.
                let entry = || match value {
                    _ if declared => None,
                    Value::Array(_) => Some(Value::Array(Vec::new())),
                    _ => Some(Value::Object(Fields::new())),
                };
                of_value(child, value, &node.below).or_else(entry)
            }
            None => Some(value.clone()),
        };
        if let Some(kept) = kept {
            left.insert(name.clone(), kept);
        }
    }
    left
}

/// Removes paths from a value; None when nothing is left.
fn of_value(ty: &Merge, value: &Value, paths: &Set) -> Option<Value> {
    match (form(ty, Some(value)), value) {
        (Form::Map, Value::Object(map)) => {
            let left = remove(ty, map, paths);
            (!left.is_empty()).then_some(Value::Object(left))
        }
        (Form::List(of, how), Value::Array(list)) => {
            let keep = |item: &Value| {
                let element: Element = element(how, item);
                match paths.node(&element) {
                    Some(node) if node.member => None,
                    Some(node) => of_value(of, item, &node.below),
                    None => Some(item.clone()),
                }
            };
            let left: Vec<Value> = list.iter().filter_map(keep).collect();
            (!left.is_empty()).then_some(Value::Array(left))
        }
        // An atomic value loses no parts.
        _ => Some(value.clone()),
    }
}
