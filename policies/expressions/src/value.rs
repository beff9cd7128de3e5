//! CEL values: borrowed from the data, or shared if an expression creates them.
//!
//! # Contract
//! - [`Value::of`] decodes JSON according to its type: a `number` is a double even if written as an integer.
//! - A string of format `byte` is bytes. Lists and objects are not copied; evaluation decodes elements on
//!   access.
//! - Equality works across number types (`1 == 1.0`). For two lists it follows the list type of the left one.

use std::any::Any;
use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use serde_json::{Map as JsonMap, Value as Json};

use crate::error::EvalError;
use crate::list::List;
use crate::map::Map;
use crate::numbers::{double_to_int, int_to_double, to_integer_if_integral, uint_to_double};
use crate::time::{self, Timestamp};
use crate::types::Type;

/// A value during evaluation. `'a` is the lifetime of the data and of the program.
#[derive(Clone)]
pub enum Value<'a> {
    /// `null`
    Null,
    /// A boolean.
    Bool(bool),
    /// A signed integer.
    Int(i64),
    /// An unsigned integer.
    Uint(u64),
    /// A floating-point number.
    Double(f64),
    /// A string.
    String(Text<'a>),
    /// Bytes.
    Bytes(Arc<[u8]>),
    /// A timestamp.
    Timestamp(Timestamp),
    /// A duration in nanoseconds.
    Duration(i64),
    /// A list.
    List(List<'a>),
    /// A map or an object.
    Map(Map<'a>),
    /// An optional value.
    Optional(Option<Arc<Value<'a>>>),
    /// A type, by its name.
    Type(Text<'a>),
    /// A library value.
    Opaque(Arc<dyn Opaque>),
}

/// A borrowed or shared string.
#[derive(Clone)]
pub enum Text<'a> {
    /// A string of the data or of the program.
    Borrowed(&'a str),
    /// A string that an expression created.
    Shared(Arc<str>),
}

impl Text<'_> {
    /// The text.
    pub fn as_str(&self) -> &str {
        match self {
            Text::Borrowed(s) => s,
            Text::Shared(s) => s,
        }
    }
}

/// A value of a library type.
pub trait Opaque: Any + Send + Sync {
    /// Name of the type.
    fn type_name(&self) -> &'static str;
    /// Whether the value equals another library value.
    fn equals(&self, other: &dyn Opaque) -> bool;
    /// Size for [`Value::size`]; 1 for values without a size.
    fn size(&self) -> u64 {
        1
    }
    /// Bytes of the text in the value that its functions read.
    fn text_bytes(&self) -> u64 {
        0
    }
    /// Text of the value, as the conversion to a string gives where one exists.
    fn text(&self) -> String {
        String::new()
    }
}

impl dyn Opaque {
    /// Downcasts to the library type `T`.
    pub(crate) fn downcast<T: 'static>(&self) -> Option<&T> {
        let value: &dyn Any = self;
        value.downcast_ref()
    }
}

impl<'a> Value<'a> {
    /// Creates a string.
    pub fn text(text: impl AsRef<str>) -> Value<'a> {
        Value::String(Text::Shared(Arc::from(text.as_ref())))
    }

    /// Creates a list.
    pub fn list(items: Vec<Value<'a>>) -> Value<'a> {
        Value::List(List::from_values(items))
    }

    /// Creates a library value.
    pub fn opaque(value: impl Opaque) -> Value<'a> {
        Value::Opaque(Arc::new(value))
    }

    /// Downcasts to the library type `T`.
    pub fn downcast<T: 'static>(&self) -> Option<&T> {
        match self {
            Value::Opaque(o) => o.downcast(),
            _ => None,
        }
    }

    /// The text of a string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(s) => Some(s.as_str()),
            _ => None,
        }
    }

    /// Decodes JSON as a value of type `ty`.
    ///
    /// # Errors
    /// The JSON does not conform to the type, for example text in a timestamp field.
    pub fn of(json: &'a Json, ty: &'a Type) -> Result<Value<'a>, EvalError> {
        Ok(match (json, ty) {
            (Json::Null, _) => Value::Null,
            (Json::Bool(b), _) => Value::Bool(*b),
            (Json::Number(n), Type::Double) => Value::Double(n.as_f64().unwrap_or(f64::NAN)),
            (Json::Number(n), Type::Int) => match n.as_i64() {
                Some(i) => Value::Int(i),
                // JSON may contain 3.0 for an integer field.
                None => Value::Int(double_to_int(n.as_f64().unwrap_or(f64::NAN))?),
            },
            (Json::Number(n), _) => match n.as_i64() {
                Some(i) => Value::Int(i),
                None => Value::Double(n.as_f64().unwrap_or(f64::NAN)),
            },
            (Json::String(s), Type::Bytes) => {
                use base64::Engine as _;
                let bytes = base64::engine::general_purpose::STANDARD
                    .decode(s)
                    .map_err(|_| EvalError::failed("bytes value is not base64"))?;
                Value::Bytes(bytes.into())
            }
            (Json::String(s), Type::Timestamp) => Value::Timestamp(time::parse_field(s)?),
            (Json::String(s), Type::Duration) => Value::Duration(time::parse_duration(s)?),
            (Json::String(s), _) => Value::String(Text::Borrowed(s)),
            (Json::Array(items), ty) => Value::List(List::json(items, ty)),
            (Json::Object(fields), ty) => Value::Map(Map::json(fields, ty)),
        })
    }

    /// A data object as a value of type `ty`.
    pub fn object(fields: &'a JsonMap<String, Json>, ty: &'a Type) -> Value<'a> {
        Value::Map(Map::json(fields, ty))
    }

    /// Type name for `type(x)`.
    pub fn type_name(&self) -> Cow<'_, str> {
        Cow::Borrowed(match self {
            Value::Null => "null_type",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Uint(_) => "uint",
            Value::Double(_) => "double",
            Value::String(_) => "string",
            Value::Bytes(_) => "bytes",
            Value::Timestamp(_) => "google.protobuf.Timestamp",
            Value::Duration(_) => "google.protobuf.Duration",
            Value::List(_) => "list",
            Value::Map(map) => map.type_name(),
            Value::Optional(_) => "optional_type",
            Value::Type(_) => "type",
            Value::Opaque(o) => o.type_name(),
        })
    }

    /// Size for cost computation: characters, bytes or elements; 1 for other values.
    pub fn size(&self) -> u64 {
        match self {
            Value::String(s) => char_count(s.as_str()),
            Value::Bytes(b) => b.len() as u64,
            Value::List(l) => l.len() as u64,
            Value::Map(m) => m.len() as u64,
            Value::Optional(Some(inner)) => inner.size(),
            Value::Opaque(o) => o.size(),
            _ => 1,
        }
    }

    /// Number of nested values; a shared part counts each time that it occurs.
    ///
    /// A list or object of the data counts only its direct elements.
    pub(crate) fn weight(&self) -> u64 {
        match self {
            Value::List(list) => list.weight(),
            Value::Map(map) => map.weight(),
            Value::Optional(Some(inner)) => inner.weight(),
            _ => 1,
        }
    }

    /// Number of all nested values, including those of the data. A text, a key and bytes count one more for
    /// each 32 bytes.
    ///
    /// The count stops at `max`.
    pub(crate) fn contents(&self, max: u64) -> u64 {
        match self {
            Value::List(list) => list.contents(max),
            Value::Map(map) => map.contents(max),
            Value::Optional(Some(inner)) => inner.contents(max),
            Value::String(text) => 1 + text.as_str().len() as u64 / 32,
            Value::Bytes(bytes) => 1 + bytes.len() as u64 / 32,
            _ => 1,
        }
    }

    /// Bytes of a string, or of the text in a library value.
    pub(crate) fn text_bytes(&self) -> u64 {
        match self {
            Value::String(text) => text.as_str().len() as u64,
            Value::Opaque(value) => value.text_bytes(),
            _ => 0,
        }
    }

    /// Canonical bytes. The bytes of two scalars are equal exactly if the scalars are equal.
    ///
    /// The bytes of a list depend on the order of its elements, whatever its list type. The bytes of an
    /// object depend on the number of fields in its JSON, including null fields.
    /// `None` for NaN, which equals no value, and for library values.
    pub(crate) fn canonical(&self) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        self.write_canonical(&mut out).map(|()| out)
    }

    fn write_canonical(&self, out: &mut Vec<u8>) -> Option<()> {
        let mut append = |tag: u8, bytes: &[u8]| {
            out.push(tag);
            out.extend_from_slice(&(bytes.len() as u64).to_be_bytes());
            out.extend_from_slice(bytes);
        };
        match self {
            Value::Null => append(b'0', &[]),
            Value::Bool(b) => append(b'?', &[u8::from(*b)]),
            Value::Int(i) => append(b'i', &i128::from(*i).to_be_bytes()),
            Value::Uint(u) => append(b'i', &i128::from(*u).to_be_bytes()),
            Value::Double(d) if d.is_nan() => return None,
            Value::Double(d) => match to_integer_if_integral(*d) {
                Some(whole) => append(b'i', &whole.to_be_bytes()),
                None => append(b'd', &d.to_bits().to_be_bytes()),
            },
            Value::String(s) => append(b's', s.as_str().as_bytes()),
            Value::Bytes(b) => append(b'b', b),
            Value::Timestamp(t) => append(b't', t.canonical().as_bytes()),
            Value::Duration(d) => append(b'u', &d.to_be_bytes()),
            Value::Type(t) => append(b'T', t.as_str().as_bytes()),
            Value::Optional(None) => append(b'o', &[]),
            Value::Optional(Some(inner)) => append(b'O', &inner.canonical()?),
            Value::List(list) => {
                append(b'[', &(list.len() as u64).to_be_bytes());
                for item in list.iter() {
                    item.ok()?.write_canonical(out)?;
                }
            }
            Value::Map(map) => {
                append(b'{', &(map.len() as u64).to_be_bytes());
                let mut entries = Vec::with_capacity(map.len());
                for (key, value) in map.entries().ok()? {
                    entries.push((key.canonical()?, value.canonical()?));
                }
                entries.sort();
                entries.iter().for_each(|(key, value)| {
                    out.extend_from_slice(key);
                    out.extend_from_slice(value);
                });
            }
            Value::Opaque(_) => return None,
        }
        Some(())
    }

    /// Whether two values are equal. Values of different types are unequal, except numbers.
    pub fn equals(&self, other: &Value<'a>) -> bool {
        match (self, other) {
            (Value::Null, Value::Null) => true,
            (Value::Bool(a), Value::Bool(b)) => a == b,
            (Value::String(a), Value::String(b)) => a.as_str() == b.as_str(),
            (Value::Type(a), Value::Type(b)) => a.as_str() == b.as_str(),
            (Value::Bytes(a), Value::Bytes(b)) => a == b,
            (Value::Timestamp(a), Value::Timestamp(b)) => a == b,
            (Value::Duration(a), Value::Duration(b)) => a == b,
            (Value::List(a), Value::List(b)) => a.equals(b),
            (Value::Map(a), Value::Map(b)) => a.equals(b),
            (Value::Optional(a), Value::Optional(b)) => match (a, b) {
                (None, None) => true,
                (Some(a), Some(b)) => a.equals(b),
                _ => false,
            },
            (Value::Opaque(a), Value::Opaque(b)) => a.equals(b.as_ref()),
            _ => self.compare_numbers(other) == Some(Some(Ordering::Equal)),
        }
    }

    /// Compares two numbers of any types; `None` if one is not a number, `Some(None)` for NaN.
    fn compare_numbers(&self, other: &Value<'_>) -> Option<Option<Ordering>> {
        Some(match (self, other) {
            (Value::Int(a), Value::Int(b)) => Some(a.cmp(b)),
            (Value::Uint(a), Value::Uint(b)) => Some(a.cmp(b)),
            (Value::Double(a), Value::Double(b)) => a.partial_cmp(b),
            (Value::Int(a), Value::Uint(b)) => Some(i128::from(*a).cmp(&i128::from(*b))),
            (Value::Uint(a), Value::Int(b)) => Some(i128::from(*a).cmp(&i128::from(*b))),
            // As in cel-go, integers are compared with floating-point numbers after a conversion that rounds.
            (Value::Int(a), Value::Double(b)) => int_to_double(*a).partial_cmp(b),
            (Value::Uint(a), Value::Double(b)) => uint_to_double(*a).partial_cmp(b),
            (Value::Double(a), Value::Int(b)) => a.partial_cmp(&int_to_double(*b)),
            (Value::Double(a), Value::Uint(b)) => a.partial_cmp(&uint_to_double(*b)),
            _ => return None,
        })
    }

    /// Compares two values.
    ///
    /// # Errors
    /// The types have no order, or a value is NaN.
    pub fn compare(&self, other: &Value<'a>) -> Result<Ordering, EvalError> {
        Ok(match (self, other) {
            (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
            (Value::String(a), Value::String(b)) => a.as_str().cmp(b.as_str()),
            (Value::Bytes(a), Value::Bytes(b)) => a.cmp(b),
            (Value::Timestamp(a), Value::Timestamp(b)) => a.cmp(b),
            (Value::Duration(a), Value::Duration(b)) => a.cmp(b),
            _ => {
                let order = self.compare_numbers(other).ok_or(EvalError::NoOverload)?;
                order.ok_or_else(|| EvalError::failed("NaN values cannot be ordered"))?
            }
        })
    }

    /// Whether the value is a number.
    pub(crate) fn is_number(&self) -> bool {
        matches!(self, Value::Int(_) | Value::Uint(_) | Value::Double(_))
    }

    /// Whether the value is a timestamp or a duration.
    pub(crate) fn is_time(&self) -> bool {
        matches!(self, Value::Timestamp(_) | Value::Duration(_))
    }

    /// Whether the operator `+` accepts values of the type, apart from lists.
    pub(crate) fn is_summable(&self) -> bool {
        self.is_number() || self.is_time() || matches!(self, Value::String(_) | Value::Bytes(_))
    }

    /// Whether values of the type have an order.
    pub(crate) fn is_ordered(&self) -> bool {
        self.is_summable() || matches!(self, Value::Bool(_))
    }

    /// Whether the value is the zero value of its type.
    pub fn is_zero(&self) -> bool {
        match self {
            Value::Null | Value::Bool(false) | Value::Int(0) | Value::Uint(0) | Value::Duration(0) => true,
            Value::Double(d) => *d == 0.0,
            Value::String(s) => s.as_str().is_empty(),
            Value::Bytes(b) => b.is_empty(),
            Value::List(l) => l.is_empty(),
            Value::Map(m) => m.is_empty(),
            Value::Optional(inner) => inner.is_none(),
            _ => false,
        }
    }
}

/// Number of characters; for ASCII text the number of bytes.
pub(crate) fn char_count(s: &str) -> u64 {
    if s.is_ascii() { s.len() as u64 } else { s.chars().count() as u64 }
}

impl fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Null => f.write_str("null"),
            Value::Bool(b) => write!(f, "{b}"),
            Value::Int(i) => write!(f, "{i}"),
            Value::Uint(u) => write!(f, "{u}u"),
            Value::Double(d) => write!(f, "{d:?}"),
            Value::String(s) => write!(f, "{:?}", s.as_str()),
            Value::Bytes(b) => write!(f, "b{:?}", String::from_utf8_lossy(b)),
            Value::Timestamp(t) => write!(f, "timestamp({t})"),
            Value::Duration(d) => write!(f, "duration({})", time::format_duration(*d)),
            Value::List(l) => f.debug_list().entries(l.iter().filter_map(Result::ok)).finish(),
            Value::Map(m) => f.debug_map().entries(m.entries().into_iter().flatten()).finish(),
            Value::Optional(None) => f.write_str("optional.none()"),
            Value::Optional(Some(v)) => write!(f, "optional.of({v:?})"),
            Value::Type(t) => f.write_str(t.as_str()),
            Value::Opaque(o) => write!(f, "<{}>", o.type_name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_compared_with_doubles_as_doubles() {
        let order = |a: Value<'static>, b: Value<'static>| a.compare_numbers(&b);
        let cases = [
            (Value::Int(1), Value::Double(1.5), Some(Ordering::Less)),
            (Value::Int(-1), Value::Double(-1.5), Some(Ordering::Greater)),
            (Value::Int(i64::MAX), Value::Double(9.3e18), Some(Ordering::Less)),
            (Value::Int(i64::MAX), Value::Double(9_223_372_036_854_775_808.0), Some(Ordering::Equal)),
            (
                Value::Int(9_007_199_254_740_993),
                Value::Double(9_007_199_254_740_992.0),
                Some(Ordering::Equal),
            ),
            (Value::Uint(u64::MAX), Value::Int(-1), Some(Ordering::Greater)),
            (Value::Double(2.0), Value::Uint(2), Some(Ordering::Equal)),
            (Value::Double(f64::NAN), Value::Int(0), None),
            (Value::Double(f64::NEG_INFINITY), Value::Int(i64::MIN), Some(Ordering::Less)),
        ];
        for (a, b, expected) in cases {
            assert_eq!(order(a.clone(), b.clone()), Some(expected), "{a:?} {b:?}");
        }
        assert_eq!(order(Value::Int(1), Value::Bool(true)), None);
    }
}
