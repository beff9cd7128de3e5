//! Size limits of data that a schema implies; the cost estimates start from them.
//!
//! # Contract
//! - The limit of a text of format `date`, `date-time` or `duration` is that of the format. The limit of any
//!   other text is `maxLength`, else its longest `enum` value, else the request size.
//! - The limit of a list is `maxItems`, the limit of a map is `maxProperties`.
//! - A character of a text has at most four bytes, so `maxLength` counts four times.
//! - Without these, the limit of a list or map is the number of minimal elements that fit into a request.
//! - Numbers, booleans, objects and map keys count as empty, as in kube-apiserver.

use std::collections::BTreeMap;

use crate::schema_types::{Schema, SchemaType};

/// Maximum size of a request in bytes.
const REQUEST_BYTES: u64 = 3 << 20;

/// Size limits of the values that a schema allows.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Maximum size of a value, in the unit of [`Value::size`](crate::Value::size).
    pub(crate) size: u64,
    /// Minimum size of a value in JSON in bytes.
    bytes: u64,
    pub(crate) parts: PartBounds,
}

/// Limits of the parts of a value.
#[derive(Clone, Debug)]
pub(crate) enum PartBounds {
    /// The parts have no known limits.
    Unknown,
    /// Limits of every element of a list.
    Elements(Box<Bounds>),
    /// Limits of every value of a map.
    Values(Box<Bounds>),
    /// Limits of the declared fields, by their names in the data.
    Fields(BTreeMap<String, Bounds>),
}

/// Limits of the keys of maps.
pub(crate) static KEY: Bounds = Bounds { size: 0, bytes: 2, parts: PartBounds::Unknown };

impl Bounds {
    /// Limits of the values of a schema; `None` if it has no type, as in
    /// [`Type::of_schema`](crate::Type::of_schema).
    pub fn of_schema(schema: &dyn Schema) -> Option<Bounds> {
        let scalar = |size: u64, bytes: u64| Some(Bounds { size, bytes, parts: PartBounds::Unknown });
        match schema.schema_type() {
            SchemaType::Boolean => scalar(0, 4),
            SchemaType::Integer => scalar(0, 1),
            SchemaType::Number => scalar(0, 1),
            SchemaType::IntOrString => {
                scalar(schema.max_length().map_or(REQUEST_BYTES - 2, |length| length.saturating_mul(4)), 1)
            }
            SchemaType::Unspecified => None,
            SchemaType::String => match schema.format() {
                Some("date") => scalar(12, 12),
                Some("date-time" | "datetime") => scalar(32, 21),
                Some("duration") => scalar(32, 3),
                Some("byte") => scalar(schema.max_length().unwrap_or(REQUEST_BYTES - 2), 2),
                _ => scalar(longest_text(schema), 2),
            },
            SchemaType::Array => {
                let element = Bounds::of_schema(schema.items()?)?;
                let size = schema.max_items().unwrap_or((REQUEST_BYTES - 2) / (element.bytes + 1));
                Some(Bounds { size, bytes: 2, parts: PartBounds::Elements(Box::new(element)) })
            }
            SchemaType::Object => match schema.additional_properties() {
                Some(values) => {
                    let value = Bounds::of_schema(values)?;
                    let size = schema.max_properties().unwrap_or((REQUEST_BYTES - 2) / (value.bytes + 6));
                    Some(Bounds { size, bytes: 2, parts: PartBounds::Values(Box::new(value)) })
                }
                None => Some(object(schema)),
            },
        }
    }

    /// Maximum number of values with these limits that fit into a request.
    fn max_in_request(&self) -> u64 {
        (REQUEST_BYTES - 2) / (self.bytes + 1)
    }
}

fn longest_text(schema: &dyn Schema) -> u64 {
    let length = schema.max_length().map(|length| length.saturating_mul(4));
    length.or_else(|| schema.longest_enum()).unwrap_or(REQUEST_BYTES - 2)
}

fn object(schema: &dyn Schema) -> Bounds {
    let mut bytes = 2;
    let mut fields = BTreeMap::new();
    for (name, part) in schema.properties() {
        if let Some(bounds) = Bounds::of_schema(part) {
            // A request may omit a required field with a default, so it does not count.
            if schema.requires(name) && !part.has_default() {
                bytes += name.len() as u64 + bounds.bytes + 4;
            }
            fields.insert(name.to_owned(), bounds);
        }
    }
    if schema.embedded() {
        let text = |name: &str| {
            let bounds = Bounds { size: REQUEST_BYTES - 2, bytes: 2, parts: PartBounds::Unknown };
            (name.to_owned(), bounds)
        };
        let names = PartBounds::Fields([text("name"), text("generateName")].into());
        fields.extend([text("apiVersion"), text("kind")]);
        fields.insert("metadata".to_owned(), Bounds { size: 0, bytes: 2, parts: names });
    }
    Bounds { size: 0, bytes, parts: PartBounds::Fields(fields) }
}

/// Maximum number of occurrences of a part of a schema in one object.
/// The number is the product of the limits of the enclosing lists and maps, and unknown if one has no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occurrences(Option<u64>);

impl Occurrences {
    /// The root of a schema occurs once.
    pub const ONCE: Occurrences = Occurrences(Some(1));

    /// Occurrences of the elements of a list, or of the values of a map, that has at most `max` of them.
    #[must_use]
    pub fn of_each(self, max: Option<u64>) -> Occurrences {
        Occurrences(self.0.zip(max).map(|(outer, inner)| outer.saturating_mul(inner)))
    }

    /// Maximum number of occurrences of a part with these limits.
    ///
    /// If an enclosing list or map has no limit, this is the number of minimal parts that fit into a request.
    pub fn count(self, bounds: &Bounds) -> u64 {
        self.0.unwrap_or_else(|| bounds.max_in_request())
    }
}
