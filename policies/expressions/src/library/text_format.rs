//! Format strings of `string.format`: `%s %d %f %e %x %X %o %b %%`, with precision.
//!
//! # Contract
//! Numbers have the form of English text: the infinities are `∞`, and an exponent is a power of ten. Texts inside
//! lists and maps are quoted, and numbers inside have six decimals. Messages have the words of cel-go.

use crate::quote::quote;

use crate::error::EvalError;
use crate::time;
use crate::types::Type;
use crate::value::Value;

use super::conversions::general_text;

/// Largest precision of a clause.
const MAX_PRECISION: usize = 1_000;

/// A part of a format string.
enum Piece {
    Literal(char),
    Clause { verb: char, precision: Option<usize> },
}

/// Reads the next part of a format string; None at its end.
fn next_piece(chars: &mut std::str::Chars<'_>) -> Option<Result<Piece, String>> {
    let c = chars.next()?;
    if c != '%' {
        return Some(Ok(Piece::Literal(c)));
    }
    let mut precision = None;
    let mut verb = chars.next();
    if verb == Some('.') {
        let mut digits = String::new();
        verb = chars.next();
        while let Some(digit) = verb.filter(char::is_ascii_digit) {
            digits.push(digit);
            verb = chars.next();
        }
        precision = digits.parse::<usize>().ok().filter(|precision| *precision <= MAX_PRECISION);
        if precision.is_none() {
            return Some(Err(
                "could not parse formatting clause: error while parsing precision: unable to convert precision to integer"
                    .to_owned(),
            ));
        }
    }
    Some(match verb {
        None => Err("unexpected end of string".to_owned()),
        Some('%') => Ok(Piece::Literal('%')),
        Some(verb @ ('s' | 'd' | 'f' | 'e' | 'x' | 'X' | 'o' | 'b')) => Ok(Piece::Clause { verb, precision }),
        Some(other) => {
            Err(format!("could not parse formatting clause: unrecognized formatting clause \"{other}\""))
        }
    })
}

/// Sum of the precisions of all clauses: the decimals that a format string can request.
pub(super) fn decimals(pattern: &str) -> u64 {
    let mut chars = pattern.chars();
    let pieces = std::iter::from_fn(|| next_piece(&mut chars));
    pieces
        .map(
            |piece| {
                if let Ok(Piece::Clause { precision: Some(digits), .. }) = piece { digits as u64 } else { 0 }
            },
        )
        .sum()
}

/// Replaces each clause of the format string with its value.
pub(super) fn format(pattern: &str, values: &[Value<'_>]) -> Result<String, EvalError> {
    let mut out = String::new();
    let mut index = 0;
    let mut chars = pattern.chars();
    while let Some(piece) = next_piece(&mut chars) {
        match piece.map_err(EvalError::failed)? {
            Piece::Literal(c) => out.push(c),
            Piece::Clause { verb, precision } => {
                let value = values
                    .get(index)
                    .ok_or_else(|| EvalError::failed(format!("index {index} out of range")))?;
                index += 1;
                out.push_str(&format_clause(verb, precision, value)?);
            }
        }
    }
    Ok(out)
}

/// The error of a constant format string with arguments of these types: the index of the argument and the
/// message.
pub(crate) fn constant_error(pattern: &str, types: &[Type]) -> Option<(Option<usize>, String)> {
    let mut index = 0;
    let mut chars = pattern.chars();
    while let Some(piece) = next_piece(&mut chars) {
        match piece {
            Err(message) => return Some((None, message)),
            Ok(Piece::Literal(_)) => {}
            Ok(Piece::Clause { verb, .. }) => {
                let Some(ty) = types.get(index) else {
                    return Some((None, format!("index {index} out of range")));
                };
                if !accepts_type(verb, ty) {
                    let name = type_name(ty);
                    return Some((Some(index), clause_error(verb, &name)));
                }
                index += 1;
            }
        }
    }
    let count = types.len();
    (index < count).then(|| {
        (None, format!("too many arguments supplied to string.format (expected {index}, got {count})"))
    })
}

/// Name of a type in messages, as that of its values.
fn type_name(ty: &Type) -> String {
    match ty {
        Type::Null => "null_type".to_owned(),
        Type::Timestamp => "google.protobuf.Timestamp".to_owned(),
        Type::Duration => "google.protobuf.Duration".to_owned(),
        Type::List(_) => "list".to_owned(),
        Type::Map(_) => "map".to_owned(),
        Type::Optional(_) => "optional_type".to_owned(),
        Type::Type(_) => "type".to_owned(),
        other => other.to_string(),
    }
}

/// Whether the values of a type may be arguments of a clause.
fn accepts_type(verb: char, ty: &Type) -> bool {
    match (verb, ty) {
        (_, Type::Dyn | Type::Param(_)) => true,
        ('s', Type::List(list)) => accepts_type('s', &list.element),
        ('s', Type::Map(types)) => accepts_type('s', &types.0) && accepts_type('s', &types.1),
        ('s', Type::Optional(_) | Type::Opaque(_) | Type::Object(_)) => false,
        ('s', _) => true,
        ('d' | 'o', Type::Int | Type::Uint) => true,
        // A text can be the name of a number such as `NaN` for this check, but not for evaluation.
        ('f' | 'e', Type::Double | Type::String) => true,
        ('x' | 'X', Type::Int | Type::Uint | Type::String | Type::Bytes) => true,
        ('b', Type::Int | Type::Uint | Type::Bool) => true,
        _ => false,
    }
}

/// The message about an argument of another type than a clause accepts.
fn clause_error(verb: char, given: &str) -> String {
    let expected = match verb {
        's' => {
            "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and timestamps"
        }
        'd' => "decimal clause can only be used on integers",
        'f' => "fixed-point clause can only be used on doubles",
        'e' => "scientific clause can only be used on doubles",
        'x' | 'X' => "only integers, byte buffers, and strings can be formatted as hex",
        'o' => "octal clause can only be used on integers",
        _ => "only integers and bools can be formatted as binary",
    };
    format!("error during formatting: {expected}, was given {given}")
}

fn format_clause(verb: char, precision: Option<usize>, value: &Value<'_>) -> Result<String, EvalError> {
    let text = match (verb, value) {
        ('s', Value::Bytes(bytes)) => Some(std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| {
            EvalError::failed(
                "error during formatting: could not convert argument \"invalid UTF-8 in bytes, cannot convert to string\" to string",
            )
        })?),
        ('s', Value::Double(d)) => Some(general_text(*d)),
        ('s', value) => plain_text(value),
        ('d', Value::Int(i)) => Some(i.to_string()),
        ('d', Value::Uint(u)) => Some(u.to_string()),
        ('f' | 'e', Value::Double(d)) if d.is_nan() => Some("NaN".to_owned()),
        ('f' | 'e', Value::Double(d)) if d.is_infinite() => {
            Some(if *d > 0.0 { "∞" } else { "-∞" }.to_owned())
        }
        ('f', Value::Double(d)) => Some(group_digits(&format!("{d:.*}", precision.unwrap_or(6)))),
        ('e', Value::Double(d)) => Some(scientific(*d, precision.unwrap_or(6))),
        ('x', Value::String(s)) => Some(hex(s.as_str().as_bytes())),
        ('X', Value::String(s)) => Some(hex(s.as_str().as_bytes()).to_ascii_uppercase()),
        ('x', Value::Bytes(b)) => Some(hex(b)),
        ('X', Value::Bytes(b)) => Some(hex(b).to_ascii_uppercase()),
        ('b', Value::Bool(b)) => Some(u8::from(*b).to_string()),
        ('x' | 'X' | 'o' | 'b', Value::Int(i)) => {
            let sign = if *i < 0 { "-" } else { "" };
            Some(format!("{sign}{}", radix(verb, i.unsigned_abs())))
        }
        ('x' | 'X' | 'o' | 'b', Value::Uint(u)) => Some(radix(verb, *u)),
        _ => None,
    };
    text.ok_or_else(|| EvalError::failed(clause_error(verb, &value.type_name())))
}

fn scientific(d: f64, precision: usize) -> String {
    let text = format!("{d:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let sign = if exponent < 0 { "⁻" } else { "" };
    let superscripts: String = format!("{:02}", exponent.abs()).chars().map(superscript).collect();
    format!("{digits}\u{202f}×\u{202f}10{sign}{superscripts}")
}

/// Separates the integer digits of a number in groups of three with commas.
fn group_digits(number: &str) -> String {
    let (whole, fraction) = number.split_at(number.find('.').unwrap_or(number.len()));
    let (sign, digits) = whole.split_at(usize::from(whole.starts_with('-')));
    let mut out = String::from(sign);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out + fraction
}

fn superscript(digit: char) -> char {
    let at = digit.to_digit(10).unwrap_or_default() as usize;
    "⁰¹²³⁴⁵⁶⁷⁸⁹".chars().nth(at).unwrap_or(digit)
}

fn radix(verb: char, number: u64) -> String {
    match verb {
        'x' => format!("{number:x}"),
        'X' => format!("{number:X}"),
        'o' => format!("{number:o}"),
        _ => format!("{number:b}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Returns the text of a value for `%s`, or None if the type has no text.
fn plain_text(value: &Value<'_>) -> Option<String> {
    Some(match value {
        Value::String(s) => s.as_str().to_owned(),
        Value::Timestamp(t) => t.to_string(),
        Value::Duration(d) => time::format_duration(*d),
        value => nested_text(value)?,
    })
}

/// Returns the text of a value inside a list or map, or None if the type has no text.
fn nested_text(value: &Value<'_>) -> Option<String> {
    Some(match value {
        Value::Null => "null".to_owned(),
        Value::Bool(b) => b.to_string(),
        Value::Int(i) => i.to_string(),
        Value::Uint(u) => u.to_string(),
        Value::Double(d) if d.is_nan() => "\"NaN\"".to_owned(),
        Value::Double(d) if d.is_infinite() => if *d > 0.0 { "\"∞\"" } else { "\"-∞\"" }.to_owned(),
        Value::Double(d) => group_digits(&format!("{d:.6}")),
        Value::String(s) => quote(s.as_str()),
        Value::Bytes(b) => format!("b{}", quote(&String::from_utf8_lossy(b))),
        Value::Timestamp(t) => format!("timestamp({})", quote(&t.to_string())),
        Value::Duration(d) => format!("duration({})", quote(&time::format_duration(*d))),
        Value::Type(t) => t.as_str().to_owned(),
        Value::List(list) => {
            let items: Option<Vec<String>> = list.iter().map(|item| nested_text(&item.ok()?)).collect();
            format!("[{}]", items?.join(", "))
        }
        Value::Map(map) => {
            let mut entries = Vec::new();
            for (key, value) in map.entries().ok()? {
                entries.push(format!("{}:{}", nested_text(&key)?, nested_text(&value)?));
            }
            entries.sort();
            format!("{{{}}}", entries.join(", "))
        }
        Value::Optional(_) | Value::Opaque(_) => return None,
    })
}
