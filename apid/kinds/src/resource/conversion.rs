//! Conversion between `v1beta2`, in which objects are stored, and the earlier versions of claims and slices.
//!
//! # Reference
//!
//! Earlier versions have the fields of an exact request in the request itself, and those of a device in `basic`.

use apimachinery::names::Names;
use apimachinery::object::Object;
use serde_json::Value;

use crate::Conversion;
use crate::defaults::Fields;

/// Fields of `exactly`, the exact request.
const EXACT: [&str; 6] =
    ["deviceClassName", "selectors", "allocationMode", "count", "adminAccess", "tolerations"];

/// Conversion of an earlier version, for one of the kinds.
pub(super) enum EarlierVersion {
    /// A claim, with the path of its specification.
    Claim(&'static [&'static str]),
    /// A slice.
    Slice,
}

impl Conversion for EarlierVersion {
    fn to_stored(&self, object: &mut Object, _names: &Names) {
        match self {
            EarlierVersion::Claim(path) => for_each_map(object, path, &["devices", "requests"], |request| {
                let exact: Fields = EXACT
                    .iter()
                    .filter_map(|name| Some(((*name).to_owned(), request.remove(*name)?)))
                    .filter(|(_, value)| !is_zero(value))
                    .collect();
                if !exact.is_empty() {
                    request.insert("exactly".to_owned(), Value::Object(exact));
                }
            }),
            EarlierVersion::Slice => {
                remove_zero(object, "nodeName");
                remove_zero(object, "allNodes");
                for_each_map(object, &["spec"], &["devices"], |device| {
                    if let Some(Value::Object(basic)) = device.remove("basic") {
                        device.extend(basic);
                    }
                });
            }
        }
    }

    fn convert_from_storage(&self, object: &mut Object, _names: &Names) {
        match self {
            EarlierVersion::Claim(path) => for_each_map(object, path, &["devices", "requests"], |request| {
                if let Some(Value::Object(exact)) = request.remove("exactly") {
                    request.extend(exact);
                }
            }),
            EarlierVersion::Slice => for_each_map(object, &["spec"], &["devices"], |device| {
                let name = device.remove("name");
                let basic = std::mem::take(device);
                device.extend(name.map(|name| ("name".to_owned(), name)));
                device.insert("basic".to_owned(), Value::Object(basic));
            }),
        }
    }
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_i64() == Some(0),
        Value::Array(items) => items.is_empty(),
        Value::Bool(_) | Value::Object(_) => false,
    }
}

/// Removes a zero from the specification: the field is optional in the storage version.
fn remove_zero(object: &mut Object, name: &str) {
    if let Some(Value::Object(spec)) = object.get_mut("spec")
        && spec.get(name).is_some_and(|value| is_zero(value) || *value == Value::Bool(false))
    {
        spec.remove(name);
    }
}

/// Calls `change` for each map in the list at `list`, which is a path below `path`.
fn for_each_map(object: &mut Object, path: &[&str], list: &[&str], change: impl FnMut(&mut Fields)) {
    let Some((first, rest)) = path.split_first() else { return };
    let mut value = object.get_mut(first);
    for name in rest.iter().chain(list) {
        value = value.and_then(|value| value.get_mut(*name));
    }
    let items = value.and_then(Value::as_array_mut).into_iter().flatten();
    items.filter_map(Value::as_object_mut).for_each(change);
}
