//! CBOR (RFC 8949), alpha: encodes and decodes like kube-apiserver. `ciborium-ll` reads and writes the heads of
//! items.
//!
//! # Contract
//!
//! Encoding produces one item with the tag for self-described CBOR. Texts and map keys are byte strings, and
//! keys are sorted by their encoding. Integers and floats have the shortest encoding that keeps the value.
//!
//! Decoding accepts texts as byte or text strings, items of definite and indefinite length, and floats of any
//! width. Duplicate keys, keys that are not texts, NaN, infinities, simple values other than false, true and
//! null, and trailing input are errors.
//!
//! # Reference
//!
//! The decode mode of Kubernetes' CBOR serializer:
//!
//! - Tags 21, 22 and 23 convert the byte strings inside to base64url, base64 and hexadecimal text.
//! - Tags 0 and 1 decode to RFC 3339 text. The text of tag 0 stays as it is; kube-apiserver removes trailing
//!   zeros of its fraction.
//! - Tags of big integers are errors. All other tags decode to their content.
//! - The reference limits lists and maps to 1,024 entries; [`Limits`] apply instead.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ciborium_ll::{Decoder, Encoder, Error, Header};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Number, Value};

use super::{Budget, Cost, DecodeError, Decoded, Limits};
use crate::time;

/// Encoded tag 55799, with which every document begins.
pub const MAGIC: [u8; 3] = [0xd9, 0xd9, 0xf7];

/// Tags of RFC 8949, section 3.4.
mod tag {
    pub(super) const DATE_TIME: u64 = 0;
    pub(super) const EPOCH_TIME: u64 = 1;
    pub(super) const UNSIGNED_BIG_INTEGER: u64 = 2;
    pub(super) const NEGATIVE_BIG_INTEGER: u64 = 3;
    pub(super) const EXPECTED_BASE64URL: u64 = 21;
    pub(super) const EXPECTED_BASE64: u64 = 22;
    pub(super) const EXPECTED_BASE16: u64 = 23;
}

/// Simple values of RFC 8949, section 3.3.
mod simple {
    pub(super) const FALSE: u8 = 20;
    pub(super) const TRUE: u8 = 21;
    pub(super) const NULL: u8 = 22;
}

/// Error type of a write to a vector. It has no values, because such a write cannot fail.
type WriteError = <Vec<u8> as ciborium_io::Write>::Error;

/// Encodes a value as a document, which begins with [`MAGIC`].
pub fn encode(value: &Value) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    out.extend_from_slice(&MAGIC);
    write(value, &mut out);
    out
}

/// Appends the beginning of a document that is a map of `length` entries.
///
/// The caller appends the entries in the order of [`write_entries`].
pub fn begin_document(length: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&MAGIC);
    write_head(Header::Map(Some(length)), out);
}

/// Appends a key and the head of its value, a list. The caller appends the `length` items.
pub fn begin_list(key: &str, length: usize, out: &mut Vec<u8>) {
    write_text(key, out);
    write_head(Header::Array(Some(length)), out);
}

/// Appends the entries of a map in their order: by the length of the key, then by the key.
pub fn write_entries(map: &Map<String, Value>, out: &mut Vec<u8>) {
    // The head of a key contains its length, so shorter keys have smaller encodings.
    let mut entries: Vec<(&String, &Value)> = map.iter().collect();
    entries.sort_by(|(a, _), (b, _)| a.len().cmp(&b.len()).then_with(|| a.cmp(b)));
    for (key, value) in entries {
        write_text(key, out);
        write(value, out);
    }
}

/// Appends a value without [`MAGIC`], as a part of a document.
pub fn write(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => write_head(Header::Simple(simple::NULL), out),
        Value::Bool(false) => write_head(Header::Simple(simple::FALSE), out),
        Value::Bool(true) => write_head(Header::Simple(simple::TRUE), out),
        Value::Number(number) => write_head(number_head(number), out),
        Value::String(text) => write_text(text, out),
        Value::Array(items) => {
            write_head(Header::Array(Some(items.len())), out);
            items.iter().for_each(|item| write(item, out));
        }
        Value::Object(map) => {
            write_head(Header::Map(Some(map.len())), out);
            write_entries(map, out);
        }
    }
}

fn write_text(text: &str, out: &mut Vec<u8>) {
    let written: Result<(), WriteError> = Encoder::from(out).bytes(text.as_bytes(), None);
    let Ok(()) = written;
}

fn write_head(head: Header, out: &mut Vec<u8>) {
    let written: Result<(), WriteError> = Encoder::from(out).push(head);
    let Ok(()) = written;
}

fn number_head(number: &Number) -> Header {
    if let Some(unsigned) = number.as_u64() {
        Header::Positive(unsigned)
    } else if let Some(negative) = number.as_i64() {
        // CBOR encodes a negative integer n as -1 - n, which is the bitwise complement of n.
        Header::Negative((!negative).cast_unsigned())
    } else {
        Header::Float(number.as_f64().unwrap_or_default())
    }
}

/// Decodes a document of one item. [`Decoded::duplicates`] is empty, because a duplicate key is an error.
///
/// # Errors
///
/// See [`DecodeError`].
pub fn decode(input: &[u8], limits: Limits) -> Result<Decoded, DecodeError> {
    if input.len() > limits.bytes {
        return Err(DecodeError::TooLarge(limits.bytes));
    }
    let mut reader = Reader { input, rest: input, limits, budget: Budget::new(limits) };
    let head = reader.head()?;
    let value = reader.item(head, Position { depth: 0, name: None, encoding: None })?;
    if !reader.rest.is_empty() {
        return Err(reader.syntax_error("more after the item"));
    }
    Ok(Decoded { value, duplicates: Vec::new() })
}

struct Reader<'a> {
    input: &'a [u8],
    rest: &'a [u8],
    limits: Limits,
    budget: Budget,
}

/// Conversion of the bytes of a byte string to text, such as base64.
type TextEncoding = fn(&[u8]) -> String;

/// Position of an item in the tree.
#[derive(Clone, Copy)]
struct Position<'k> {
    depth: usize,
    /// Key of the item; None for an item of a list.
    name: Option<&'k str>,
    /// Conversion of byte strings, from the innermost tag 21, 22 or 23 around the item.
    encoding: Option<TextEncoding>,
}

impl<'k> Position<'k> {
    /// Returns the position of an item in the list or map at this position.
    fn child(self, name: Option<&'k str>) -> Self {
        Position { depth: self.depth + 1, name, encoding: self.encoding }
    }
}

impl<'a> Reader<'a> {
    fn syntax_error(&self, problem: &str) -> DecodeError {
        DecodeError::Syntax(format!("cbor: {problem} at byte {}", self.input.len() - self.rest.len()))
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let parts = self.rest.split_at_checked(count);
        let (taken, rest) = parts.ok_or_else(|| self.syntax_error("unexpected end"))?;
        self.rest = rest;
        Ok(taken)
    }

    /// Reads the head of the next item: its type with its length or value.
    fn head(&mut self) -> Result<Header, DecodeError> {
        let mut decoder = Decoder::from(self.rest);
        let head = decoder.pull().map_err(|error| match error {
            Error::Io(_) => self.syntax_error("unexpected end"),
            Error::Syntax(_) => self.syntax_error("an invalid head"),
        })?;
        let length = decoder.offset();
        // RFC 8949, section 3.3: simple values below 32 have no second byte.
        if length > 1 && matches!(head, Header::Simple(..32)) {
            return Err(self.syntax_error("an invalid simple value"));
        }
        self.take(length)?;
        Ok(head)
    }

    /// Reads the head of the next item of a list or of the next key of a map; None at the end.
    ///
    /// `length` is the announced length, None for indefinite length; `count` is the number of items so far.
    fn next_head(&mut self, length: Option<usize>, count: usize) -> Result<Option<Header>, DecodeError> {
        if length == Some(count) {
            return Ok(None);
        }
        let head = self.head()?;
        Ok(if length.is_none() && head == Header::Break { None } else { Some(head) })
    }

    /// Reads the item that begins with a head.
    fn item(&mut self, mut head: Header, mut position: Position<'_>) -> Result<Value, DecodeError> {
        if position.depth > self.limits.depth {
            return Err(DecodeError::TooDeep(self.limits.depth));
        }
        while let Header::Tag(tag) = head {
            head = self.head()?;
            match tag {
                tag::DATE_TIME | tag::EPOCH_TIME => return self.time(tag, head),
                tag::UNSIGNED_BIG_INTEGER | tag::NEGATIVE_BIG_INTEGER => {
                    return Err(self.syntax_error("an integer of more than 64 bits"));
                }
                tag::EXPECTED_BASE64URL => position.encoding = Some(|bytes| URL_SAFE_NO_PAD.encode(bytes)),
                tag::EXPECTED_BASE64 => position.encoding = Some(|bytes| STANDARD.encode(bytes)),
                tag::EXPECTED_BASE16 => {
                    position.encoding = Some(|bytes| bytes.iter().map(|byte| format!("{byte:02x}")).collect())
                }
                _ => {}
            }
        }
        match head {
            Header::Array(length) => self.read_array(length, position),
            Header::Map(length) => self.read_map(length, position),
            Header::Bytes(_) | Header::Text(_) => {
                let text = self.text(head, position.encoding)?;
                self.leaf(Value::String(text))
            }
            Header::Positive(number) => self.leaf(Value::from(number)),
            Header::Negative(complement) => match i64::try_from(complement) {
                Ok(complement) => self.leaf(Value::from(!complement)),
                Err(_) => Err(self.syntax_error("an integer below 64 bits")),
            },
            Header::Float(number) => match Number::from_f64(number) {
                Some(number) => self.leaf(Value::Number(number)),
                None => Err(self.syntax_error("a float that is not a finite number")),
            },
            Header::Simple(simple::FALSE) => self.leaf(Value::Bool(false)),
            Header::Simple(simple::TRUE) => self.leaf(Value::Bool(true)),
            Header::Simple(simple::NULL) => self.leaf(Value::Null),
            Header::Simple(_) => Err(self.syntax_error("an unknown simple value")),
            Header::Break | Header::Tag(_) => Err(self.syntax_error("an unexpected break")),
        }
    }

    /// Charges a scalar value to the budget and returns it.
    fn leaf(&mut self, value: Value) -> Result<Value, DecodeError> {
        self.budget.charge(Cost::shallow(&value))?;
        Ok(value)
    }

    /// Reads the byte or text string that begins with a head.
    fn text(&mut self, head: Header, encoding: Option<TextEncoding>) -> Result<String, DecodeError> {
        let bytes = match head {
            Header::Bytes(Some(length)) | Header::Text(Some(length)) => Cow::Borrowed(self.take(length)?),
            Header::Bytes(None) | Header::Text(None) => Cow::Owned(self.chunks(head)?),
            _ => return Err(self.syntax_error("an item that is not a text")),
        };
        match (head, encoding) {
            (Header::Bytes(_), Some(encoding)) => Ok(encoding(&bytes)),
            _ => {
                let text = std::str::from_utf8(&bytes).map(str::to_owned);
                text.map_err(|_| self.syntax_error("a text that is not UTF-8"))
            }
        }
    }

    /// Reads the chunks of a string of indefinite length; all chunks have the type of the string.
    fn chunks(&mut self, string: Header) -> Result<Vec<u8>, DecodeError> {
        let mut bytes = Vec::new();
        loop {
            match (string, self.head()?) {
                (_, Header::Break) => return Ok(bytes),
                (Header::Bytes(_), Header::Bytes(Some(length)))
                | (Header::Text(_), Header::Text(Some(length))) => {
                    bytes.extend_from_slice(self.take(length)?);
                }
                _ => return Err(self.syntax_error("a chunk of a different type")),
            }
        }
    }

    /// Reads the content of tag 0 or 1 and returns it as RFC 3339 text.
    fn time(&mut self, tag: u64, head: Header) -> Result<Value, DecodeError> {
        let text = match head {
            Header::Bytes(_) | Header::Text(_) if tag == tag::DATE_TIME => {
                Some(self.text(head, None)?).filter(|text| time::parse(text).is_some())
            }
            Header::Positive(_) | Header::Negative(_) | Header::Float(_) if tag == tag::EPOCH_TIME => {
                // Years before 0 have a sign, which RFC 3339 does not allow.
                epoch_time(head).map(|time| time.to_string()).filter(|text| !text.starts_with('-'))
            }
            _ => None,
        };
        let text = text.ok_or_else(|| self.syntax_error("a time tag without a valid time"))?;
        self.leaf(Value::String(text))
    }

    fn read_array(&mut self, length: Option<usize>, position: Position<'_>) -> Result<Value, DecodeError> {
        self.budget.charge(Cost::LIST)?;
        // The list reserves no memory for the announced length, which is untrusted.
        let mut items = Vec::new();
        while let Some(head) = self.next_head(length, items.len())? {
            items.push(self.item(head, position.child(None))?);
        }
        Ok(Value::Array(items))
    }

    fn read_map(&mut self, length: Option<usize>, position: Position<'_>) -> Result<Value, DecodeError> {
        self.budget.charge(Cost::OBJECT)?;
        let mut map = Map::new();
        while let Some(head) = self.next_head(length, map.len())? {
            let key = self.text(head, position.encoding)?;
            self.budget.charge(Cost::key(key.len(), map.len()))?;
            if map.contains_key(&key) {
                return Err(self.syntax_error(&format!("a duplicate key {key:?}")));
            }
            let head = self.head()?;
            let value = self.item(head, position.child(Some(&key)))?;
            map.insert(key, value);
        }
        self.budget.charge(Cost::object_end(map.len(), position.name))?;
        Ok(Value::Object(map))
    }
}

/// Converts seconds since 1970; None if the time is out of range.
fn epoch_time(seconds: Header) -> Option<Timestamp> {
    match seconds {
        Header::Positive(seconds) => Timestamp::from_second(i64::try_from(seconds).ok()?).ok(),
        Header::Negative(complement) => Timestamp::from_second(!i64::try_from(complement).ok()?).ok(),
        Header::Float(seconds) => {
            Timestamp::from_duration(SignedDuration::try_from_secs_f64(seconds).ok()?).ok()
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const LIMITS: Limits = Limits { bytes: 1000, depth: 10, ..Limits::BODY };

    fn read(bytes: &[u8]) -> Result<Value, DecodeError> {
        decode(bytes, LIMITS).map(|decoded| decoded.value)
    }

    #[test]
    fn encoded_cbor_decodes_equal() {
        for (value, bytes) in [
            (json!(null), &b"\xf6"[..]),
            (json!(true), b"\xf5"),
            (json!(0), b"\x00"),
            (json!(23), b"\x17"),
            (json!(24), b"\x18\x18"),
            (json!(1000), b"\x19\x03\xe8"),
            (json!(1_000_000), b"\x1a\x00\x0f\x42\x40"),
            (json!(u64::MAX), b"\x1b\xff\xff\xff\xff\xff\xff\xff\xff"),
            (json!(-1), b"\x20"),
            (json!(-1000), b"\x39\x03\xe7"),
            (json!(i64::MIN), b"\x3b\x7f\xff\xff\xff\xff\xff\xff\xff"),
            (json!(1.0), b"\xf9\x3c\x00"),
            (json!(-0.0), b"\xf9\x80\x00"),
            (json!(65_504.0), b"\xf9\x7b\xff"),
            (json!(100_000.0), b"\xfa\x47\xc3\x50\x00"),
            (json!(1e300), b"\xfb\x7e\x37\xe4\x3c\x88\x00\x75\x9c"),
            (json!(1.1), b"\xfb\x3f\xf1\x99\x99\x99\x99\x99\x9a"),
            (json!(""), b"\x40"),
            (json!("\u{fc}"), b"\x42\xc3\xbc"),
            (json!([1, [2, 3]]), b"\x82\x01\x82\x02\x03"),
            (json!({"b": 1, "aa": 2, "a": {}}), b"\xa3\x41a\xa0\x41b\x01\x42aa\x02"),
        ] {
            let written = encode(&value);
            assert_eq!(written, [&MAGIC[..], bytes].concat(), "{value}");
            assert_eq!((read(&written), read(bytes)), (Ok(value.clone()), Ok(value)));
        }
    }

    #[test]
    fn alternative_cbor_encodings_are_decoded() {
        for (bytes, value) in [
            (&b"\x9f\x01\x9f\xff\xff"[..], json!([1, []])),
            (b"\xbf\x41a\x01\x61b\xbf\xff\xff", json!({"a": 1, "b": {}})),
            (b"\x5f\x42\xc3\xbc\x40\x41a\xff", json!("\u{fc}a")),
            (b"\x7f\x61a\x61b\xff", json!("ab")),
            (b"\xa1\x5f\x41a\x41b\xff\x01", json!({"ab": 1})),
            (b"\x81\xd9\xd9\xf7\x01", json!([1])),
            (b"\xd9\x10\x00\xd9\x10\x01\x61a", json!("a")),
            (b"\xd5\x43\xfb\xff\xfe", json!("-__-")),
            (b"\xd5\x41\xfb", json!("-w")),
            (b"\xd6\x41\xfb", json!("+w==")),
            (b"\xd7\x42\x0a\xff", json!("0aff")),
            (b"\xd7\x82\x41\x01\xd6\x42\x00\x01", json!(["01", "AAE="])),
            (b"\xd6\x61a", json!("a")),
            (b"\xc0\x742013-03-21T20:04:00Z", json!("2013-03-21T20:04:00Z")),
            (b"\xc1\x1a\x51\x4b\x67\xb0", json!("2013-03-21T20:04:00Z")),
            (b"\xc1\xfb\x41\xd4\x52\xd9\xec\x20\x00\x00", json!("2013-03-21T20:04:00.5Z")),
            (b"\xc1\x20", json!("1969-12-31T23:59:59Z")),
            (b"\x18\x01", json!(1)),
            (b"\x63abc", json!("abc")),
            (b"\xa1\x61a\x01", json!({"a": 1})),
            (b"\xf9\x3c\x00", json!(1.0)),
            (b"\xf9\xc4\x00", json!(-4.0)),
            (b"\xf9\x00\x01", json!(5.960_464_477_539_063e-8)),
            (b"\xfa\x47\xc3\x50\x00", json!(100_000.0)),
            (b"\xd6\x43\x00\x01\x02", json!("AAEC")),
        ] {
            assert_eq!(read(bytes), Ok(value), "{bytes:?}");
        }
    }

    #[test]
    fn invalid_cbor_is_rejected() {
        for bytes in [
            &b""[..],
            b"\x18",
            b"\x43ab",
            b"\x82\x01",
            b"\x9b\xff\xff\xff\xff\xff\xff\xff\xff",
            b"\xbb\xff\xff\xff\xff\xff\xff\xff\xff",
            b"\x5b\xff\xff\xff\xff\xff\xff\xff\xff",
            b"\x01\x02",
            b"\x9f\x01",
            b"\x5f\x41a",
            b"\x5f\x61a\xff",
            b"\x7f\x41a\xff",
            b"\x5f\x5f\x41a\xff\xff",
            b"\xbf\x41a\xff",
            b"\x82\x01\xff",
            b"\x1f",
            b"\xf8\x14",
            b"\xc2\x41\x01",
            b"\xc1\x61a",
            b"\xc0\x01",
            b"\xc1\x3b\x00\xff\xff\xff\xff\xff\xff\xff",
            b"\x1c",
            b"\xa1\x01\x01",
            b"\x42\xff\xfe",
            b"\xc0\x61a",
            b"\xf7",
            b"\xf8\xff",
            b"\xf9\x7c\x00",
            b"\xf9\x7e\x00",
            b"\x3b\xff\xff\xff\xff\xff\xff\xff\xff",
            b"\xff",
        ] {
            assert!(matches!(read(bytes), Err(DecodeError::Syntax(_))), "{bytes:?}");
        }
        assert_eq!(read(&[0; 1001]), Err(DecodeError::TooLarge(1000)));
        assert_eq!(read(&[0x81; 20]), Err(DecodeError::TooDeep(10)));
    }

    /// The decoder must not recurse into a chain of tags, because the depth limit does not count tags.
    #[test]
    fn long_chain_of_cbor_tags_decodes_to_its_content() {
        let limits = Limits { depth: 1, ..Limits::BODY };
        let chain = [&[0xd9, 0x10, 0x00].repeat(1_000_000)[..], &[0x01]].concat();
        assert_eq!(decode(&chain, limits).map(|decoded| decoded.value), Ok(json!(1)));
    }

    #[test]
    fn duplicate_cbor_key_is_rejected() {
        let duplicate = decode(b"\xa1\x41a\x81\xa2\x41b\x01\x61b\x02", LIMITS);
        let message = "cbor: a duplicate key \"b\" at byte 10".to_owned();
        assert_eq!(duplicate.map(drop), Err(DecodeError::Syntax(message)));
    }
}
