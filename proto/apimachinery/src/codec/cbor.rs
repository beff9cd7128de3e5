//! CBOR (RFC 8949), alpha: encodes like the reference and decodes with the restrictions of the reference.
//!
//! # Contract
//!
//! Encoding produces one item with the tag for self-described CBOR. Texts and map keys are byte strings, and
//! keys are sorted by their encoding. Numbers are the shortest integer or a 64-bit float. Decoding accepts
//! texts as byte or text strings and floats of any width. Items of indefinite length and trailing input are
//! errors.
//!
//! # Reference
//!
//! A byte string with the tag "expected conversion to base64" decodes to the base64 text that JSON has in its
//! place. Decoding rejects all other tags, simple values other than false, true and null, and keys that are
//! not texts.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Number, Value};

use super::{Budget, Cost, DecodeError, Decoded, Limits};

/// Encoded tag 55799, with which every document begins.
pub const MAGIC: [u8; 3] = [0xd9, 0xd9, 0xf7];

const SELF_DESCRIBED: u64 = 55_799;
const EXPECTED_BASE64: u64 = 22;

/// Maximum number of reported duplicate keys.
const MAX_DUPLICATES: usize = 100;

/// Major types.
mod major {
    pub(super) const UNSIGNED: u8 = 0;
    pub(super) const NEGATIVE: u8 = 1;
    pub(super) const BYTES: u8 = 2;
    pub(super) const TEXT: u8 = 3;
    pub(super) const ARRAY: u8 = 4;
    pub(super) const MAP: u8 = 5;
    pub(super) const TAG: u8 = 6;
}

/// Encodes a value with the tag.
pub fn encode(value: &Value) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    out.extend_from_slice(&MAGIC);
    write(value, &mut out);
    out
}

/// Appends the beginning of a document that is a map of `length` entries.
///
/// The entries follow in the order of [`write_entries`].
pub fn begin_document(length: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&MAGIC);
    head(major::MAP, length as u64, out);
}

/// Appends a key whose value is a list of `length` items; the items follow.
pub fn begin_list(key: &str, length: usize, out: &mut Vec<u8>) {
    write_text(key, out);
    head(major::ARRAY, length as u64, out);
}

/// Appends the entries of a map in their order: by the length of the key, then by the key.
pub fn write_entries(map: &Map<String, Value>, out: &mut Vec<u8>) {
    for (key, value) in entries(map) {
        write_text(key, out);
        write(value, out);
    }
}

/// Entries in the order of their encoded keys: shorter keys have smaller heads.
fn entries(map: &Map<String, Value>) -> Vec<(&String, &Value)> {
    let mut entries: Vec<(&String, &Value)> = map.iter().collect();
    entries.sort_by(|(a, _), (b, _)| a.len().cmp(&b.len()).then_with(|| a.cmp(b)));
    entries
}

/// Appends a value without the tag, as part of a document.
pub fn write(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.push(0xf6),
        Value::Bool(false) => out.push(0xf4),
        Value::Bool(true) => out.push(0xf5),
        Value::Number(number) => write_number(number, out),
        Value::String(text) => write_text(text, out),
        Value::Array(items) => {
            head(major::ARRAY, items.len() as u64, out);
            items.iter().for_each(|item| write(item, out));
        }
        Value::Object(map) => {
            head(major::MAP, map.len() as u64, out);
            write_entries(map, out);
        }
    }
}

fn write_text(text: &str, out: &mut Vec<u8>) {
    head(major::BYTES, text.len() as u64, out);
    out.extend_from_slice(text.as_bytes());
}

fn write_number(number: &Number, out: &mut Vec<u8>) {
    if let Some(unsigned) = number.as_u64() {
        head(major::UNSIGNED, unsigned, out);
    } else if let Some(negative) = number.as_i64() {
        // -1 - n: the bitwise complement in two's complement.
        head(major::NEGATIVE, (!negative).cast_unsigned(), out);
    } else {
        out.push(0xfb);
        out.extend_from_slice(&number.as_f64().unwrap_or_default().to_be_bytes());
    }
}

/// Head of an item: its type and its number, in as few bytes as possible.
fn head(major: u8, argument: u64, out: &mut Vec<u8>) {
    let major = major << 5;
    let bytes = argument.to_be_bytes();
    let [.., d, c, b, a] = bytes;
    match argument {
        0..=23 => out.push(major | a),
        24..=0xff => out.extend_from_slice(&[major | 24, a]),
        0x100..=0xffff => out.extend_from_slice(&[major | 25, b, a]),
        0x1_0000..=0xffff_ffff => out.extend_from_slice(&[major | 26, d, c, b, a]),
        _ => {
            out.push(major | 27);
            out.extend_from_slice(&bytes);
        }
    }
}

/// Decodes one item.
///
/// # Errors
///
/// See [`DecodeError`].
pub fn decode(input: &[u8], limits: Limits) -> Result<Decoded, DecodeError> {
    if input.len() > limits.bytes {
        return Err(DecodeError::TooLarge(limits.bytes));
    }
    let budget = Budget::new(limits);
    let mut reader = Reader { input, at: 0, limits, budget, path: Vec::new(), duplicates: Vec::new() };
    let value = reader.value(0)?;
    if reader.at < input.len() {
        return Err(reader.syntax_error("more after the item"));
    }
    Ok(Decoded { value, duplicates: reader.duplicates })
}

struct Reader<'a> {
    input: &'a [u8],
    at: usize,
    limits: Limits,
    budget: Budget,
    path: Vec<Step>,
    duplicates: Vec<String>,
}

enum Step {
    Key(String),
    Index(usize),
}

impl<'a> Reader<'a> {
    fn syntax_error(&self, what: &str) -> DecodeError {
        DecodeError::Syntax(format!("cbor: {what} at byte {}", self.at))
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let taken = self.at.checked_add(count).and_then(|end| self.input.get(self.at..end));
        match taken {
            Some(bytes) => {
                self.at += count;
                Ok(bytes)
            }
            None => Err(self.syntax_error("unexpected end")),
        }
    }

    fn number<const N: usize>(&mut self) -> Result<u64, DecodeError> {
        Ok(self.take(N)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    /// Reads the head of the next item: major type, short count and number.
    fn head(&mut self) -> Result<(u8, u8, u64), DecodeError> {
        let first = self.take(1)?.first().copied().unwrap_or_default();
        let (major, short) = (first >> 5, first & 0x1f);
        let argument = match short {
            0..=23 => u64::from(short),
            24 => self.number::<1>()?,
            25 => self.number::<2>()?,
            26 => self.number::<4>()?,
            27 => self.number::<8>()?,
            31 => return Err(self.syntax_error("an item of indefinite length")),
            _ => return Err(self.syntax_error("a reserved head")),
        };
        Ok((major, short, argument))
    }

    fn value(&mut self, depth: usize) -> Result<Value, DecodeError> {
        if depth > self.limits.depth {
            return Err(DecodeError::TooDeep(self.limits.depth));
        }
        let (major, short, argument) = self.head()?;
        match major {
            major::UNSIGNED => self.leaf(Value::from(argument)),
            major::NEGATIVE => match i64::try_from(argument) {
                Ok(argument) => self.leaf(Value::from(!argument)),
                Err(_) => Err(self.syntax_error("an integer below 64 bits")),
            },
            major::BYTES | major::TEXT => {
                let text = self.text(argument)?;
                self.leaf(Value::String(text))
            }
            major::ARRAY => {
                self.budget.charge(Cost::LIST)?;
                self.array(argument, depth)
            }
            major::MAP => {
                self.budget.charge(Cost::OBJECT)?;
                self.map(argument, depth)
            }
            major::TAG => self.tagged(argument, depth),
            _ => {
                let value = self.simple(short, argument)?;
                self.leaf(value)
            }
        }
    }

    /// Charges a scalar value.
    fn leaf(&mut self, value: Value) -> Result<Value, DecodeError> {
        self.budget.charge(Cost::shallow(&value))?;
        Ok(value)
    }

    fn text(&mut self, length: u64) -> Result<String, DecodeError> {
        let bytes = self.bytes(length)?;
        let text = std::str::from_utf8(bytes).map_err(|_| self.syntax_error("a text that is not UTF-8"))?;
        Ok(text.to_owned())
    }

    fn bytes(&mut self, length: u64) -> Result<&'a [u8], DecodeError> {
        let length = usize::try_from(length).map_err(|_| self.syntax_error("unexpected end"))?;
        self.take(length)
    }

    fn array(&mut self, length: u64, depth: usize) -> Result<Value, DecodeError> {
        // No reservation: the announced length is untrusted, and each item takes at least one byte.
        let mut items = Vec::new();
        for index in 0..length {
            self.path.push(Step::Index(usize::try_from(index).unwrap_or(usize::MAX)));
            items.push(self.value(depth + 1)?);
            self.path.pop();
        }
        Ok(Value::Array(items))
    }

    fn map(&mut self, length: u64, depth: usize) -> Result<Value, DecodeError> {
        let mut map = Map::new();
        for _ in 0..length {
            let (major, _, argument) = self.head()?;
            if !matches!(major, major::BYTES | major::TEXT) {
                return Err(self.syntax_error("a key that is no text"));
            }
            let key = self.text(argument)?;
            self.budget.charge(Cost::key(key.len(), map.len()))?;
            self.path.push(Step::Key(key.clone()));
            if map.contains_key(&key) {
                self.duplicate();
            }
            let value = self.value(depth + 1)?;
            self.path.pop();
            map.insert(key, value);
        }
        let name = match self.path.last() {
            Some(Step::Key(name)) => Some(name.as_str()),
            _ => None,
        };
        self.budget.charge(Cost::object_end(map.len(), name))?;
        Ok(Value::Object(map))
    }

    fn duplicate(&mut self) {
        let mut path = String::new();
        for step in &self.path {
            match step {
                Step::Key(key) if path.is_empty() => path.push_str(key),
                Step::Key(key) => path.extend([".", key]),
                Step::Index(index) => path.push_str(&format!("[{index}]")),
            }
        }
        if self.duplicates.len() < MAX_DUPLICATES && !self.duplicates.contains(&path) {
            self.duplicates.push(path);
        }
    }

    fn tagged(&mut self, tag: u64, depth: usize) -> Result<Value, DecodeError> {
        match tag {
            SELF_DESCRIBED if self.at == MAGIC.len() => self.value(depth),
            EXPECTED_BASE64 => match self.head()? {
                (major::BYTES, _, length) => {
                    let text = STANDARD.encode(self.bytes(length)?);
                    self.leaf(Value::String(text))
                }
                _ => Err(self.syntax_error("a tag of bytes on something else")),
            },
            _ => Err(self.syntax_error("a tag that is not known")),
        }
    }

    fn simple(&mut self, short: u8, argument: u64) -> Result<Value, DecodeError> {
        let float = match (short, argument) {
            (20, _) => return Ok(Value::Bool(false)),
            (21, _) => return Ok(Value::Bool(true)),
            (22, _) => return Ok(Value::Null),
            (25, bits) => half(bits),
            (26, bits) => f64::from(f32::from_bits(u32::try_from(bits).unwrap_or_default())),
            (27, bits) => f64::from_bits(bits),
            _ => return Err(self.syntax_error("a simple value that is not known")),
        };
        Number::from_f64(float)
            .map(Value::Number)
            .ok_or_else(|| self.syntax_error("a float that is no number"))
    }
}

/// Converts a 16-bit float.
fn half(bits: u64) -> f64 {
    let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
    let exponent = i32::try_from(bits >> 10 & 0x1f).unwrap_or_default();
    let fraction = f64::from(u16::try_from(bits & 0x3ff).unwrap_or_default());
    sign * match exponent {
        0 => fraction * 2_f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (fraction + 1024.0) * 2_f64.powi(exponent - 25),
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
            (&b"\x18\x01"[..], json!(1)),
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
            b"\x9f\xff",
            b"\x5f\x41a\xff",
            b"\x1c",
            b"\xa1\x01\x01",
            b"\x42\xff\xfe",
            b"\xc0\x61a",
            b"\xd6\x61a",
            b"\x81\xd9\xd9\xf7\x01",
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

    #[test]
    fn duplicate_cbor_keys_are_reported() {
        let decoded = decode(b"\xa2\x41a\x81\xa3\x41b\x01\x41b\x02\x41b\x03\x41a\x05", LIMITS).unwrap();
        assert_eq!(decoded.value, json!({"a": 5}));
        assert_eq!(decoded.duplicates, ["a[0].b", "a"]);
    }
}
