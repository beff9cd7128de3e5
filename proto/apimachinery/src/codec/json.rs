//! JSON (RFC 8259): decodes one document into a tree, and encodes a tree.
//!
//! # Contract
//!
//! Integral literals that fit 64 signed bits become integers; every other number becomes a float. `1` and
//! `1.0` therefore differ until they are encoded: a float without a fraction is encoded as Go encodes it,
//! `1`. Negative zero becomes the integer 0. Invalid UTF-8 and lone surrogates are errors. Only white space
//! may follow the document.
//!
//! # Invariants
//!
//! INVARIANT (bounded): the decoder counts the depth and rejects documents above the limit. The limit of the
//! parser, 127 levels, stays in force, and callers cannot raise it. Values and keys are charged to the
//! [`Budget`] before they enter the tree. Without the budget, the tree of a list of objects of one key each
//! would take about 80 times the size of the document.

use std::fmt::{Display, LowerExp};
use std::io;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Error as _, Serialize, Serializer};
use serde_json::ser::{Formatter, PrettyFormatter};
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value};

use super::duplicates::{Duplicates, Path};
use super::{Budget, Cost, DecodeError, Decoded, Limits};

/// Maximum depth: one less than the nesting that `serde_json` accepts, so that this limit applies first.
const MAX_DEPTH: usize = 126;

/// Decodes one JSON document; only white space may follow.
///
/// # Errors
///
/// See [`DecodeError`].
pub fn decode(input: &[u8], limits: Limits) -> Result<Decoded, DecodeError> {
    decode_within(input, &mut Budget::new(limits))
}

/// Decodes a document inside another document; both are charged to the same budget.
///
/// # Errors
///
/// See [`DecodeError`].
pub fn decode_within(input: &[u8], budget: &mut Budget) -> Result<Decoded, DecodeError> {
    let limits = budget.limits();
    if input.len() > limits.bytes {
        return Err(DecodeError::TooLarge(limits.bytes));
    }
    let mut state = State {
        duplicates: Duplicates::default(),
        max_depth: limits.depth.min(MAX_DEPTH),
        budget: budget.clone(),
        rejection: None,
    };
    let mut parser = serde_json::Deserializer::from_slice(input);
    let tree = Node { state: &mut state, path: Path::Root, depth: 0 }.deserialize(&mut parser);
    let value = tree.and_then(|value| parser.end().map(|()| value));
    *budget = state.budget;
    match value {
        Ok(value) => Ok(Decoded { value, duplicates: state.duplicates.into_paths() }),
        Err(e) => Err(state.rejection.unwrap_or_else(|| DecodeError::Syntax(e.to_string()))),
    }
}

/// Encodes without white space.
pub fn encode(value: &Value) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    encode_into(&mut out, value);
    out
}

/// Appends the encoding of [`encode`] to a buffer.
pub fn encode_into(out: &mut Vec<u8>, value: &Value) {
    write(out, value, Compact);
}

/// Encodes with an indentation of two spaces, for `?pretty=true`.
pub fn encode_pretty(value: &Value) -> Vec<u8> {
    let mut out = Vec::with_capacity(1024);
    write(&mut out, &GoFloats(value), PrettyFormatter::new());
    out
}

/// Appends an encoded tree. This cannot fail: keys are strings, numbers are finite, and a vector accepts
/// every byte.
fn write(out: &mut Vec<u8>, value: &impl Serialize, formatter: impl Formatter) {
    let written = value.serialize(&mut serde_json::Serializer::with_formatter(out, formatter));
    debug_assert!(written.is_ok(), "a JSON tree encodes into memory");
}

/// Formats a float like Go.
///
/// The text has the fewest digits that parse to the same float, and no `.0`. It has an exponent below 1e-6
/// and from 1e21 on.
pub(super) fn float_text(value: f64) -> String {
    let magnitude = value.abs();
    if value == 0.0 {
        "0".to_owned()
    } else if (1e-6..1e21).contains(&magnitude) {
        value.to_string()
    } else {
        let text = format!("{value:e}");
        if text.contains("e-") { text } else { text.replacen('e', "e+", 1) }
    }
}

/// Formats a finite float like Go's `%g`: with an exponent of at least two digits below 1e-4 and from 1e6 on.
pub fn short_float_text(value: impl Display + LowerExp) -> String {
    let scientific = format!("{value:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    match exponent.parse::<i32>().unwrap_or_default() {
        -4..6 => value.to_string(),
        exponent @ ..0 => format!("{digits}e-{:02}", -exponent),
        exponent => format!("{digits}e+{exponent:02}"),
    }
}

/// Compact form with Go's floats.
struct Compact;

impl Formatter for Compact {
    fn write_f64<W: io::Write + ?Sized>(&mut self, out: &mut W, value: f64) -> io::Result<()> {
        out.write_all(float_text(value).as_bytes())
    }
}

/// A tree whose floats serialize as Go's floats with every formatter.
struct GoFloats<'v>(&'v Value);

impl Serialize for GoFloats<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Array(items) => serializer.collect_seq(items.iter().map(GoFloats)),
            Value::Object(map) => {
                serializer.collect_map(map.iter().map(|(key, value)| (key, GoFloats(value))))
            }
            Value::Number(number) if number.is_f64() => {
                let text = float_text(number.as_f64().unwrap_or_default());
                RawValue::from_string(text).map_err(S::Error::custom)?.serialize(serializer)
            }
            other => other.serialize(serializer),
        }
    }
}

/// State of the decoding of one document.
struct State {
    duplicates: Duplicates,
    max_depth: usize,
    budget: Budget,
    /// Error of the exceeded limit that ended the decoding.
    rejection: Option<DecodeError>,
}

impl State {
    #[inline]
    fn charge<E: serde::de::Error>(&mut self, cost: Cost) -> Result<(), E> {
        self.budget.charge(cost).map_err(|error| self.reject(error))
    }

    /// Stores the error in `rejection`, because the error type of the parser cannot carry it.
    #[cold]
    fn reject<E: serde::de::Error>(&mut self, error: DecodeError) -> E {
        self.rejection = Some(error);
        E::custom("over a limit")
    }
}

/// One value of the document with its path and its depth.
struct Node<'s, 'p> {
    state: &'s mut State,
    path: Path<'p>,
    depth: usize,
}

impl Node<'_, '_> {
    /// Charges the list or object that begins here, and returns the depth of its content.
    fn enter<E: serde::de::Error>(&mut self, cost: Cost) -> Result<usize, E> {
        let depth = self.depth + 1;
        if depth > self.state.max_depth {
            return Err(self.state.reject(DecodeError::TooDeep(self.state.max_depth)));
        }
        self.state.charge(cost)?;
        Ok(depth)
    }
}

impl<'de> DeserializeSeed<'de> for Node<'_, '_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_, '_> {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Value, E> {
        self.state.charge(Cost::NULL)?;
        Ok(Value::Null)
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<Value, E> {
        self.state.charge(Cost::SCALAR)?;
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Value, E> {
        self.state.charge(Cost::SCALAR)?;
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Value, E> {
        match i64::try_from(value) {
            Ok(value) => self.visit_i64(value),
            Err(_) => self.visit_f64(value as f64),
        }
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        self.state.charge(Cost::SCALAR)?;
        if value == 0.0 && value.is_sign_negative() {
            return Ok(Value::Number(0.into()));
        }
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Value, E> {
        self.state.charge(Cost::text(value.len()))?;
        Ok(Value::String(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<Value, A::Error> {
        let depth = self.enter(Cost::LIST)?;
        let Node { state, path, .. } = self;
        let mut list = Vec::new();
        while let Some(item) =
            items.next_element_seed(Node { state, path: Path::Item(&path, list.len()), depth })?
        {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut entries: A) -> Result<Value, A::Error> {
        let depth = self.enter(Cost::OBJECT)?;
        let Node { state, path, .. } = self;
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            state.charge(Cost::key(key.len(), map.len()))?;
            let position = state.duplicates.next_position();
            let value = entries.next_value_seed(Node { state, path: Path::Field(&path, &key), depth })?;
            match map.entry(key) {
                serde_json::map::Entry::Vacant(slot) => {
                    slot.insert(value);
                }
                serde_json::map::Entry::Occupied(mut slot) => {
                    state.duplicates.insert(position, &Path::Field(&path, slot.key()));
                    slot.insert(value);
                }
            }
        }
        state.charge(Cost::object_end(map.len(), path.name()))?;
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
#[path = "tests/json.rs"]
mod tests;
