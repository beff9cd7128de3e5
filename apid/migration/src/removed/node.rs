//! RuntimeClass of `node/v1alpha1`, which has its fields in `spec`.

use apimachinery::names::Names;
use apimachinery::object::{Object, Value};

use super::fields::Fields;
use super::{FieldChanges, Notes};

pub(super) const VERSIONS: &[FieldChanges] =
    &[FieldChanges::new(("node", "v1alpha1", "RuntimeClass"), upgrade, downgrade)];

/// Fields of a RuntimeClass: the name in `spec` of `v1alpha1`, and the name at the top level of `v1`.
const RUNTIME_FIELDS: [(&str, &str); 3] =
    [("runtimeHandler", "handler"), ("overhead", "overhead"), ("scheduling", "scheduling")];

fn upgrade(object: &mut Object, _names: &Names, _notes: &mut Notes) {
    let Some(Value::Object(mut spec)) = object.remove("spec") else { return };
    for (old, new) in RUNTIME_FIELDS {
        if let Some(value) = spec.remove(old) {
            object.set(new, value);
        }
    }
}

fn downgrade(object: &mut Object, _names: &Names) {
    let mut spec = Fields::new();
    for (old, new) in RUNTIME_FIELDS {
        if let Some(value) = object.remove(new) {
            spec.insert(old.to_owned(), value);
        }
    }
    object.set("spec", spec);
}
