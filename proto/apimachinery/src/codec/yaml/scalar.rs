//! Resolution of YAML scalars: YAML 1.1, like go-yaml v2.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Number, Value};

use crate::codec::json::{short_float_text, whole_number};

/// Namespace of the tags `!!str`, `!!int`, ...
pub(super) const CORE: &str = "tag:yaml.org,2002:";

/// Resolved scalar. Timestamps are strings.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Scalar {
    /// `null`, `~`, or empty.
    Null,
    /// `true`, `y`, `on` and other words for a boolean.
    Bool(bool),
    /// Integer that fits 64 signed bits.
    Integer(i64),
    /// Any other number; may be NaN or infinite.
    Float(f64),
    /// Text.
    Text(String),
}

/// Scalar that has no value in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ScalarError {
    #[error("null cannot be a key")]
    NullKey,
    #[error("NaN and infinity are no JSON numbers")]
    NotFinite,
    #[error("a !!binary value is not base64")]
    Base64,
    #[error("cannot read the value as a !!{0}")]
    Tag(&'static str),
}

impl Scalar {
    /// Converts to a value of the tree.
    pub(super) fn into_value(self) -> Result<Value, ScalarError> {
        Ok(match self {
            Scalar::Null => Value::Null,
            Scalar::Bool(b) => Value::Bool(b),
            Scalar::Integer(i) => Value::Number(i.into()),
            Scalar::Float(f) => Value::Number(number(f)?),
            Scalar::Text(s) => Value::String(s),
        })
    }

    /// Converts to a key of a mapping.
    pub(super) fn into_key(self) -> Result<String, ScalarError> {
        match self {
            Scalar::Null => Err(ScalarError::NullKey),
            Scalar::Bool(b) => Ok(b.to_string()),
            Scalar::Integer(i) => Ok(i.to_string()),
            Scalar::Float(f) => Ok(float_key(f)),
            Scalar::Text(s) => Ok(s),
        }
    }
}

/// Converts a float to a number of the tree: an integer if its text is that of an integer.
fn number(value: f64) -> Result<Number, ScalarError> {
    if let Some(integer) = whole_number(value) {
        return Ok(integer.into());
    }
    Number::from_f64(value).ok_or(ScalarError::NotFinite)
}

/// Formats a float key like Go's `%g` in single precision.
fn float_key(value: f64) -> String {
    if value.is_nan() {
        return ".nan".to_owned();
    }
    #[expect(clippy::cast_possible_truncation, reason = "kube-apiserver rounds keys to single precision")]
    let single = value as f32;
    if single.is_infinite() {
        return if single > 0.0 { ".inf" } else { "-.inf" }.to_owned();
    }
    short_float_text(single)
}

/// Resolves a plain scalar without a tag.
pub(super) fn resolve(text: &str) -> Scalar {
    let Some(first) = text.bytes().next() else { return Scalar::Null };
    match first {
        b'y' | b'Y' | b'n' | b'N' | b't' | b'T' | b'f' | b'F' | b'o' | b'O' | b'~' => bool_or_null(text),
        b'.' => special_float(text).or_else(|| parse_finite(text).map(Scalar::Float)),
        b'+' | b'-' | b'0'..=b'9' => special_float(text).or_else(|| numeral(&text.replace('_', ""))),
        _ => None,
    }
    .unwrap_or_else(|| Scalar::Text(text.to_owned()))
}

/// Resolves a scalar with a tag. Tags of other namespaces produce strings.
pub(super) fn resolve_tagged(name: Option<&str>, text: &str) -> Result<Scalar, ScalarError> {
    let scalar = resolve(text);
    match (name, scalar) {
        (Some("binary"), _) => {
            let packed: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
            let bytes = STANDARD.decode(packed.as_bytes()).map_err(|_| ScalarError::Base64)?;
            Ok(Scalar::Text(String::from_utf8_lossy(&bytes).into_owned()))
        }
        (Some("null"), Scalar::Null) => Ok(Scalar::Null),
        (Some("bool"), scalar @ Scalar::Bool(_))
        | (Some("int"), scalar @ Scalar::Integer(_))
        | (Some("float"), scalar @ Scalar::Float(_)) => Ok(scalar),
        (Some("float"), Scalar::Integer(i)) => Ok(Scalar::Float(i as f64)),
        (Some("null"), _) => Err(ScalarError::Tag("null")),
        (Some("bool"), _) => Err(ScalarError::Tag("bool")),
        (Some("int"), _) => Err(ScalarError::Tag("int")),
        (Some("float"), _) => Err(ScalarError::Tag("float")),
        _ => Ok(Scalar::Text(text.to_owned())),
    }
}

/// Parses booleans and null.
fn bool_or_null(text: &str) -> Option<Scalar> {
    Some(match text {
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            Scalar::Bool(true)
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            Scalar::Bool(false)
        }
        "~" | "null" | "Null" | "NULL" => Scalar::Null,
        _ => return None,
    })
}

/// Parses `.nan` and the infinities.
fn special_float(text: &str) -> Option<Scalar> {
    Some(Scalar::Float(match text {
        ".nan" | ".NaN" | ".NAN" => f64::NAN,
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => f64::INFINITY,
        "-.inf" | "-.Inf" | "-.INF" => f64::NEG_INFINITY,
        _ => return None,
    }))
}

/// Parses an integer in any base, or a decimal float; underscores are already removed.
fn numeral(text: &str) -> Option<Scalar> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, text.get(1..)?),
        b'+' => (false, text.get(1..)?),
        _ => (false, text),
    };
    if let Some(magnitude) = magnitude(digits) {
        let value = if negative { -i128::from(magnitude) } else { i128::from(magnitude) };
        if let Ok(value) = i64::try_from(value) {
            return Some(Scalar::Integer(value));
        }
        if !negative {
            return Some(Scalar::Float(magnitude as f64));
        }
    }
    is_decimal(digits).then(|| parse_finite(text)).flatten().map(Scalar::Float)
}

/// Parses an unsigned integer in any base: `0x1f`, `0b1`, `0o17`, `017`, `15`.
fn magnitude(digits: &str) -> Option<u64> {
    let prefixed = [("0x", 16), ("0X", 16), ("0b", 2), ("0B", 2), ("0o", 8), ("0O", 8)]
        .into_iter()
        .find_map(|(prefix, base)| Some((digits.strip_prefix(prefix)?, base)));
    let (digits, base) = match prefixed {
        Some(found) => found,
        None if digits.len() > 1 && digits.starts_with('0') => (digits.get(1..)?, 8),
        None => (digits, 10),
    };
    // `from_str_radix` accepts a sign, but the caller has removed the only allowed sign.
    digits
        .bytes()
        .next()
        .is_some_and(|b| b.is_ascii_alphanumeric())
        .then(|| u64::from_str_radix(digits, base).ok())?
}

/// Whether a text is `1`, `1.`, `1.5` or `.5`, with or without an exponent, without a sign.
fn is_decimal(text: &str) -> bool {
    let (mantissa, exponent) = match text.find(['e', 'E']) {
        Some(at) => (text.get(..at).unwrap_or(""), text.get(at + 1..)),
        None => (text, None),
    };
    let all_digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    let mantissa_ok = match mantissa.split_once('.') {
        Some(("", fraction)) => all_digits(fraction),
        Some((whole, fraction)) => all_digits(whole) && (fraction.is_empty() || all_digits(fraction)),
        None => all_digits(mantissa),
    };
    mantissa_ok && exponent.is_none_or(|e| all_digits(e.strip_prefix(['+', '-']).unwrap_or(e)))
}

/// Parses a finite decimal float.
fn parse_finite(text: &str) -> Option<f64> {
    text.parse::<f64>().ok().filter(|f| f.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_scalars_are_resolved_as_yaml_1_1() {
        use Scalar::{Bool, Float, Integer, Null};
        for (text, expected) in [
            ("", Null),
            ("~", Null),
            ("Null", Null),
            ("y", Bool(true)),
            ("Off", Bool(false)),
            ("TRUE", Bool(true)),
            ("0", Integer(0)),
            ("-0", Integer(0)),
            ("+12", Integer(12)),
            ("1_000", Integer(1000)),
            ("010", Integer(8)),
            ("0o17", Integer(15)),
            ("0x1F", Integer(31)),
            ("-0b11", Integer(-3)),
            ("-9223372036854775808", Integer(i64::MIN)),
            ("9223372036854775808", Float(9_223_372_036_854_775_808.0)),
            ("08", Float(8.0)),
            ("1.5", Float(1.5)),
            ("1.", Float(1.0)),
            (".5", Float(0.5)),
            ("1e3", Float(1000.0)),
            ("-1.5E-3", Float(-0.0015)),
            (".inf", Float(f64::INFINITY)),
            ("-.INF", Float(f64::NEG_INFINITY)),
        ] {
            assert_eq!(resolve(text), expected, "{text}");
        }
        for text in [
            "yEs",
            "nULL",
            "truth",
            "hello",
            "1.2.3",
            "10.0.0.1",
            "2001-01-01",
            "12:30:45",
            "1e",
            "e3",
            "0x",
            "0xg",
            "--1",
            "+-1",
            "-",
            "+",
            ".",
            "..",
            "_1",
            "1e999",
            "<<",
            "=",
            "nan",
            "inf",
            "0b2",
            "1 ",
            "٣",
        ] {
            assert_eq!(resolve(text), Scalar::Text(text.to_owned()), "{text}");
        }
    }

    #[test]
    fn scalar_tags_determine_type_and_mismatches_are_rejected() {
        for (tag, text, expected) in [
            (Some("str"), "5", Ok(Scalar::Text("5".into()))),
            (Some("int"), "5", Ok(Scalar::Integer(5))),
            (Some("float"), "5", Ok(Scalar::Float(5.0))),
            (Some("bool"), "yes", Ok(Scalar::Bool(true))),
            (Some("null"), "", Ok(Scalar::Null)),
            (Some("timestamp"), "2001-01-01", Ok(Scalar::Text("2001-01-01".into()))),
            (Some("binary"), "aGVs\nbG8=", Ok(Scalar::Text("hello".into()))),
            (None, "5", Ok(Scalar::Text("5".into()))),
            (Some("int"), "x", Err(ScalarError::Tag("int"))),
            (Some("binary"), "*", Err(ScalarError::Base64)),
        ] {
            assert_eq!(resolve_tagged(tag, text), expected, "{tag:?} {text}");
        }
    }

    #[test]
    fn number_keys_become_text() {
        for (text, expected) in [
            ("1", "1"),
            ("010", "8"),
            ("1.5", "1.5"),
            ("yes", "true"),
            ("1e6", "1e+06"),
            ("123456.0", "123456"),
            ("0.00001", "1e-05"),
            (".inf", ".inf"),
            ("x", "x"),
        ] {
            assert_eq!(resolve(text).into_key(), Ok(expected.to_owned()), "{text}");
        }
        assert!(resolve("~").into_key().is_err());
    }
}
