//! Encoding of the object tree to Protobuf, in one traversal.
//!
//! # Contract
//!
//! [`Schema::write_protobuf`] appends the message of an object in stored form. An absent value is written as
//! the zero of its type, because Protobuf omits only pointers, lists and maps. A value of the wrong type is
//! written like an absent one; conforming excludes such values.
//!
//! # Invariants
//!
//! INVARIANT (round trip): decoding and conforming an encoded object returns the object.

use apimachinery::object::{Map, Object, Value};
use apimachinery::time;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::table::{Field, Schema, Type};

/// The fields of a message, sorted by number.
#[derive(Debug)]
pub(crate) struct Plan(Box<[(u32, Step)]>);

#[derive(Debug)]
enum Step {
    /// The index of a field in the schema.
    Field(usize),
    /// An embedded type, whose fields JSON has beside the other fields.
    Embedded(Plan),
}

impl Plan {
    /// The plan for the fields of a schema.
    pub(crate) fn new(fields: &[Field]) -> Self {
        let all: Vec<_> = fields.iter().enumerate().map(|(at, field)| (&*field.tags, at)).collect();
        Plan::of(&all)
    }

    /// The plan for fields with the rest of their numbers.
    fn of(fields: &[(&[u32], usize)]) -> Self {
        let mut steps = Vec::new();
        let mut numbers: Vec<u32> = fields.iter().filter_map(|(tags, _)| tags.first().copied()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        for number in numbers {
            let inner: Vec<(&[u32], usize)> = fields
                .iter()
                .filter_map(|(tags, at)| {
                    let (first, rest) = tags.split_first()?;
                    (*first == number).then_some((rest, *at))
                })
                .collect();
            let step = match inner.as_slice() {
                [([], at)] => Step::Field(*at),
                _ => Step::Embedded(Plan::of(&inner)),
            };
            steps.push((number, step));
        }
        Plan(steps.into_boxed_slice())
    }
}

impl Schema {
    /// Appends the message of an object of this type.
    pub fn write_protobuf(&'static self, object: &Object, out: &mut Vec<u8>) {
        fields(self, &object.0, out);
    }
}

/// Appends a message field, whose content `content` appends.
pub fn message(number: u32, out: &mut Vec<u8>, content: impl FnOnce(&mut Vec<u8>)) {
    key(number, LENGTH, out);
    let at = out.len();
    out.push(0);
    content(out);
    close(at, out);
}

/// Writes the length of the content into the byte reserved at `at`.
///
/// Most messages are short; longer content is moved to make space for the length.
fn close(at: usize, out: &mut Vec<u8>) {
    let length = out.len() - at - 1;
    let (bytes, size) = encode_varint(length as u64);
    let end = out.len();
    out.resize(end + size - 1, 0);
    out.copy_within(at + 1..end, at + size);
    if let (Some(place), Some(bytes)) = (out.get_mut(at..at + size), bytes.get(..size)) {
        place.copy_from_slice(bytes);
    }
}

const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const LENGTH: u32 = 2;

fn key(number: u32, wire: u32, out: &mut Vec<u8>) {
    varint(u64::from(number << 3 | wire), out);
}

fn varint(value: u64, out: &mut Vec<u8>) {
    if let Some(byte) = u8::try_from(value).ok().filter(|byte| *byte < 0x80) {
        out.push(byte);
        return;
    }
    let (bytes, size) = encode_varint(value);
    out.extend_from_slice(bytes.get(..size).unwrap_or_default());
}

fn encode_varint(mut value: u64) -> ([u8; 10], usize) {
    let mut bytes = [0; 10];
    let mut size = 0;
    for byte in &mut bytes {
        size += 1;
        let low = (value & 0x7f) as u8;
        value >>= 7;
        if value == 0 {
            *byte = low;
            break;
        }
        *byte = low | 0x80;
    }
    (bytes, size)
}

fn bytes(number: u32, content: &[u8], out: &mut Vec<u8>) {
    key(number, LENGTH, out);
    varint(content.len() as u64, out);
    out.extend_from_slice(content);
}

fn integer(number: u32, value: i64, out: &mut Vec<u8>) {
    key(number, VARINT, out);
    varint(value.cast_unsigned(), out);
}

/// Maximum number of fields of a type.
pub(super) const FIELDS: usize = 64;

/// The values of a struct's fields, in schema order.
type Values<'a> = [Option<&'a Value>; FIELDS];

/// Writes the fields of a message.
fn fields(schema: &'static Schema, map: &Map<String, Value>, out: &mut Vec<u8>) {
    let mut values: Values<'_> = [None; FIELDS];
    // Types have many fields and objects few: look up the fields of the object.
    for (name, value) in map {
        if let Some(slot) = schema.position(name).and_then(|at| values.get_mut(at)) {
            *slot = Some(value).filter(|value| !value.is_null());
        }
    }
    planned(schema, schema.plan(), &values, out);
}

fn planned(schema: &'static Schema, plan: &Plan, values: &Values<'_>, out: &mut Vec<u8>) {
    for (number, step) in &plan.0 {
        match step {
            Step::Embedded(plan) => message(*number, out, |out| planned(schema, plan, values, out)),
            Step::Field(at) => {
                let value = values.get(*at).copied().flatten();
                if let Some(known) = schema.fields.get(*at) {
                    field(*number, known, value, out);
                }
            }
        }
    }
}

/// Writes a field with all its occurrences.
fn field(number: u32, field: &'static Field, value: Option<&Value>, out: &mut Vec<u8>) {
    match (&field.ty, value) {
        (Type::List(of), Some(Value::Array(items))) if field.wrapped => {
            message(number, out, |out| items.iter().for_each(|item| single(1, of, Some(item), out)));
        }
        (Type::Pointer(of), Some(value)) => repeated_or_single(number, of, value, out),
        (Type::Pointer(_) | Type::List(_) | Type::Map(_) | Type::ResourceList | Type::Bytes, None) => {}
        (ty @ (Type::List(_) | Type::Map(_) | Type::ResourceList), Some(value)) => {
            repeated_or_single(number, ty, value, out)
        }
        (ty, value) => single(number, ty, value, out),
    }
}

/// Writes a value that may be a list or a map.
fn repeated_or_single(number: u32, ty: &'static Type, value: &Value, out: &mut Vec<u8>) {
    match (ty, value) {
        (Type::List(of), Value::Array(items)) => {
            items.iter().for_each(|item| single(number, of, Some(item), out));
        }
        (Type::Map(of), Value::Object(map)) => pairs(number, of, map, out),
        (Type::ResourceList, Value::Object(map)) => pairs(number, &Type::Quantity, map, out),
        (Type::List(_) | Type::Map(_) | Type::ResourceList, _) => {}
        (ty, value) => single(number, ty, Some(value), out),
    }
}

/// Writes the entries of a map, each a message of key and value; a list value has its own message.
fn pairs(number: u32, of: &'static Type, map: &Map<String, Value>, out: &mut Vec<u8>) {
    for (name, value) in map {
        message(number, out, |out| {
            bytes(1, name.as_bytes(), out);
            match (of, value) {
                (Type::List(of), value) => message(2, out, |out| {
                    value.as_array().into_iter().flatten().for_each(|item| single(1, of, Some(item), out));
                }),
                (of, value) => single(2, of, Some(value), out),
            }
        });
    }
}

/// Writes one value other than a list or a map; None is the zero of the type.
fn single(number: u32, ty: &'static Type, value: Option<&Value>, out: &mut Vec<u8>) {
    let text = || value.and_then(Value::as_str).unwrap_or("");
    match ty {
        Type::Pointer(of) => single(number, of, value, out),
        Type::String(_) => bytes(number, text().as_bytes(), out),
        Type::Bool => integer(number, i64::from(value.and_then(Value::as_bool).unwrap_or(false)), out),
        Type::Int32 | Type::Int64 => integer(number, value.and_then(Value::as_i64).unwrap_or(0), out),
        Type::Float64 => {
            key(number, FIXED64, out);
            out.extend_from_slice(&value.and_then(Value::as_f64).unwrap_or(0.0).to_le_bytes());
        }
        Type::Bytes => base64(number, text(), out),
        Type::Time | Type::MicroTime => message(number, out, |out| instant(ty, text(), out)),
        Type::Quantity => {
            let text = Some(text()).filter(|text| !text.is_empty()).unwrap_or("0");
            message(number, out, |out| bytes(1, text.as_bytes(), out));
        }
        Type::IntOrString => message(number, out, |out| int_or_string(value, out)),
        Type::Any => message(number, out, |out| {
            if let Some(value) = value {
                message(1, out, |out| json(value, out));
            }
        }),
        Type::Struct(of) => message(number, out, |out| {
            if let Some(schema) = of.schema() {
                match value {
                    Some(Value::Object(map)) => fields(schema, map, out),
                    _ => fields(schema, &Map::new(), out),
                }
            }
        }),
        Type::SchemaOrBool(of) | Type::SchemaOrArray(of) | Type::SchemaOrStrings(of) => {
            if let (Some(schema), Some(value)) = (of.schema(), value) {
                message(number, out, |out| schema_or(ty, schema, value, out));
            }
        }
        Type::List(_) | Type::Map(_) | Type::ResourceList => {
            if let Some(value) = value {
                repeated_or_single(number, ty, value, out);
            }
        }
    }
}

/// Writes a bytes field, decoded in place.
fn base64(number: u32, text: &str, out: &mut Vec<u8>) {
    key(number, LENGTH, out);
    let padding = text.bytes().rev().take_while(|byte| *byte == b'=').count();
    varint((text.len() / 4 * 3).saturating_sub(padding) as u64, out);
    let at = out.len();
    if STANDARD.decode_vec(text, out).is_err() {
        // Conforming excludes malformed base64.
        out.truncate(at);
        out.resize(at + (text.len() / 4 * 3).saturating_sub(padding), 0);
    }
}

/// Writes seconds and nanoseconds since 1970; null is an empty message.
fn instant(ty: &Type, text: &str, out: &mut Vec<u8>) {
    let read = if matches!(ty, Type::MicroTime) { time::parse_micro(text) } else { time::parse(text) };
    if let Some(at) = read {
        let nanos = if matches!(ty, Type::MicroTime) { at.subsec_nanosecond() } else { 0 };
        integer(1, at.as_second(), out);
        integer(2, i64::from(nanos), out);
    }
}

fn int_or_string(value: Option<&Value>, out: &mut Vec<u8>) {
    let text = value.and_then(Value::as_str);
    integer(1, i64::from(text.is_some()), out);
    integer(2, value.and_then(Value::as_i64).unwrap_or(0), out);
    bytes(3, text.unwrap_or("").as_bytes(), out);
}

fn json(value: &Value, out: &mut Vec<u8>) {
    // Serializing a tree to memory cannot fail.
    drop(serde_json::to_writer(out, value));
}

/// Writes a message with a schema or its alternative.
fn schema_or(ty: &Type, schema: &'static Schema, value: &Value, out: &mut Vec<u8>) {
    let is_bool = matches!(ty, Type::SchemaOrBool(_));
    match value {
        Value::Bool(allows) => integer(1, i64::from(*allows), out),
        Value::Object(map) => {
            if is_bool {
                integer(1, 1, out);
            }
            message(if is_bool { 2 } else { 1 }, out, |out| fields(schema, map, out));
        }
        Value::Array(items) => {
            for item in items {
                match item {
                    Value::Object(map) => message(2, out, |out| fields(schema, map, out)),
                    Value::String(text) => bytes(2, text.as_bytes(), out),
                    _ => {}
                }
            }
        }
        _ => {}
    }
}
