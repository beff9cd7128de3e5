//! Format strings of `string.format`: `%s %d %f %e %x %X %o %b %%`, with precision.
//!
//! Version 2 of the strings extension formats `%f` and `%e` as English text: `1,234.500000`, powers of ten,
//! `∞`.

use crate::error::EvalError;
use crate::time;
use crate::value::Value;

use super::conversions::double_text;

/// Replaces each clause of the format string with its value.
pub(super) fn format(pattern: &str, values: &[Value<'_>]) -> Result<String, EvalError> {
    let mut out = String::new();
    let mut values = values.iter().enumerate();
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
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
            precision = digits.parse::<usize>().ok().filter(|p| *p <= 100);
            if precision.is_none() {
                return Err(EvalError::failed("error while parsing precision"));
            }
        }
        let Some(verb) = verb else { return Err(EvalError::failed("unexpected end of string")) };
        if verb == '%' {
            out.push('%');
            continue;
        }
        let Some((index, value)) = values.next() else {
            return Err(EvalError::failed("index out of range in arguments of format"));
        };
        match format_clause(verb, precision, value) {
            Some(text) => out.push_str(&text),
            None => {
                let name = value.type_name();
                let message =
                    format!("error during formatting: `%{verb}` cannot show argument {index} of type {name}");
                return Err(EvalError::failed(message));
            }
        }
    }
    Ok(out)
}

fn format_clause(verb: char, precision: Option<usize>, value: &Value<'_>) -> Option<String> {
    match (verb, value) {
        ('s', value) => format_value(value),
        ('d', Value::Int(i)) => Some(i.to_string()),
        ('d', Value::Uint(u)) => Some(u.to_string()),
        ('f' | 'e', Value::Double(d)) if d.is_nan() => Some("NaN".to_owned()),
        ('f' | 'e', Value::Double(d)) if d.is_infinite() => {
            Some(if *d > 0.0 { "∞" } else { "-∞" }.to_owned())
        }
        ('f', Value::Double(d)) => Some(group_digits(&format!("{d:.*}", precision.unwrap_or(6)))),
        ('e', Value::Double(d)) => {
            let text = format!("{d:.*e}", precision.unwrap_or(6));
            let (digits, exponent) = text.split_once('e')?;
            let exponent: i32 = exponent.parse().ok()?;
            let sign = if exponent < 0 { "⁻" } else { "" };
            let superscripts: String = format!("{:02}", exponent.abs()).chars().map(superscript).collect();
            Some(format!("{digits}\u{202f}×\u{202f}10{sign}{superscripts}"))
        }
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
    }
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

/// Returns the text of a value for `%s`; None: the type has no text.
fn format_value(value: &Value<'_>) -> Option<String> {
    Some(match value {
        Value::Null => "null".to_owned(),
        Value::Bool(b) => b.to_string(),
        Value::Int(i) => i.to_string(),
        Value::Uint(u) => u.to_string(),
        Value::Double(d) => double_text(*d),
        Value::String(s) => s.as_str().to_owned(),
        Value::Bytes(b) => String::from_utf8_lossy(b).into_owned(),
        Value::Timestamp(t) => t.to_string(),
        Value::Duration(d) => time::format_duration(*d),
        Value::Type(t) => t.as_str().to_owned(),
        Value::List(list) => {
            let items: Option<Vec<String>> = list.iter().map(|item| format_value(&item.ok()?)).collect();
            format!("[{}]", items?.join(", "))
        }
        Value::Map(map) => {
            let mut entries = Vec::new();
            for (key, value) in map.entries().ok()? {
                entries.push(format!("{}: {}", format_value(&key)?, format_value(&value)?));
            }
            entries.sort();
            format!("{{{}}}", entries.join(", "))
        }
        Value::Optional(_) | Value::Opaque(_) => return None,
    })
}
