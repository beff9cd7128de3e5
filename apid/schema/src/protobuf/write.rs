//! Encoding of the object tree to Protobuf, in one traversal.
//!
//! # Contract
//!
//! [`Schema::write_protobuf`] appends the message of an object in stored form. An absent value is written as
//! the zero of its type, because Protobuf omits only pointers, bytes, lists and maps. A value of the wrong
//! type is written as the zero too; conforming excludes such values.
//!
//! # Invariants
//!
//! INVARIANT (round trip): decoding and conforming an encoded object returns the object. However, fields
//! without a Protobuf number are absent, and empty lists and maps equal absent ones.

use apimachinery::codec::json;
use apimachinery::object::{Map, Object, Value};
use apimachinery::time;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::plan::{Plan, PlanStep};
use crate::table::{Schema, SchemaField, Type};

impl Schema {
    /// Appends the message of an object of this type.
    pub fn write_protobuf(&'static self, object: &Object, out: &mut Vec<u8>) {
        write_fields(self, &object.0, out);
    }
}

/// Appends a message field, whose content `content` appends.
pub fn write_message(number: u32, out: &mut Vec<u8>, content: impl FnOnce(&mut Vec<u8>)) {
    write_key(number, LENGTH, out);
    let position = out.len();
    out.push(0);
    content(out);
    write_length(position, out);
}

/// Writes the length of the content into the byte reserved at `position`.
///
/// Most messages are short; longer content is moved to make space for the length.
fn write_length(position: usize, out: &mut Vec<u8>) {
    let length = out.len() - position - 1;
    let (bytes, size) = encode_varint(length as u64);
    let end = out.len();
    out.resize(end + size - 1, 0);
    out.copy_within(position + 1..end, position + size);
    if let (Some(place), Some(bytes)) = (out.get_mut(position..position + size), bytes.get(..size)) {
        place.copy_from_slice(bytes);
    }
}

const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const LENGTH: u32 = 2;

fn write_key(number: u32, wire: u32, out: &mut Vec<u8>) {
    write_varint(u64::from(number << 3 | wire), out);
}

fn write_varint(value: u64, out: &mut Vec<u8>) {
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

fn write_bytes(number: u32, content: &[u8], out: &mut Vec<u8>) {
    write_key(number, LENGTH, out);
    write_varint(content.len() as u64, out);
    out.extend_from_slice(content);
}

fn write_integer(number: u32, value: i64, out: &mut Vec<u8>) {
    write_key(number, VARINT, out);
    write_varint(value.cast_unsigned(), out);
}

/// Maximum number of fields of a type; a test checks that no type of the table has more.
pub(super) const FIELDS: usize = 64;

/// The values of a struct's fields, in schema order.
type Values<'a> = [Option<&'a Value>; FIELDS];

/// Writes the fields of a message.
fn write_fields(schema: &'static Schema, map: &Map<String, Value>, out: &mut Vec<u8>) {
    let mut values: Values<'_> = [None; FIELDS];
    // Types have many fields and objects few: look up the fields of the object.
    for (name, value) in map {
        if let Some(slot) = schema.position(name).and_then(|index| values.get_mut(index)) {
            *slot = Some(value).filter(|value| !value.is_null());
        }
    }
    write_planned(schema, schema.plan(), &values, out);
}

fn write_planned(schema: &'static Schema, plan: &Plan, values: &Values<'_>, out: &mut Vec<u8>) {
    for (number, step) in &plan.0 {
        match step {
            PlanStep::Embedded(plan) => {
                write_message(*number, out, |out| write_planned(schema, plan, values, out))
            }
            PlanStep::Field(index) => {
                let value = values.get(*index).copied().flatten();
                if let Some(field) = schema.fields.get(*index) {
                    write_field(*number, field, value, out);
                }
            }
        }
    }
}

/// Writes a field: one occurrence for each list item or map entry, otherwise one or none.
fn write_field(number: u32, field: &'static SchemaField, value: Option<&Value>, out: &mut Vec<u8>) {
    match (&field.ty, value) {
        (Type::List(inner), Some(Value::Array(items))) if field.wrapped => {
            write_message(number, out, |out| {
                items.iter().for_each(|item| write_single(1, inner, Some(item), out))
            });
        }
        (Type::Pointer(inner), Some(value)) => write_repeated_or_single(number, inner, value, out),
        (Type::Pointer(_) | Type::List(_) | Type::Map(_) | Type::ResourceList | Type::Bytes, None) => {}
        (ty @ (Type::List(_) | Type::Map(_) | Type::ResourceList), Some(value)) => {
            write_repeated_or_single(number, ty, value, out)
        }
        (ty, value) => write_single(number, ty, value, out),
    }
}

/// Writes a value that may be a list or a map.
fn write_repeated_or_single(number: u32, ty: &'static Type, value: &Value, out: &mut Vec<u8>) {
    match (ty, value) {
        (Type::List(inner), Value::Array(items)) => {
            items.iter().for_each(|item| write_single(number, inner, Some(item), out));
        }
        (Type::Map(inner), Value::Object(map)) => write_pairs(number, inner, map, out),
        (Type::ResourceList, Value::Object(map)) => write_pairs(number, &Type::Quantity, map, out),
        (Type::List(_) | Type::Map(_) | Type::ResourceList, _) => {}
        (ty, value) => write_single(number, ty, Some(value), out),
    }
}

/// Writes the entries of a map, each as a message of key and value; a list value is wrapped in a message of
/// its own.
fn write_pairs(number: u32, inner: &'static Type, map: &Map<String, Value>, out: &mut Vec<u8>) {
    for (name, value) in map {
        write_message(number, out, |out| {
            write_bytes(1, name.as_bytes(), out);
            match (inner, value) {
                (Type::List(inner), value) => write_message(2, out, |out| {
                    value
                        .as_array()
                        .into_iter()
                        .flatten()
                        .for_each(|item| write_single(1, inner, Some(item), out));
                }),
                (inner, value) => write_single(2, inner, Some(value), out),
            }
        });
    }
}

/// Writes one value other than a list or a map; None is the zero of the type.
fn write_single(number: u32, ty: &'static Type, value: Option<&Value>, out: &mut Vec<u8>) {
    let text = || value.and_then(Value::as_str).unwrap_or("");
    match ty {
        Type::Pointer(inner) => write_single(number, inner, value, out),
        Type::String(_) => write_bytes(number, text().as_bytes(), out),
        Type::Bool => write_integer(number, i64::from(value.and_then(Value::as_bool).unwrap_or(false)), out),
        Type::Int32 | Type::Int64 => write_integer(number, value.and_then(Value::as_i64).unwrap_or(0), out),
        Type::Float64 => {
            write_key(number, FIXED64, out);
            out.extend_from_slice(&value.and_then(Value::as_f64).unwrap_or(0.0).to_le_bytes());
        }
        Type::Bytes => write_base64(number, text(), out),
        Type::Time | Type::MicroTime => write_message(number, out, |out| write_time(ty, text(), out)),
        Type::Quantity => {
            let text = Some(text()).filter(|text| !text.is_empty()).unwrap_or("0");
            write_message(number, out, |out| write_bytes(1, text.as_bytes(), out));
        }
        Type::IntOrString => write_message(number, out, |out| write_int_or_string(value, out)),
        Type::Any => write_message(number, out, |out| {
            if let Some(value) = value {
                write_message(1, out, |out| write_json(value, out));
            }
        }),
        Type::Struct(inner) => write_message(number, out, |out| {
            if let Some(schema) = inner.schema() {
                match value {
                    Some(Value::Object(map)) => write_fields(schema, map, out),
                    _ => write_fields(schema, &Map::new(), out),
                }
            }
        }),
        Type::SchemaOrBool(inner) | Type::SchemaOrArray(inner) | Type::SchemaOrStrings(inner) => {
            if let (Some(schema), Some(value)) = (inner.schema(), value) {
                write_message(number, out, |out| write_schema_or(ty, schema, value, out));
            }
        }
        Type::List(_) | Type::Map(_) | Type::ResourceList => {
            if let Some(value) = value {
                write_repeated_or_single(number, ty, value, out);
            }
        }
    }
}

/// Writes a bytes field: decodes the base64 text directly into `out`.
fn write_base64(number: u32, text: &str, out: &mut Vec<u8>) {
    write_key(number, LENGTH, out);
    let padding = text.bytes().rev().take_while(|byte| *byte == b'=').count();
    write_varint((text.len() / 4 * 3).saturating_sub(padding) as u64, out);
    let start = out.len();
    if STANDARD.decode_vec(text, out).is_err() {
        // Conforming excludes malformed base64. Zeros fill the announced length, so that the message stays
        // valid.
        out.truncate(start);
        out.resize(start + (text.len() / 4 * 3).saturating_sub(padding), 0);
    }
}

/// Writes seconds and nanoseconds since 1970. The empty text of an absent time is an empty message.
fn write_time(ty: &Type, text: &str, out: &mut Vec<u8>) {
    let parsed = if matches!(ty, Type::MicroTime) { time::parse_micro(text) } else { time::parse(text) };
    if let Some(instant) = parsed {
        let nanos = if matches!(ty, Type::MicroTime) { instant.subsec_nanosecond() } else { 0 };
        write_integer(1, instant.as_second(), out);
        write_integer(2, i64::from(nanos), out);
    }
}

fn write_int_or_string(value: Option<&Value>, out: &mut Vec<u8>) {
    let text = value.and_then(Value::as_str);
    write_integer(1, i64::from(text.is_some()), out);
    write_integer(2, value.and_then(Value::as_i64).unwrap_or(0), out);
    write_bytes(3, text.unwrap_or("").as_bytes(), out);
}

fn write_json(value: &Value, out: &mut Vec<u8>) {
    json::encode_into(out, value);
}

/// Writes a message with a schema or its alternative: a boolean, a list of schemas or a list of strings.
fn write_schema_or(ty: &Type, schema: &'static Schema, value: &Value, out: &mut Vec<u8>) {
    let is_bool = matches!(ty, Type::SchemaOrBool(_));
    match value {
        Value::Bool(allows) => write_integer(1, i64::from(*allows), out),
        Value::Object(map) => {
            if is_bool {
                write_integer(1, 1, out);
            }
            write_message(if is_bool { 2 } else { 1 }, out, |out| write_fields(schema, map, out));
        }
        Value::Array(items) => {
            for item in items {
                match item {
                    Value::Object(map) => write_message(2, out, |out| write_fields(schema, map, out)),
                    Value::String(text) => write_bytes(2, text.as_bytes(), out),
                    _ => {}
                }
            }
        }
        _ => {}
    }
}
