//! JSON (RFC 8259): decodes one document into a tree, and encodes a tree.
//!
//! # Contract
//!
//! Integral literals that fit 64 signed bits become integers; every other number becomes a float. `1` and
//! `1.0` therefore differ until they are encoded: a float without a fraction is encoded as Go encodes it,
//! `1`. [`normalize_numbers`] makes both equal before that. Negative zero becomes the integer 0. A lone
//! surrogate becomes U+FFFD, invalid UTF-8 is an error. Only white space may follow the document.
//!
//! All JSON that leaves the process is written by this module, so that floats have the same text everywhere.
//!
//! # Invariants
//!
//! INVARIANT (bounded): the decoder counts the depth and rejects documents above the limit. The limit of the
//! parser, 127 levels, stays in force, and callers cannot raise it. Values and keys are charged to the
//! [`Budget`] before they enter the tree. Without the budget, the tree of a list of objects of one key each
//! would take about 80 times the size of the document.

use std::borrow::Cow;
use std::fmt::{Display, LowerExp};
use std::io;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter};
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
    let input = replace_lone_surrogates(input);
    let mut parser = serde_json::Deserializer::from_slice(&input);
    let tree = Node { state: &mut state, path: Path::Root, depth: 0 }.deserialize(&mut parser);
    let value = tree.and_then(|value| parser.end().map(|()| value));
    *budget = state.budget;
    match value {
        Ok(value) => Ok(Decoded { value, duplicates: state.duplicates.into_paths() }),
        Err(e) => Err(state.rejection.unwrap_or_else(|| DecodeError::Syntax(e.to_string()))),
    }
}

/// Replaces each escape of a lone surrogate, such as `\ud800`, by that of U+FFFD, as Go does.
///
/// The length stays the same, so that positions in errors stay correct.
fn replace_lone_surrogates(input: &[u8]) -> Cow<'_, [u8]> {
    const ESCAPE: usize = 6;
    // A surrogate escape without a partner is rare: copy only a document that has a surrogate escape at all. Most
    // documents have no backslash, for which the search is fast.
    let is_surrogate = |bytes: &[u8]| matches!(bytes, [b'\\', b'u', b'd' | b'D']);
    if !input.contains(&b'\\') || !input.windows(3).any(is_surrogate) {
        return Cow::Borrowed(input);
    }
    let mut output = input.to_vec();
    let mut at = 0;
    while let Some(found) = output.get(at..).and_then(|rest| rest.iter().position(|byte| *byte == b'\\')) {
        at += found;
        let is_high = |unit: u16| (0xd800..0xdc00).contains(&unit);
        let is_low = |unit: u16| (0xdc00..0xe000).contains(&unit);
        at += match (escaped_unit(&output, at), escaped_unit(&output, at + ESCAPE)) {
            (Some(unit), Some(next)) if is_high(unit) && is_low(next) => 2 * ESCAPE,
            (Some(unit), _) if is_high(unit) || is_low(unit) => {
                if let Some(escape) = output.get_mut(at..at + ESCAPE) {
                    escape.copy_from_slice(b"\\ufffd");
                }
                ESCAPE
            }
            (Some(_), _) => ESCAPE,
            // Another escape: a backslash and one character.
            (None, _) => 2,
        };
    }
    Cow::Owned(output)
}

/// The UTF-16 code unit of the escape `\uXXXX` at an offset.
fn escaped_unit(json: &[u8], at: usize) -> Option<u16> {
    let digits = json.get(at..at + 6)?.strip_prefix(b"\\u")?;
    let digits = std::str::from_utf8(digits).ok().filter(|digits| !digits.starts_with('+'))?;
    u16::from_str_radix(digits, 16).ok()
}

/// Replaces floats by integers of equal value, if they have the text of an integer of 64 bits.
///
/// `1` and `1.0` then are equal values. Integers beyond 64 signed bits become floats.
pub fn normalize_numbers(value: &mut Value) {
    match value {
        Value::Number(number) => {
            if let Some(normal) = normal_number(number) {
                *number = normal;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(normalize_numbers),
        Value::Object(fields) => fields.values_mut().for_each(normalize_numbers),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

/// The normal form of a number; None if the number has it already.
fn normal_number(number: &Number) -> Option<Number> {
    if number.is_i64() {
        return None;
    }
    let float = number.as_f64()?;
    match whole_number(float) {
        Some(integer) => Some(integer.into()),
        None if number.is_f64() => None,
        None => Number::from_f64(float),
    }
}

/// The integer with the text of a float, if any.
pub(super) fn whole_number(float: f64) -> Option<i64> {
    if float.fract() == 0.0 { float_text(float).parse().ok() } else { None }
}

/// Whether two values are equal. Numbers are equal by value: `1` equals `1.0`.
pub fn is_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => {
            a == b || normal_number(a).as_ref().unwrap_or(a) == normal_number(b).as_ref().unwrap_or(b)
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len()
                && a.iter().all(|(name, value)| b.get(name).is_some_and(|other| is_same(value, other)))
        }
        _ => a == b,
    }
}

/// Encodes without white space.
pub fn encode(value: &Value) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    encode_into(&mut out, value);
    out
}

/// Appends the encoding of [`encode`] to a buffer.
pub fn encode_into(out: &mut Vec<u8>, value: &impl Serialize) {
    write(out, value, Compact);
}

/// Returns the encoding of [`encode`] as text.
pub fn to_text(value: &impl Serialize) -> String {
    let mut out = Vec::with_capacity(128);
    encode_into(&mut out, value);
    // The serializer writes only UTF-8.
    String::from_utf8(out).unwrap_or_default()
}

/// Writes the encoding of [`encode`].
///
/// # Errors
///
/// The writer fails.
pub fn write_to(out: impl io::Write, value: &impl Serialize) -> serde_json::Result<()> {
    value.serialize(&mut serde_json::Serializer::with_formatter(out, Compact))
}

/// Returns the text of a string in JSON with the escapes of Go: of `<`, `>`, `&` and of two line separators too.
///
/// In JSON text these characters occur only inside strings, so the function takes any JSON text.
pub fn escape_html(json: &str) -> Cow<'_, str> {
    let is_special = |c: char| matches!(c, '<' | '>' | '&' | '\u{2028}' | '\u{2029}');
    if !json.contains(is_special) {
        return Cow::Borrowed(json);
    }
    let mut text = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        match c {
            '<' => text.push_str("\\u003c"),
            '>' => text.push_str("\\u003e"),
            '&' => text.push_str("\\u0026"),
            '\u{2028}' => text.push_str("\\u2028"),
            '\u{2029}' => text.push_str("\\u2029"),
            _ => text.push(c),
        }
    }
    Cow::Owned(text)
}

/// Encodes with an indentation of two spaces, for `?pretty=true`.
pub fn encode_pretty(value: &impl Serialize) -> Vec<u8> {
    let mut out = Vec::with_capacity(1024);
    write(&mut out, value, Pretty(PrettyFormatter::new()));
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
pub fn float_text(value: f64) -> String {
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

/// Indented form with Go's floats.
struct Pretty<'i>(PrettyFormatter<'i>);

impl Formatter for Pretty<'_> {
    fn write_f64<W: io::Write + ?Sized>(&mut self, out: &mut W, value: f64) -> io::Result<()> {
        Compact.write_f64(out, value)
    }

    fn begin_array<W: io::Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_array(out)
    }

    fn end_array<W: io::Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_array(out)
    }

    fn begin_array_value<W: io::Write + ?Sized>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_array_value(out, first)
    }

    fn end_array_value<W: io::Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_array_value(out)
    }

    fn begin_object<W: io::Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object(out)
    }

    fn end_object<W: io::Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object(out)
    }

    fn begin_object_key<W: io::Write + ?Sized>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_object_key(out, first)
    }

    fn begin_object_value<W: io::Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object_value(out)
    }

    fn end_object_value<W: io::Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object_value(out)
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
