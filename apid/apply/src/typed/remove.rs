//! An object without some of its parts.

use apimachinery::object::Value;
use schema::merge::Merge;

use super::{Fields, Form, child_or_any, element, form};
use crate::path::Element;
use crate::set::Set;

/// The object without the paths of a set. Declared maps and lists of which nothing is left go too.
pub fn remove(ty: &Merge, object: &Fields, paths: &Set) -> Fields {
    let mut left = Fields::new();
    for (name, value) in object {
        let kept = match paths.field(name) {
            Some(node) if node.member => None,
            Some(node) => {
                let (child, declared) = child_or_any(ty, name);
                // An entry of a map is there by its key, whatever is left of its value.
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

/// None: nothing is left.
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
        // Of an atomic value no part can go.
        _ => Some(value.clone()),
    }
}
