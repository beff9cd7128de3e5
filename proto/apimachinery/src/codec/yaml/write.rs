//! Encodes a tree in block style like `kubectl get -o yaml`.
//!
//! Keys are sorted, lists are not indented under their key, multi-line texts are literal blocks.

use serde_json::{Map, Value};

use super::scalar::{self, Scalar};
use crate::codec::json::float_text;

/// Maximum number of bytes of an encoded key on the line of its `:`; longer keys begin with `? `.
///
/// Readers look for the `:` in at most 1,024 characters.
const MAX_SIMPLE_KEY_BYTES: usize = 1000;

/// Encodes in block style.
pub fn encode(value: &Value) -> Vec<u8> {
    let mut out = String::with_capacity(512);
    write_node(&mut out, value, 0);
    out.into_bytes()
}

/// Encodes an item of a list in a top-level field, as [`encode`] writes the item: `- ` without indentation.
pub fn encode_item(value: &Value) -> Vec<u8> {
    let mut out = String::with_capacity(512);
    write_sequence(&mut out, std::slice::from_ref(value), 0);
    out.into_bytes()
}

/// Writes a value whose first line begins at the cursor, at column `indent`.
fn write_node(out: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Object(map) if !map.is_empty() => write_mapping(out, map, indent),
        Value::Array(list) if !list.is_empty() => write_sequence(out, list, indent),
        other => write_scalar_line(out, other, indent),
    }
}

fn write_mapping(out: &mut String, map: &Map<String, Value>, indent: usize) {
    for (position, (key, value)) in map.iter().enumerate() {
        if position > 0 {
            write_spaces(out, indent);
        }
        let start = out.len();
        write_text(out, key);
        let explicit = out.len() - start > MAX_SIMPLE_KEY_BYTES;
        if explicit {
            out.insert_str(start, "? ");
            out.push('\n');
            write_spaces(out, indent);
        }
        out.push(':');
        match value {
            Value::Object(inner) if !inner.is_empty() => {
                out.push('\n');
                write_spaces(out, indent + 2);
                write_mapping(out, inner, indent + 2);
            }
            Value::Array(inner) if !inner.is_empty() => {
                let indent = if explicit { indent + 2 } else { indent };
                out.push('\n');
                write_spaces(out, indent);
                write_sequence(out, inner, indent);
            }
            scalar => {
                out.push(' ');
                write_scalar_line(out, scalar, indent);
            }
        }
    }
}

fn write_sequence(out: &mut String, list: &[Value], indent: usize) {
    for (position, value) in list.iter().enumerate() {
        if position > 0 {
            write_spaces(out, indent);
        }
        out.push_str("- ");
        match value {
            Value::Object(_) | Value::Array(_) => write_node(out, value, indent + 2),
            scalar => write_scalar_line(out, scalar, indent),
        }
    }
}

/// Writes a scalar or an empty collection, and ends the line. `indent` is that of the enclosing collection.
fn write_scalar_line(out: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Value::Number(n) => match n.as_f64() {
            Some(float) if n.is_f64() => out.push_str(&float_text(float)),
            _ => out.push_str(&n.to_string()),
        },
        Value::String(text) if is_block(text) => return write_literal(out, text, indent + 2),
        Value::String(text) => write_text(out, text),
        Value::Array(_) => out.push_str("[]"),
        Value::Object(_) => out.push_str("{}"),
    }
    out.push('\n');
}

fn write_spaces(out: &mut String, count: usize) {
    out.extend(std::iter::repeat_n(' ', count));
}

/// Whether a multi-line text can be a literal block.
///
/// Such a text needs no escapes. No line begins with a tab or consists of spaces and tabs only. The first
/// line is not empty and does not begin with a space, so that it shows the indentation.
fn is_block(text: &str) -> bool {
    text.contains('\n')
        && !text.starts_with([' ', '\n'])
        && text.chars().all(|c| c == '\n' || c == '\t' || is_printable(c))
        && text.lines().all(|line| {
            !line.starts_with('\t') && (line.is_empty() || !line.trim_matches([' ', '\t']).is_empty())
        })
}

fn write_literal(out: &mut String, text: &str, indent: usize) {
    let body = text.trim_end_matches('\n');
    out.push_str(match text.len() - body.len() {
        0 => "|-\n",
        1 => "|\n",
        _ => "|+\n",
    });
    for line in body.split('\n') {
        if !line.is_empty() {
            write_spaces(out, indent);
            out.push_str(line);
        }
        out.push('\n');
    }
    let newlines = text.len() - body.len();
    out.extend(std::iter::repeat_n('\n', newlines.saturating_sub(1)));
}

fn write_text(out: &mut String, text: &str) {
    if is_plain(text) {
        out.push_str(text);
    } else if !text.chars().all(is_printable) {
        write_double_quoted(out, text);
    } else if text.contains(['"', '\\']) {
        out.extend(["'", &text.replace('\'', "''"), "'"]);
    } else {
        out.extend(["\"", text, "\""]);
    }
}

/// Whether every YAML reader reads the text without quotes as the same string. The encoder quotes other texts.
fn is_plain(text: &str) -> bool {
    let Some(first) = text.chars().next() else { return false };
    (first.is_alphanumeric() || first == '_' || first == '/')
        && !text.ends_with([' ', ':'])
        && !text.contains(": ")
        && !text.contains(" #")
        && text.chars().all(|c| c.is_alphanumeric() || " _-./:@+=,()~^$;!?*<>|%&#".contains(c))
        && matches!(scalar::resolve(text), Scalar::Text(_))
        && !is_number_or_time_in_yaml_1_1(text)
}

/// Whether other YAML 1.1 readers resolve a text as a time or a base-60 number: `2001-12-14`, `12:30:45`.
///
/// Also true for digits with underscores, commas or an exponent, because readers resolve them differently.
fn is_number_or_time_in_yaml_1_1(text: &str) -> bool {
    let Some(first) = text.chars().next() else { return false };
    if !first.is_numeric() {
        return false;
    }
    let date = text.len() >= 8
        && text.bytes().take(4).all(|b| b.is_ascii_digit())
        && text.as_bytes().get(4) == Some(&b'-');
    let base_60_or_grouped =
        text.chars().all(|c| c.is_numeric() || ":._,eE+-".contains(c)) && !is_address(text);
    date || base_60_or_grouped
}

/// Whether a text is three or more groups of digits with dots between them: `10.0.0.1`, `1.33.0`.
///
/// Every reader resolves such a text as a string.
fn is_address(text: &str) -> bool {
    text.split('.').count() > 2
        && text.split('.').all(|group| !group.is_empty() && group.bytes().all(|b| b.is_ascii_digit()))
}

/// Whether a character is printable and no line break in any version of YAML.
fn is_printable(c: char) -> bool {
    !c.is_control() && !matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
}

fn write_double_quoted(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if is_printable(c) => out.push(c),
            c if u32::from(c) <= 0xff => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            c if u32::from(c) <= 0xffff => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push_str(&format!("\\U{:08x}", u32::from(c))),
        }
    }
    out.push('"');
}
