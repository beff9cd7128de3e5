//! Atomic parts of a partial object.

use apimachinery::object::Value;
use schema::merge::{List, Merge};

use super::{Fields, is_atomic};
use crate::path::Element;
use crate::set::path_text;

/// Maximum number of paths that [`atomic_parts`] returns; further paths are omitted.
const MAX_PARTS: usize = 100;

/// Returns the paths of the atomic lists, maps and structs of an object. A merge replaces such a part as a
/// whole.
///
/// The walk enters fields and list items, and not the entries of maps.
pub fn atomic_parts(ty: &Merge, object: &Fields) -> Vec<String> {
    let mut walk = AtomicPartsWalk { path: Vec::new(), parts: Vec::new() };
    walk.fields(ty, object);
    walk.parts
}

/// The state of a walk through an object.
struct AtomicPartsWalk {
    path: Vec<Element>,
    parts: Vec<String>,
}

impl AtomicPartsWalk {
    fn fields(&mut self, ty: &Merge, map: &Fields) {
        let Merge::Struct(reference) = ty else { return };
        for (name, value) in map {
            if let Some(field) = reference.resolve().and_then(|ty| ty.field(name)) {
                self.enter(Element::field(name), &field.ty, value);
            }
        }
    }

    fn enter(&mut self, element: Element, ty: &Merge, value: &Value) {
        if self.parts.len() >= MAX_PARTS {
            return;
        }
        self.path.push(element);
        self.value(ty, value);
        self.path.pop();
    }

    fn value(&mut self, ty: &Merge, value: &Value) {
        let is_atomic = match (ty, value) {
            // A list of unknown type is atomic, even where maps of unknown type are granular.
            (Merge::Untyped { atomic }, Value::Object(_)) => *atomic,
            (Merge::Untyped { .. } | Merge::List { list: List::Atomic, .. }, Value::Array(_)) => true,
            (_, Value::Object(_)) => is_atomic(ty),
            _ => false,
        };
        if is_atomic {
            self.parts.push(path_text(&self.path));
        }
        match (ty, value) {
            (_, Value::Object(map)) => self.fields(ty, map),
            (Merge::List { items, .. }, Value::Array(list)) => {
                for (index, item) in list.iter().enumerate() {
                    self.enter(Element::Index(i64::try_from(index).unwrap_or(i64::MAX)), items, item);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::object::Object;
    use schema::Schema;
    use serde_json::json;

    use super::*;

    #[test]
    fn atomic_parts_are_found_in_fields_and_items() {
        for (ty, object, expected) in [
            (
                "apps/v1.Deployment",
                json!({"spec": {"selector": {"matchLabels": {"a": "b"}}}}),
                vec![".spec.selector"],
            ),
            (
                "apps/v1.Deployment",
                json!({"spec": {"replicas": 1}, "metadata": {"labels": {"a": "b"}}}),
                vec![],
            ),
            (
                "core/v1.Pod",
                json!({"spec": {"nodeSelector": {"a": "b"}, "containers": [{"name": "c", "args": [], "env": [{"name": "e"}]}]}}),
                vec![".spec.containers[0].args", ".spec.nodeSelector"],
            ),
            ("core/v1.Pod", json!({"spec": {"nodeSelector": null}}), vec![]),
            ("core/v1.ConfigMap", json!({"data": {"a": "b"}, "metadata": {"finalizers": ["a/b"]}}), vec![]),
        ] {
            let merge = Schema::of(ty).unwrap().merge();
            let object = Object::from_value(object).unwrap();
            assert_eq!(atomic_parts(&merge, &object.0), expected, "{object:?}");
        }
    }
}
