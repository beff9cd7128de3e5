//! Kinds that are served in more versions than the one they are stored in.
//!
//! # Contract
//!
//! Another version is a [`crate::Kind`] of its own with [`crate::Storage::Shared`]: names, schema and columns of the version,
//! and a [`Conversion`] between it and the stored one. Nothing is lost on the way to the stored version and back, whatever
//! one of the two cannot say. What a conversion makes is brought into stored form afterwards, so that it leaves zeros to
//! the schema.

use apimachinery::names::Names;
use apimachinery::object::Object;
use schema::facts::{self, Shape};
use serde_json::Value;

/// The way between a served version of a kind and its stored version. Both sides are in the stored form of their schema.
/// Kind, apiVersion and what both versions have alike are not a conversion's business.
pub trait Conversion: Send + Sync {
    /// From the served version to the stored one.
    fn to_stored(&self, object: &mut Object, names: &Names);

    /// From the stored version to the served one.
    fn show(&self, object: &mut Object, names: &Names);

    /// What the stored version calls a selectable field of the served one; None when it is not selected by it.
    fn stored_field(&self, field: &str) -> Option<&'static str>;
}

/// Moves a field of an object to another name.
pub(crate) fn rename(object: &mut Object, from: &str, to: &str) {
    if let Some(value) = object.remove(from) {
        object.set(to, value);
    }
}

/// A value as JSON text, with the fields of structs in the order in which its type declares them.
pub(crate) fn ordered(value: &Value, shape: &Shape) -> String {
    let pair = |key: &str, text: String| format!("{}:{text}", Value::from(key));
    match (value, shape.target()) {
        (Value::Object(map), Shape::Named(name)) => match facts::fields(name) {
            Some(fields) => {
                let known = fields.iter().filter_map(|field| Some((field, map.get(field.name)?)));
                let pairs = known.map(|(field, value)| pair(field.name, ordered(value, &field.shape)));
                format!("{{{}}}", pairs.collect::<Vec<_>>().join(","))
            }
            None => value.to_string(),
        },
        (Value::Object(map), Shape::Map(of)) => {
            let pairs = map.iter().map(|(key, value)| pair(key, ordered(value, of)));
            format!("{{{}}}", pairs.collect::<Vec<_>>().join(","))
        }
        (Value::Array(items), Shape::List(of)) => {
            format!("[{}]", items.iter().map(|item| ordered(item, of)).collect::<Vec<_>>().join(","))
        }
        _ => value.to_string(),
    }
}
