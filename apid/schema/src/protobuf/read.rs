//! Reading: from bytes to the object tree.
//!
//! # Contract
//!
//! [`Schema::read_protobuf`] takes the bytes of one message, without the envelope, and gives the tree that the same object
//! has as JSON. What the message leaves out is left out; numbers that the table does not know are skipped. The tree has
//! not been conformed: zeros that Protobuf always writes are in it.
//!
//! # Invariants
//!
//! INVARIANT (bounded): nesting is limited to [`DEPTH`] levels, and values and keys are charged to the decode budget before
//! they enter the tree. Without it, empty messages of two bytes would each become an object of 0.7 kB.

use apimachinery::codec::{self, Budget, Cost, DecodeError, Limits};
use apimachinery::object::{Map, Number, Object, Value};
use apimachinery::time::{from_unix, micro_time, time as time_text};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::Schema;
use crate::table::Type;

/// Levels of messages within messages.
pub(super) const DEPTH: usize = 100;

/// Why bytes are no message of a type.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum ProtobufError {
    /// The bytes end in the middle of a field.
    #[error("the message is cut off")]
    Truncated,
    /// A field has another wire type than its type has.
    #[error("field `{0}` has the wrong wire type")]
    WireType(String),
    /// A string is not UTF-8.
    #[error("field `{0}` is not UTF-8")]
    Utf8(String),
    /// Raw JSON in a field cannot be read.
    #[error("field `{0}` does not hold JSON: {1}")]
    Raw(String, String),
    /// Deeper than [`DEPTH`].
    #[error("the message is nested deeper than {DEPTH} levels")]
    TooDeep,
    /// The tree exceeds the decode budget.
    #[error("{0}")]
    Budget(#[from] DecodeError),
    /// A number or wire type that no encoder writes.
    #[error("the message is malformed")]
    Malformed,
}

type Result<T, E = ProtobufError> = std::result::Result<T, E>;

impl Schema {
    /// Reads a message of this type. Of the limits only the decode budget counts.
    ///
    /// # Errors
    ///
    /// See [`ProtobufError`].
    pub fn read_protobuf(&'static self, bytes: &[u8], limits: Limits) -> Result<Object> {
        let mut map = Map::new();
        let mut budget = Budget::new(limits);
        budget.charge(Cost::OBJECT)?;
        message(self, &[], bytes, &mut map, Place { budget: &mut budget, depth: 0 })?;
        Ok(Object(map))
    }
}

/// The nesting of a message and what the tree may still cost.
struct Place<'b> {
    budget: &'b mut Budget,
    depth: usize,
}

impl Place<'_> {
    /// The same level, borrowed for a call.
    fn here(&mut self) -> Place<'_> {
        Place { budget: self.budget, depth: self.depth }
    }

    /// One level further down.
    fn deeper(&mut self) -> Place<'_> {
        Place { budget: self.budget, depth: self.depth + 1 }
    }

    fn charge(&mut self, cost: Cost) -> Result<()> {
        Ok(self.budget.charge(cost)?)
    }

    /// Counts a value that holds no others.
    fn leaf(&mut self, value: Value) -> Result<Value> {
        self.charge(Cost::shallow(&value))?;
        Ok(value)
    }

    /// The list in a field, with the cost of a new one.
    fn list_in<'m>(&mut self, into: &'m mut Map<String, Value>, name: &str) -> Result<&'m mut Value> {
        if !into.contains_key(name) {
            self.charge(Cost::key(name.len(), into.len()).plus(Cost::LIST))?;
        }
        Ok(into.entry(name).or_insert_with(|| Value::Array(Vec::new())))
    }

    /// The map in a field, with the cost of a new one.
    fn map_in<'m>(&mut self, into: &'m mut Map<String, Value>, name: &str) -> Result<&'m mut Value> {
        if !into.contains_key(name) {
            self.charge(Cost::key(name.len(), into.len()).plus(Cost::OBJECT))?;
        }
        Ok(into.entry(name).or_insert_with(|| Value::Object(Map::new())))
    }
}

/// A field on the wire.
#[derive(Clone, Copy)]
enum Wire<'a> {
    Varint(u64),
    Fixed64([u8; 8]),
    Bytes(&'a [u8]),
    Fixed32,
}

/// Takes fields off a message.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn next(&mut self) -> Result<Option<(u32, Wire<'a>)>> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let key = varint(&mut self.0)?;
        let number = u32::try_from(key >> 3).map_err(|_| ProtobufError::Malformed)?;
        let wire = match key & 7 {
            0 => Wire::Varint(varint(&mut self.0)?),
            1 => Wire::Fixed64(self.array()?),
            2 => {
                let length = usize::try_from(varint(&mut self.0)?).map_err(|_| ProtobufError::Truncated)?;
                let (bytes, rest) = self.0.split_at_checked(length).ok_or(ProtobufError::Truncated)?;
                self.0 = rest;
                Wire::Bytes(bytes)
            }
            5 => {
                self.array::<4>()?;
                Wire::Fixed32
            }
            _ => return Err(ProtobufError::Malformed),
        };
        if number == 0 { Err(ProtobufError::Malformed) } else { Ok(Some((number, wire))) }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk::<N>().ok_or(ProtobufError::Truncated)?;
        self.0 = rest;
        Ok(*array)
    }
}

fn varint(bytes: &mut &[u8]) -> Result<u64> {
    let mut value = 0_u64;
    for shift in (0..70).step_by(7) {
        let (first, rest) = bytes.split_first().ok_or(ProtobufError::Truncated)?;
        *bytes = rest;
        value |= u64::from(first & 0x7f).checked_shl(shift).unwrap_or(0);
        if first & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(ProtobufError::Malformed)
}

/// Reads the fields of a message into a map. `outer`: the numbers of embedded types that led here.
fn message(
    schema: &'static Schema,
    outer: &[u32],
    bytes: &[u8],
    into: &mut Map<String, Value>,
    mut place: Place<'_>,
) -> Result<()> {
    if place.depth > DEPTH {
        return Err(ProtobufError::TooDeep);
    }
    let mut fields = Fields(bytes);
    while let Some((number, wire)) = fields.next()? {
        let here = |tags: &[u32]| {
            tags.strip_prefix(outer).and_then(<[u32]>::split_first).map(|(n, rest)| (*n, rest.len()))
        };
        let found = schema.fields.iter().find(|field| here(&field.tags).is_some_and(|(n, _)| n == number));
        let Some(field) = found else { continue };
        if here(&field.tags).is_some_and(|(_, inner)| inner > 0) {
            // The fields of an embedded type stand beside the others in JSON.
            let outer: Vec<u32> = outer.iter().copied().chain([number]).collect();
            message(schema, &outer, submessage(wire, field.name)?, into, place.deeper())?;
        } else {
            match &field.ty {
                Type::List(of) if field.wrapped => {
                    place.charge(Cost::key(field.name.len(), into.len()))?;
                    drop(into.insert(field.name.to_owned(), wrapped(of, wire, field.name, place.here())?));
                }
                ty => add(ty, wire, field.name, into, place.here())?,
            }
        }
    }
    Ok(())
}

/// Adds one occurrence of a field.
fn add(
    ty: &'static Type,
    wire: Wire<'_>,
    name: &str,
    into: &mut Map<String, Value>,
    mut place: Place<'_>,
) -> Result<()> {
    match ty {
        Type::Pointer(of) if matches!(**of, Type::List(_) | Type::Map(_) | Type::ResourceList) => {
            add(of, wire, name, into, place)
        }
        Type::List(of) => {
            let Value::Array(items) = place.list_in(into, name)? else { return Ok(()) };
            items_of(of, wire, name, items, place)
        }
        Type::Map(of) => pair(wire, name, into, place, |bytes, place| value_of_pair(of, bytes, name, place)),
        Type::ResourceList => pair(wire, name, into, place, |bytes, mut place| {
            place.leaf(match bytes {
                Some(wire) => quantity(wire, name)?,
                None => Value::from("0"),
            })
        }),
        _ => {
            place.charge(Cost::key(name.len(), into.len()))?;
            let value = single(ty, wire, name, place)?;
            match (into.get_mut(name), value) {
                // A message that comes in parts is put together.
                (Some(Value::Object(map)), Value::Object(more)) => map.extend(more),
                (_, value) => drop(into.insert(name.to_owned(), value)),
            }
            Ok(())
        }
    }
}

fn items_of(
    ty: &'static Type,
    wire: Wire<'_>,
    name: &str,
    items: &mut Vec<Value>,
    mut place: Place<'_>,
) -> Result<()> {
    match (ty, wire) {
        (Type::Bool | Type::Int32 | Type::Int64, Wire::Bytes(mut packed)) => {
            while !packed.is_empty() {
                let value = Wire::Varint(varint(&mut packed)?);
                items.push(single(ty, value, name, place.here())?);
            }
        }
        _ => {
            let item = single(ty, wire, name, place.here())?;
            if item.is_object() {
                place.charge(Cost::object_end(1, None))?;
            }
            items.push(item);
        }
    }
    Ok(())
}

/// A map's entry: a message of key and value.
fn pair<'a>(
    wire: Wire<'a>,
    name: &str,
    into: &mut Map<String, Value>,
    mut place: Place<'_>,
    value: impl FnOnce(Option<Wire<'a>>, Place<'_>) -> Result<Value>,
) -> Result<()> {
    let mut fields = Fields(submessage(wire, name)?);
    let (mut key, mut found) = ("", None);
    while let Some((number, wire)) = fields.next()? {
        match number {
            1 => key = text(wire, name)?,
            2 => found = Some(wire),
            _ => {}
        }
    }
    if let Value::Object(map) = place.map_in(into, name)? {
        place.charge(Cost::key(key.len(), map.len()))?;
        map.insert(key.to_owned(), value(found, place)?);
    }
    Ok(())
}

/// The value of a map's entry; a list is wrapped in a message of its own.
fn value_of_pair(
    ty: &'static Type,
    wire: Option<Wire<'_>>,
    name: &str,
    mut place: Place<'_>,
) -> Result<Value> {
    match (ty, wire) {
        (Type::List(of), Some(wire)) => wrapped(of, wire, name, place),
        (Type::List(_), None) => place.leaf(Value::Array(Vec::new())),
        (ty, Some(wire)) => single(ty, wire, name, place),
        (ty, None) => {
            let zero = ty.zero();
            place.budget.charge_tree(&zero)?;
            Ok(zero)
        }
    }
}

/// A message of the items of a list.
fn wrapped(of: &'static Type, wire: Wire<'_>, name: &str, mut place: Place<'_>) -> Result<Value> {
    place.charge(Cost::LIST)?;
    let mut items = Vec::new();
    let mut fields = Fields(submessage(wire, name)?);
    while let Some((number, wire)) = fields.next()? {
        if number == 1 {
            items_of(of, wire, name, &mut items, place.deeper())?;
        }
    }
    Ok(Value::Array(items))
}

/// One value that is no list and no map.
fn single(ty: &'static Type, wire: Wire<'_>, name: &str, mut place: Place<'_>) -> Result<Value> {
    let wrong = || ProtobufError::WireType(name.to_owned());
    let leaf = match (ty, wire) {
        (Type::Pointer(of), wire) => return single(of, wire, name, place),
        (Type::String(_), wire) => Value::from(text(wire, name)?),
        (Type::Bool, Wire::Varint(n)) => Value::Bool(n != 0),
        (Type::Int32, Wire::Varint(n)) => Value::from(int32(n)),
        (Type::Int64, Wire::Varint(n)) => Value::from(n.cast_signed()),
        (Type::Float64, Wire::Fixed64(bytes)) => {
            Number::from_f64(f64::from_le_bytes(bytes)).map_or(Value::Null, Value::Number)
        }
        (Type::Bytes, Wire::Bytes(bytes)) => Value::from(STANDARD.encode(bytes)),
        (Type::Time | Type::MicroTime, wire) => time(ty, submessage(wire, name)?, name)?,
        (Type::Quantity, wire) => quantity(wire, name)?,
        (Type::IntOrString, wire) => int_or_string(submessage(wire, name)?, name)?,
        (Type::Any, wire) => return raw(submessage(wire, name)?, name, place.budget),
        (Type::Struct(of), wire) => {
            place.charge(Cost::OBJECT)?;
            let mut map = Map::new();
            if let Some(schema) = of.schema() {
                message(schema, &[], submessage(wire, name)?, &mut map, place.deeper())?;
            }
            place.charge(Cost::object_end(map.len(), Some(name)))?;
            return Ok(Value::Object(map));
        }
        (Type::SchemaOrBool(of) | Type::SchemaOrArray(of) | Type::SchemaOrStrings(of), wire) => {
            let schema = of.schema().ok_or_else(wrong)?;
            return schema_or(ty, schema, submessage(wire, name)?, name, place);
        }
        _ => return Err(wrong()),
    };
    place.leaf(leaf)
}

fn submessage<'a>(wire: Wire<'a>, name: &str) -> Result<&'a [u8]> {
    match wire {
        Wire::Bytes(bytes) => Ok(bytes),
        Wire::Varint(_) | Wire::Fixed64(_) | Wire::Fixed32 => Err(ProtobufError::WireType(name.to_owned())),
    }
}

fn text<'a>(wire: Wire<'a>, name: &str) -> Result<&'a str> {
    std::str::from_utf8(submessage(wire, name)?).map_err(|_| ProtobufError::Utf8(name.to_owned()))
}

/// Negative numbers are written in ten bytes, of which the low four count.
fn int32(n: u64) -> i32 {
    #[expect(clippy::cast_possible_truncation, reason = "Protobuf defines it as the low 32 bits")]
    let low = n as u32;
    low.cast_signed()
}

/// Seconds and nanoseconds since 1970; nothing at all is no time.
fn time(ty: &Type, bytes: &[u8], name: &str) -> Result<Value> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    let (mut seconds, mut nanos) = (0, 0);
    let mut fields = Fields(bytes);
    while let Some((number, wire)) = fields.next()? {
        match (number, wire) {
            (1, Wire::Varint(n)) => seconds = n.cast_signed(),
            (2, Wire::Varint(n)) => nanos = int32(n),
            _ => {}
        }
    }
    let at = from_unix(seconds, nanos).ok_or_else(|| ProtobufError::WireType(name.to_owned()))?;
    Ok(Value::from(if matches!(ty, Type::MicroTime) { micro_time(at) } else { time_text(at) }))
}

/// A message with the text.
fn quantity(wire: Wire<'_>, name: &str) -> Result<Value> {
    let mut fields = Fields(submessage(wire, name)?);
    let mut found = "0";
    while let Some((number, wire)) = fields.next()? {
        if number == 1 {
            found = text(wire, name)?;
        }
    }
    Ok(Value::from(found))
}

/// A message with the kind, the number and the text.
fn int_or_string(bytes: &[u8], name: &str) -> Result<Value> {
    let (mut is_text, mut number, mut string) = (false, 0, "");
    let mut fields = Fields(bytes);
    while let Some((tag, wire)) = fields.next()? {
        match (tag, wire) {
            (1, Wire::Varint(n)) => is_text = n == 1,
            (2, Wire::Varint(n)) => number = int32(n),
            (3, wire) => string = text(wire, name)?,
            _ => {}
        }
    }
    Ok(if is_text { Value::from(string) } else { Value::from(number) })
}

/// A message with JSON.
fn raw(bytes: &[u8], name: &str, budget: &mut Budget) -> Result<Value> {
    let mut fields = Fields(bytes);
    let mut json: &[u8] = b"";
    while let Some((number, wire)) = fields.next()? {
        if number == 1 {
            json = submessage(wire, name)?;
        }
    }
    if json.is_empty() {
        budget.charge(Cost::NULL)?;
        return Ok(Value::Null);
    }
    match codec::json::decode_within(json, budget) {
        Ok(decoded) => Ok(decoded.value),
        Err(error) if error.exceeds_budget() => Err(ProtobufError::Budget(error)),
        Err(error) => Err(ProtobufError::Raw(name.to_owned(), error.to_string())),
    }
}

/// A message with a schema and what may stand in its place.
fn schema_or(
    ty: &'static Type,
    schema: &'static Schema,
    bytes: &[u8],
    name: &str,
    mut place: Place<'_>,
) -> Result<Value> {
    let read = |bytes: &[u8], mut place: Place<'_>| -> Result<Value> {
        place.charge(Cost::OBJECT)?;
        let mut map = Map::new();
        message(schema, &[], bytes, &mut map, place.deeper())?;
        place.charge(Cost::object_end(map.len(), Some(name)))?;
        Ok(Value::Object(map))
    };
    let mut fields = Fields(bytes);
    let (mut one, mut allows, mut list) = (None, false, Vec::new());
    while let Some((number, wire)) = fields.next()? {
        match (ty, number, wire) {
            (Type::SchemaOrBool(_), 1, Wire::Varint(n)) => allows = n != 0,
            (Type::SchemaOrBool(_), 2, Wire::Bytes(bytes)) => one = Some(read(bytes, place.here())?),
            (Type::SchemaOrBool(_), ..) => {}
            (_, 1, Wire::Bytes(bytes)) => one = Some(read(bytes, place.here())?),
            (Type::SchemaOrArray(_), 2, Wire::Bytes(bytes)) => list.push(read(bytes, place.here())?),
            (Type::SchemaOrStrings(_), 2, wire) => list.push(place.leaf(Value::from(text(wire, name)?))?),
            _ => {}
        }
    }
    match (one, ty) {
        (Some(schema), _) => Ok(schema),
        (None, Type::SchemaOrBool(_)) => place.leaf(Value::Bool(allows)),
        (None, _) => {
            place.charge(Cost::LIST)?;
            Ok(Value::Array(list))
        }
    }
}
