//! What a schema says about the size of the data: bounds that estimates start from.
//!
//! # Contract
//! - Text is bounded by `maxLength`, else by its longest `enum` value or its format, else by what a request
//!   can hold; lists by `maxItems`, maps by `maxProperties`, else by how many of the smallest elements fit
//!   into a request.
//! - Keys of maps, which no schema bounds, count as empty, as they do on the reference server. What they
//!   really cost is charged when the expression runs.

use std::collections::BTreeMap;

use crate::schema_types::{Schema, SchemaType};

/// The largest request, in bytes.
const REQUEST: u64 = 3 << 20;

/// Bounds of the values that a schema allows.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Largest size, in the unit of [`Value::size`](crate::Value::size).
    pub(crate) size: u64,
    /// Smallest size in JSON, in bytes.
    bytes: u64,
    pub(crate) within: Within,
}

/// Bounds of what is in a value.
#[derive(Clone, Debug)]
pub(crate) enum Within {
    Nothing,
    /// Of every element of a list or value of a map.
    Each(Box<Bounds>),
    /// Of the declared fields, by their names in the data.
    Fields(BTreeMap<String, Bounds>),
}

impl Bounds {
    /// The bounds of a schema; `None` where it names no type, as in
    /// [`Type::of_schema`](crate::Type::of_schema).
    pub fn of_schema(schema: &dyn Schema) -> Option<Bounds> {
        let plain = |size: u64, bytes: u64| Some(Bounds { size, bytes, within: Within::Nothing });
        match schema.schema_type() {
            SchemaType::Boolean => plain(1, 4),
            SchemaType::Integer | SchemaType::Number => plain(1, 1),
            SchemaType::IntOrString => plain(REQUEST - 2, 1),
            SchemaType::Unspecified => None,
            SchemaType::String => match schema.format() {
                Some("date") => plain(12, 12),
                Some("date-time" | "datetime") => plain(32, 21),
                Some("duration") => plain(32, 3),
                _ => plain(longest_text(schema), 2),
            },
            SchemaType::Array => {
                let element = Bounds::of_schema(schema.items()?)?;
                let size = schema.max_items().unwrap_or((REQUEST - 2) / (element.bytes + 1));
                Some(Bounds { size, bytes: 2, within: Within::Each(Box::new(element)) })
            }
            SchemaType::Object => match schema.additional_properties() {
                Some(values) => {
                    let value = Bounds::of_schema(values)?;
                    let size = schema.max_properties().unwrap_or((REQUEST - 2) / (value.bytes + 6));
                    Some(Bounds { size, bytes: 2, within: Within::Each(Box::new(value)) })
                }
                None => Some(object(schema)),
            },
        }
    }

    /// How many values of this schema a request can hold.
    fn in_a_request(&self) -> u64 {
        REQUEST / (self.bytes + 1)
    }
}

fn longest_text(schema: &dyn Schema) -> u64 {
    schema.max_length().or_else(|| schema.longest_enum()).unwrap_or(REQUEST - 2)
}

fn object(schema: &dyn Schema) -> Bounds {
    let mut bytes = 2;
    let mut fields = BTreeMap::new();
    for (name, part) in schema.properties() {
        if let Some(bounds) = Bounds::of_schema(part) {
            // A field that the server fills in need not be in the request.
            if schema.requires(name) && !part.has_default() {
                bytes += name.len() as u64 + bounds.bytes + 4;
            }
            fields.insert(name.to_owned(), bounds);
        }
    }
    if schema.embedded() {
        let text = |name: &str| {
            let bounds = Bounds { size: REQUEST - 2, bytes: 2, within: Within::Nothing };
            (name.to_owned(), bounds)
        };
        let names = Within::Fields([text("name"), text("generateName")].into());
        fields.extend([text("apiVersion"), text("kind")]);
        fields.insert("metadata".to_owned(), Bounds { size: 2, bytes: 2, within: names });
    }
    Bounds { size: fields.len() as u64, bytes, within: Within::Fields(fields) }
}

/// How often a part of a schema may occur in one object: the product of the bounds of the lists and maps
/// around it, if all of them have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occurrences(Option<u64>);

impl Occurrences {
    /// The root of a schema occurs once.
    pub const ONCE: Occurrences = Occurrences(Some(1));

    /// Occurrences of the elements of a list (or values of a map) that has at most so many.
    #[must_use]
    pub fn of_each(self, at_most: Option<u64>) -> Occurrences {
        Occurrences(self.0.zip(at_most).map(|(mine, each)| mine.saturating_mul(each)))
    }

    /// The number for a part with these bounds.
    pub fn count(self, bounds: &Bounds) -> u64 {
        self.0.unwrap_or_else(|| bounds.in_a_request())
    }
}
