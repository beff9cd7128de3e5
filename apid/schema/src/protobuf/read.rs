//! Decoding of Protobuf messages to the object tree.
//!
//! # Contract
//!
//! [`Schema::read_protobuf`] decodes the bytes of one message, without the envelope, to the tree of the same
//! object in JSON. Absent fields stay absent, and unknown field numbers are skipped. The tree is not
//! conformed: the zeros that Protobuf always writes are present.
//!
//! # Invariants
//!
//! INVARIANT (bounded): nesting is limited to [`DEPTH`] levels. Values and keys are charged to the decode
//! limits before they enter the tree. Otherwise a small body could become a large tree: an empty message of
//! two bytes becomes an object of 0.7 kB.

use apimachinery::codec::{self, Budget, Cost, DecodeError, Limits};
use apimachinery::object::{Map, Number, Object, Value};
use apimachinery::time::{from_unix, micro_time, time as time_text};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::Schema;
use crate::table::Type;

/// Maximum number of nesting levels of messages; a deeper message is [`ProtobufError::TooDeep`].
pub(super) const DEPTH: usize = 100;

/// The reason why bytes are not a message of a type.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum ProtobufError {
    /// The bytes end inside a field.
    #[error("the message is truncated")]
    Truncated,
    /// A field has the wrong wire type, or a time out of range.
    #[error("field `{0}` has the wrong wire type")]
    WireType(String),
    /// A string is not UTF-8.
    #[error("field `{0}` is not UTF-8")]
    Utf8(String),
    /// Raw JSON in a field is malformed.
    #[error("field `{0}` does not hold JSON: {1}")]
    Raw(String, String),
    /// The nesting exceeds [`DEPTH`].
    #[error("the message is nested deeper than {DEPTH} levels")]
    TooDeep,
    /// The tree exceeds the decode limits.
    #[error("{0}")]
    Budget(#[from] DecodeError),
    /// An invalid field number or wire type.
    #[error("the message is malformed")]
    Malformed,
}

type Result<T, E = ProtobufError> = std::result::Result<T, E>;

impl Schema {
    /// Decodes a message of this type. Of `limits`, only the maximum number of values and the maximum size of
    /// the tree apply.
    ///
    /// # Errors
    ///
    /// See [`ProtobufError`].
    pub fn read_protobuf(&'static self, bytes: &[u8], limits: Limits) -> Result<Object> {
        let mut map = Map::new();
        let mut budget = Budget::new(limits);
        budget.charge(Cost::OBJECT)?;
        read_message(self, &[], bytes, &mut map, DecodeContext { budget: &mut budget, depth: 0 })?;
        Ok(Object(map))
    }
}

/// The nesting depth of a message, and the remaining budget under the decode limits.
struct DecodeContext<'b> {
    budget: &'b mut Budget,
    depth: usize,
}

impl DecodeContext<'_> {
    /// Reborrows the context for a call at the same depth.
    fn reborrow(&mut self) -> DecodeContext<'_> {
        DecodeContext { budget: self.budget, depth: self.depth }
    }

    /// The context of a nested message.
    fn nested(&mut self) -> DecodeContext<'_> {
        DecodeContext { budget: self.budget, depth: self.depth + 1 }
    }

    fn charge(&mut self, cost: Cost) -> Result<()> {
        Ok(self.budget.charge(cost)?)
    }

    /// Charges a value without children to the decode limits, and returns the value.
    fn leaf(&mut self, value: Value) -> Result<Value> {
        self.charge(Cost::shallow(&value))?;
        Ok(value)
    }

    /// The list in a field of `output`. Creates and charges the list if the field is absent.
    fn list_in<'m>(&mut self, output: &'m mut Map<String, Value>, name: &str) -> Result<&'m mut Value> {
        if !output.contains_key(name) {
            self.charge(Cost::key(name.len(), output.len()).plus(Cost::LIST))?;
        }
        Ok(output.entry(name).or_insert_with(|| Value::Array(Vec::new())))
    }

    /// The map in a field of `output`. Creates and charges the map if the field is absent.
    fn map_in<'m>(&mut self, output: &'m mut Map<String, Value>, name: &str) -> Result<&'m mut Value> {
        if !output.contains_key(name) {
            self.charge(Cost::key(name.len(), output.len()).plus(Cost::OBJECT))?;
        }
        Ok(output.entry(name).or_insert_with(|| Value::Object(Map::new())))
    }
}

/// A field value on the wire.
#[derive(Clone, Copy)]
enum Wire<'a> {
    Varint(u64),
    Fixed64([u8; 8]),
    Bytes(&'a [u8]),
    Fixed32,
}

/// A reader of the fields of a message.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn next(&mut self) -> Result<Option<(u32, Wire<'a>)>> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let key = read_varint(&mut self.0)?;
        let number = u32::try_from(key >> 3).map_err(|_| ProtobufError::Malformed)?;
        let wire = match key & 7 {
            0 => Wire::Varint(read_varint(&mut self.0)?),
            1 => Wire::Fixed64(self.array()?),
            2 => {
                let length =
                    usize::try_from(read_varint(&mut self.0)?).map_err(|_| ProtobufError::Truncated)?;
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

fn read_varint(bytes: &mut &[u8]) -> Result<u64> {
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

/// Decodes the fields of a message into the map `output`. `outer` holds the numbers of the enclosing embedded
/// types.
fn read_message(
    schema: &'static Schema,
    outer: &[u32],
    bytes: &[u8],
    output: &mut Map<String, Value>,
    mut context: DecodeContext<'_>,
) -> Result<()> {
    if context.depth > DEPTH {
        return Err(ProtobufError::TooDeep);
    }
    let mut fields = Fields(bytes);
    while let Some((number, wire)) = fields.next()? {
        let inner_number = |tags: &[u32]| {
            tags.strip_prefix(outer).and_then(<[u32]>::split_first).map(|(n, rest)| (*n, rest.len()))
        };
        let found =
            schema.fields.iter().find(|field| inner_number(&field.tags).is_some_and(|(n, _)| n == number));
        let Some(field) = found else { continue };
        if inner_number(&field.tags).is_some_and(|(_, inner)| inner > 0) {
            // JSON has the fields of an embedded type beside the other fields.
            let outer: Vec<u32> = outer.iter().copied().chain([number]).collect();
            read_message(schema, &outer, submessage(wire, field.name)?, output, context.nested())?;
        } else {
            match &field.ty {
                Type::List(inner) if field.wrapped => {
                    context.charge(Cost::key(field.name.len(), output.len()))?;
                    drop(output.insert(
                        field.name.to_owned(),
                        read_wrapped_list(inner, wire, field.name, context.reborrow())?,
                    ));
                }
                ty => add_occurrence(ty, wire, field.name, output, context.reborrow())?,
            }
        }
    }
    Ok(())
}

/// Adds one occurrence of a field to the map `output`. Lists and maps have one occurrence for each item or
/// entry.
fn add_occurrence(
    ty: &'static Type,
    wire: Wire<'_>,
    name: &str,
    output: &mut Map<String, Value>,
    mut context: DecodeContext<'_>,
) -> Result<()> {
    match ty {
        Type::Pointer(inner) if matches!(**inner, Type::List(_) | Type::Map(_) | Type::ResourceList) => {
            add_occurrence(inner, wire, name, output, context)
        }
        Type::List(inner) => {
            let Value::Array(items) = context.list_in(output, name)? else { return Ok(()) };
            read_items(inner, wire, name, items, context)
        }
        Type::Map(inner) => read_map_entry(wire, name, output, context, |bytes, context| {
            read_entry_value(inner, bytes, name, context)
        }),
        Type::ResourceList => read_map_entry(wire, name, output, context, |bytes, mut context| {
            context.leaf(match bytes {
                Some(wire) => read_quantity(wire, name)?,
                None => Value::from("0"),
            })
        }),
        _ => {
            context.charge(Cost::key(name.len(), output.len()))?;
            let value = read_single(ty, wire, name, context)?;
            match (output.get_mut(name), value) {
                // A message may be split into several occurrences of its field: their fields are merged.
                (Some(Value::Object(map)), Value::Object(more)) => map.extend(more),
                (_, value) => drop(output.insert(name.to_owned(), value)),
            }
            Ok(())
        }
    }
}

fn read_items(
    ty: &'static Type,
    wire: Wire<'_>,
    name: &str,
    items: &mut Vec<Value>,
    mut context: DecodeContext<'_>,
) -> Result<()> {
    match (ty, wire) {
        (Type::Bool | Type::Int32 | Type::Int64, Wire::Bytes(mut packed)) => {
            while !packed.is_empty() {
                let value = Wire::Varint(read_varint(&mut packed)?);
                items.push(read_single(ty, value, name, context.reborrow())?);
            }
        }
        _ => {
            let item = read_single(ty, wire, name, context.reborrow())?;
            if item.is_object() {
                context.charge(Cost::object_end(1, None))?;
            }
            items.push(item);
        }
    }
    Ok(())
}

/// Decodes a map entry: a message of key and value.
fn read_map_entry<'a>(
    wire: Wire<'a>,
    name: &str,
    output: &mut Map<String, Value>,
    mut context: DecodeContext<'_>,
    value: impl FnOnce(Option<Wire<'a>>, DecodeContext<'_>) -> Result<Value>,
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
    if let Value::Object(map) = context.map_in(output, name)? {
        context.charge(Cost::key(key.len(), map.len()))?;
        map.insert(key.to_owned(), value(found, context)?);
    }
    Ok(())
}

/// Decodes the value of a map entry; a list value is wrapped in a message of its own.
fn read_entry_value(
    ty: &'static Type,
    wire: Option<Wire<'_>>,
    name: &str,
    mut context: DecodeContext<'_>,
) -> Result<Value> {
    match (ty, wire) {
        (Type::List(inner), Some(wire)) => read_wrapped_list(inner, wire, name, context),
        (Type::List(_), None) => context.leaf(Value::Array(Vec::new())),
        (ty, Some(wire)) => read_single(ty, wire, name, context),
        (ty, None) => {
            let zero = ty.zero();
            context.budget.charge_tree(&zero)?;
            Ok(zero)
        }
    }
}

/// Decodes a message that wraps the items of a list.
fn read_wrapped_list(
    inner: &'static Type,
    wire: Wire<'_>,
    name: &str,
    mut context: DecodeContext<'_>,
) -> Result<Value> {
    context.charge(Cost::LIST)?;
    let mut items = Vec::new();
    let mut fields = Fields(submessage(wire, name)?);
    while let Some((number, wire)) = fields.next()? {
        if number == 1 {
            read_items(inner, wire, name, &mut items, context.nested())?;
        }
    }
    Ok(Value::Array(items))
}

/// Decodes one value other than a list or a map.
fn read_single(
    ty: &'static Type,
    wire: Wire<'_>,
    name: &str,
    mut context: DecodeContext<'_>,
) -> Result<Value> {
    let wire_type_error = || ProtobufError::WireType(name.to_owned());
    let leaf = match (ty, wire) {
        (Type::Pointer(inner), wire) => return read_single(inner, wire, name, context),
        (Type::String(_), wire) => Value::from(text(wire, name)?),
        (Type::Bool, Wire::Varint(n)) => Value::Bool(n != 0),
        (Type::Int32, Wire::Varint(n)) => Value::from(int32(n)),
        (Type::Int64, Wire::Varint(n)) => Value::from(n.cast_signed()),
        (Type::Float64, Wire::Fixed64(bytes)) => {
            Number::from_f64(f64::from_le_bytes(bytes)).map_or(Value::Null, Value::Number)
        }
        (Type::Bytes, Wire::Bytes(bytes)) => Value::from(STANDARD.encode(bytes)),
        (Type::Time | Type::MicroTime, wire) => read_time(ty, submessage(wire, name)?, name)?,
        (Type::Quantity, wire) => read_quantity(wire, name)?,
        (Type::IntOrString, wire) => read_int_or_string(submessage(wire, name)?, name)?,
        (Type::Any, wire) => return read_raw_json(submessage(wire, name)?, name, context.budget),
        (Type::Struct(inner), wire) => {
            context.charge(Cost::OBJECT)?;
            let mut map = Map::new();
            if let Some(schema) = inner.schema() {
                read_message(schema, &[], submessage(wire, name)?, &mut map, context.nested())?;
            }
            context.charge(Cost::object_end(map.len(), Some(name)))?;
            return Ok(Value::Object(map));
        }
        (Type::SchemaOrBool(inner) | Type::SchemaOrArray(inner) | Type::SchemaOrStrings(inner), wire) => {
            let schema = inner.schema().ok_or_else(wire_type_error)?;
            return read_schema_or(ty, schema, submessage(wire, name)?, name, context);
        }
        _ => return Err(wire_type_error()),
    };
    context.leaf(leaf)
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

/// The low 32 bits of a varint: the wire has negative numbers sign-extended to 64 bits.
fn int32(n: u64) -> i32 {
    #[expect(clippy::cast_possible_truncation, reason = "Protobuf defines it as the low 32 bits")]
    let low = n as u32;
    low.cast_signed()
}

/// Decodes seconds and nanoseconds since 1970; an empty message is null.
fn read_time(ty: &Type, bytes: &[u8], name: &str) -> Result<Value> {
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
    let instant = from_unix(seconds, nanos).ok_or_else(|| ProtobufError::WireType(name.to_owned()))?;
    Ok(Value::from(if matches!(ty, Type::MicroTime) { micro_time(instant) } else { time_text(instant) }))
}

/// Decodes a message with the text of a quantity.
fn read_quantity(wire: Wire<'_>, name: &str) -> Result<Value> {
    let mut fields = Fields(submessage(wire, name)?);
    let mut found = "0";
    while let Some((number, wire)) = fields.next()? {
        if number == 1 {
            found = text(wire, name)?;
        }
    }
    Ok(Value::from(found))
}

/// Decodes the message of an int-or-string: its kind, the number and the text.
fn read_int_or_string(bytes: &[u8], name: &str) -> Result<Value> {
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

/// Decodes a message with raw JSON.
fn read_raw_json(bytes: &[u8], name: &str, budget: &mut Budget) -> Result<Value> {
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

/// Decodes a message with a schema or its alternative: a boolean, a list of schemas or a list of strings.
fn read_schema_or(
    ty: &'static Type,
    schema: &'static Schema,
    bytes: &[u8],
    name: &str,
    mut context: DecodeContext<'_>,
) -> Result<Value> {
    let read_schema = |bytes: &[u8], mut context: DecodeContext<'_>| -> Result<Value> {
        context.charge(Cost::OBJECT)?;
        let mut map = Map::new();
        read_message(schema, &[], bytes, &mut map, context.nested())?;
        context.charge(Cost::object_end(map.len(), Some(name)))?;
        Ok(Value::Object(map))
    };
    let mut fields = Fields(bytes);
    let (mut schema_value, mut allows, mut list) = (None, false, Vec::new());
    while let Some((number, wire)) = fields.next()? {
        match (ty, number, wire) {
            (Type::SchemaOrBool(_), 1, Wire::Varint(n)) => allows = n != 0,
            (Type::SchemaOrBool(_), 2, Wire::Bytes(bytes)) => {
                schema_value = Some(read_schema(bytes, context.reborrow())?)
            }
            (Type::SchemaOrBool(_), ..) => {}
            (_, 1, Wire::Bytes(bytes)) => schema_value = Some(read_schema(bytes, context.reborrow())?),
            (Type::SchemaOrArray(_), 2, Wire::Bytes(bytes)) => {
                list.push(read_schema(bytes, context.reborrow())?)
            }
            (Type::SchemaOrStrings(_), 2, wire) => list.push(context.leaf(Value::from(text(wire, name)?))?),
            _ => {}
        }
    }
    match (schema_value, ty) {
        (Some(schema), _) => Ok(schema),
        (None, Type::SchemaOrBool(_)) => context.leaf(Value::Bool(allows)),
        (None, _) => {
            context.charge(Cost::LIST)?;
            Ok(Value::Array(list))
        }
    }
}
