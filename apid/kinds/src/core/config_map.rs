//! ConfigMap: configuration as keys and values.

use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::object::{Map, Object};
use serde_json::{Value, json};

use super::immutable::{self, DATA_MAX};
use crate::table::{AGE, NAME};
use crate::validation::{Field, text};
use crate::{BuiltInKind, Column, Context, Strategy, format};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    short_names: &["cm"],
    columns: &[NAME, Column::text("Data", "Number of keys."), AGE],
    cells: |object, _| {
        let count = |field| entries(object, field).map_or(0, Map::len);
        vec![json!(count("data") + count("binaryData"))]
    },
    strategy: &ConfigMap,
    ..BuiltInKind::namespaced("core/v1.ConfigMap", "configmaps")
};

struct ConfigMap;

impl Strategy for ConfigMap {
    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        let data = Field::new(object.get("data"), "data");
        let binary = Field::new(object.get("binaryData"), "binaryData");
        let mut errors = FieldErrors::new();
        for (key, entry) in data.entries() {
            text::check_name(&entry, key, format::config_key, &mut errors);
            if binary.child(key).is_present() {
                errors.push(entry.invalid_value(key, "duplicate of key present in binaryData"));
            }
        }
        for (key, entry) in binary.entries() {
            text::check_name(&entry, key, format::config_key, &mut errors);
        }
        if text_bytes(entries(object, "data")) + base64_bytes(entries(object, "binaryData")) > DATA_MAX {
            // kube-apiserver names the whole object so.
            errors.push(FieldError::too_long(&FieldPath::new("[]"), DATA_MAX));
        }
        errors
    }

    fn validate_update(&self, new: &Object, old: &Object, _ctx: &Context<'_>) -> FieldErrors {
        immutable::validate_update(new, old, &["data", "binaryData"])
    }
}

/// The map in a field of the object; None if absent.
pub(super) fn entries<'a>(object: &'a Object, field: &str) -> Option<&'a Map<String, Value>> {
    object.get(field).and_then(Value::as_object)
}

fn text_bytes(map: Option<&Map<String, Value>>) -> usize {
    map.into_iter().flat_map(Map::values).filter_map(Value::as_str).map(str::len).sum()
}

/// Total decoded size in bytes of the canonical base64 values of a map.
pub(super) fn base64_bytes(map: Option<&Map<String, Value>>) -> usize {
    let decoded_len = |text: &str| {
        (text.len() / 4 * 3).saturating_sub(text.bytes().rev().take_while(|b| *b == b'=').count())
    };
    map.into_iter().flat_map(Map::values).filter_map(Value::as_str).map(decoded_len).sum()
}

#[cfg(test)]
mod tests {
    use apimachinery::clock::{ManualClock, SeededRng};
    use apimachinery::names::{Names, Preset};
    use apimachinery::time;

    use super::*;

    #[test]
    fn error_of_size_names_the_whole_object() {
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        let (clock, rng) = (ManualClock::at(time::parse("2024-01-02T00:00:00Z").unwrap()), SeededRng::new(1));
        let ctx = Context { names: &names, clock: &clock, rng: &rng, subresource: "" };
        let object = Object::from_value(json!({"data": {"a": "x".repeat(DATA_MAX + 1)}})).unwrap();
        let errors = ConfigMap.validate(&object, &ctx);
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["[]: Too long: may not be more than 1048576 bytes"]);
    }
}
