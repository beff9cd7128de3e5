//! Values in messages: quoted like those of Kubernetes, and truncated.
//!
//! # Contract
//!
//! A message shows at most 100 characters of a text. It shows at most 1,000 characters of a list or an object, and
//! at most 100 characters of each text inside. Names, keys and label values are identifiers, which paths and
//! `details` contain too: a message shows at most 512 characters of them. A truncated value ends with its size:
//! `text… (3000 bytes)`.

use std::borrow::Cow;
use std::io;

use serde::Serialize;
use serde_json::{Map, Number, Value};

use crate::codec::json;

/// Maximum number of characters of a text in a message.
const TEXT_MAX_CHARS: usize = 100;
/// Maximum number of characters of a name, a key or a label value in a path or message.
const NAME_MAX_CHARS: usize = 512;
/// Length in bytes after which the fields and items of a value in Go's form are left out.
const GO_MAX_BYTES: usize = 1024;
/// Maximum number of characters of a list or an object in a message.
const COLLECTION_MAX_CHARS: usize = 1_000;
/// Number of bytes of a list or an object that are rendered at least, if it has as many.
const RENDERED_BYTES: usize = 8 * COLLECTION_MAX_CHARS;

/// Truncates a text for a message after 100 characters: `text… (3000 bytes)`.
pub fn shorten(text: &str) -> Cow<'_, str> {
    shorten_to(text, TEXT_MAX_CHARS)
}

/// Truncates a name in a path or message after 512 characters.
pub fn shorten_name(name: &str) -> Cow<'_, str> {
    shorten_to(name, NAME_MAX_CHARS)
}

/// Truncates a JSON text after 1,000 characters, and each string inside after 100.
pub fn shorten_json(json: &str) -> Cow<'_, str> {
    match shorten_strings(json) {
        Cow::Borrowed(json) => shorten_to(json, COLLECTION_MAX_CHARS),
        Cow::Owned(text) => match start(&text, COLLECTION_MAX_CHARS) {
            None => Cow::Owned(text),
            Some(start) => Cow::Owned(format!("{start}… ({} bytes)", json.len())),
        },
    }
}

/// Quotes a string like Go's `%q`, as far as characters of API values need it; truncates after 100
/// characters.
pub fn quote(s: &str) -> String {
    quote_to(s, TEXT_MAX_CHARS)
}

/// Quotes a name like [`quote`]; truncates after 512 characters.
pub fn quote_name(name: &str) -> String {
    quote_to(name, NAME_MAX_CHARS)
}

/// Formats a value for a message: strings quoted, null as `null`, lists and objects as JSON, numbers as Go's `%v`.
pub(crate) fn format_value(value: &Value) -> String {
    match value {
        Value::String(s) => quote(s),
        Value::Array(_) | Value::Object(_) => format_collection(value),
        Value::Number(number) => format_number(number),
        other => other.to_string(),
    }
}

/// Formats a number like Go's `%v`: a float without `.0`, from 1e6 on with an exponent.
pub fn format_number(number: &Number) -> String {
    match number.as_f64().filter(|_| number.is_f64()) {
        Some(float) => json::short_float_text(float),
        None => number.to_string(),
    }
}

/// Formats the fields of an object like Go's `%v`: `map[a:1 b:[x]]`. The rest of a long text is left out.
pub fn format_go_fields(fields: &Map<String, Value>) -> String {
    let mut text = String::new();
    write_go_fields(fields, &mut text);
    text
}

/// Formats a value like Go's `%v`; see [`format_go_fields`].
pub fn format_go_value(value: &Value) -> String {
    let mut text = String::new();
    write_go_value(value, &mut text);
    text
}

/// Formats a value of a custom object like Go's `%#v`: `map[string]interface {}{"a":1, "b":[]interface {}{"x"}}`.
/// The rest of a long value is left out.
pub(crate) fn format_go_syntax(value: &Value) -> String {
    match value {
        Value::Null => quote("null"),
        Value::Array(_) | Value::Object(_) => {
            let mut text = String::new();
            write_go_syntax(value, &mut text);
            text
        }
        scalar => format_value(scalar),
    }
}

fn write_go_syntax(value: &Value, text: &mut String) {
    match value {
        Value::Object(fields) => {
            text.push_str("map[string]interface {}{");
            for (index, (name, value)) in fields.iter().enumerate() {
                text.push_str(if index == 0 { "" } else { ", " });
                text.push_str(&quote_name(name));
                text.push(':');
                write_go_syntax(value, text);
                if text.len() > GO_MAX_BYTES {
                    break;
                }
            }
            text.push('}');
        }
        Value::Array(items) => {
            text.push_str("[]interface {}{");
            for (index, item) in items.iter().enumerate() {
                text.push_str(if index == 0 { "" } else { ", " });
                write_go_syntax(item, text);
                if text.len() > GO_MAX_BYTES {
                    break;
                }
            }
            text.push('}');
        }
        Value::Null => text.push_str("interface {}(nil)"),
        scalar => text.push_str(&format_value(scalar)),
    }
}

fn write_go_fields(fields: &Map<String, Value>, text: &mut String) {
    text.push_str("map[");
    for (index, (name, value)) in fields.iter().enumerate() {
        text.push_str(if index == 0 { "" } else { " " });
        text.push_str(name);
        text.push(':');
        write_go_value(value, text);
        if text.len() > GO_MAX_BYTES {
            break;
        }
    }
    text.push(']');
}

fn write_go_value(value: &Value, text: &mut String) {
    match value {
        Value::Object(fields) => write_go_fields(fields, text),
        Value::Array(items) => {
            text.push('[');
            for (index, item) in items.iter().enumerate() {
                text.push_str(if index == 0 { "" } else { " " });
                write_go_value(item, text);
                if text.len() > GO_MAX_BYTES {
                    break;
                }
            }
            text.push(']');
        }
        Value::String(string) => text.push_str(string),
        Value::Null => text.push_str("<nil>"),
        Value::Number(number) => text.push_str(&format_number(number)),
        Value::Bool(flag) => text.push_str(if *flag { "true" } else { "false" }),
    }
}

/// Formats a list or an object as JSON, but renders little more than a message shows.
pub(crate) fn format_collection(value: &impl Serialize) -> String {
    let mut out = BoundedWriter(Vec::new());
    let is_whole = json::write_to(&mut out, value).is_ok();
    let json = String::from_utf8_lossy(&out.0);
    if is_whole {
        return shorten_json(&json).into_owned();
    }
    let shown = shorten_strings(&json);
    let shown = start(&shown, COLLECTION_MAX_CHARS).unwrap_or(&shown);
    format!("{shown}… (more than {} bytes)", json.len())
}

/// Writer that fails when it has at least [`RENDERED_BYTES`] bytes.
struct BoundedWriter(Vec<u8>);

impl io::Write for BoundedWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = RENDERED_BYTES.saturating_sub(self.0.len());
        if room == 0 {
            return Err(io::Error::other("long enough"));
        }
        let written = bytes.get(..room).unwrap_or(bytes);
        self.0.extend_from_slice(written);
        Ok(written.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Truncates each string of a JSON text after 100 characters. The last string may lack its closing quote.
fn shorten_strings(json: &str) -> Cow<'_, str> {
    let mut out = String::new();
    let (mut copied, mut rest_at) = (0, 0);
    while let Some(open) = json.get(rest_at..).and_then(|rest| rest.find('"')) {
        let begin = rest_at + open + 1;
        let inside = json.get(begin..).unwrap_or_default();
        let inside = inside.get(..string_len(inside)).unwrap_or(inside);
        if let Some(shown) = start(inside, TEXT_MAX_CHARS) {
            out.push_str(json.get(copied..begin).unwrap_or_default());
            // An escape sequence is not cut after its backslash.
            out.push_str(shown.trim_end_matches('\\'));
            out.push_str(&format!("… ({} bytes)", inside.len()));
            copied = begin + inside.len();
        }
        rest_at = begin + inside.len() + 1;
    }
    if copied == 0 {
        return Cow::Borrowed(json);
    }
    out.push_str(json.get(copied..).unwrap_or_default());
    Cow::Owned(out)
}

/// The number of bytes before the closing quote of a JSON string.
fn string_len(inside: &str) -> usize {
    let mut is_escaped = false;
    let end = inside.bytes().position(|byte| {
        let is_end = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        is_end
    });
    end.unwrap_or(inside.len())
}

/// The first `max` characters of a text; None if it has no more.
fn start(text: &str, max: usize) -> Option<&str> {
    let (end, _) = text.char_indices().nth(max)?;
    text.get(..end)
}

/// Truncates a text after a number of characters.
fn shorten_to(text: &str, max: usize) -> Cow<'_, str> {
    if text.len() <= max {
        return Cow::Borrowed(text);
    }
    let shortened = start(text, max).map(|start| format!("{start}… ({} bytes)", text.len()));
    shortened.map_or(Cow::Borrowed(text), Cow::Owned)
}

fn quote_to(s: &str, max: usize) -> String {
    match start(s, max) {
        None => escape(s),
        Some(start) => format!("{}… ({} bytes)", escape(start), s.len()),
    }
}

fn escape(s: &str) -> String {
    let mut out = String::with_capacity(s.len() + 2);
    out.push('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{b}' => out.push_str("\\v"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 || c as u32 == 0x7f => out.push_str(&format!("\\x{:02x}", c as u32)),
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::{FieldError, FieldPath};
    use serde_json::json;

    #[test]
    fn texts_above_100_characters_are_truncated_with_length() {
        let path = FieldPath::new("spec");
        let (fits, long) = ("é".repeat(100), "é".repeat(101));
        let fitting = FieldError::invalid(&path, fits.as_str(), "no").to_string();
        assert_eq!(fitting, format!("spec: Invalid value: \"{fits}\": no"));
        let cut = FieldError::invalid(&path, long.as_str(), "no").to_string();
        assert_eq!(cut, format!("spec: Invalid value: \"{fits}\"… (202 bytes): no"));
        assert!(quote(&"\u{1}".repeat(1_000_000)).len() < 450);
    }

    #[test]
    fn numbers_are_formatted_like_go() {
        for (value, expected) in [
            (json!(1.0), "1"),
            (json!(1.5), "1.5"),
            (json!(1e6), "1e+06"),
            (json!(1_000_000), "1000000"),
            (json!([1.0, 1e6]), "[1,1000000]"),
        ] {
            assert_eq!(format_value(&value), expected);
        }
    }

    #[test]
    fn values_are_formatted_like_go() {
        let value = json!({"a": [1, 2.0, "x"], "b": {"c": null, "d": true}});
        assert_eq!(format_go_value(&value), "map[a:[1 2 x] b:map[c:<nil> d:true]]");
        let fields = (0..10_000).map(|i| (format!("k{i:05}"), json!([i]))).collect();
        assert!(format_go_fields(&fields).len() < 1_100);
    }

    #[test]
    fn values_are_formatted_in_go_syntax() {
        for (value, expected) in [
            (json!(null), r#""null""#),
            (json!("a\"b"), r#""a\"b""#),
            (json!(1.0), "1"),
            (json!({}), "map[string]interface {}{}"),
            (
                json!({"b": 1, "a": [true, null, 2.5, {"c": "x"}]}),
                r#"map[string]interface {}{"a":[]interface {}{true, interface {}(nil), 2.5, map[string]interface {}{"c":"x"}}, "b":1}"#,
            ),
        ] {
            assert_eq!(format_go_syntax(&value), expected);
        }
        let long: Value = (0..10_000).map(|i| (format!("k{i:05}"), json!(["x".repeat(300)]))).collect();
        assert!(format_go_syntax(&long).len() < 1_500);
    }

    #[test]
    fn long_names_are_truncated_after_512_characters() {
        let path = FieldPath::new("metadata").child("name");
        let (fits, long) = ("é".repeat(512), "é".repeat(513));
        let fitting = FieldError::invalid_name(&path, &fits, "no").to_string();
        assert_eq!(fitting, format!("metadata.name: Invalid value: \"{fits}\": no"));
        let cut = FieldError::invalid_name(&path, &long, "no").to_string();
        assert_eq!(cut, format!("metadata.name: Invalid value: \"{fits}\"… (1026 bytes): no"));
        assert!(path.key(&long.repeat(1_000)).as_str().chars().count() < 550);
    }

    #[test]
    fn long_collections_are_truncated_after_1000_characters() {
        let (fits, long) = ("é".repeat(100), "é".repeat(101));
        for (value, expected) in [
            (json!({"a": [fits, 1]}), format!("{{\"a\":[\"{fits}\",1]}}")),
            (
                json!({(long.as_str()): long, "z": "b\"c"}),
                format!("{{\"z\":\"b\\\"c\",\"{fits}… (202 bytes)\":\"{fits}… (202 bytes)\"}}"),
            ),
            (json!(["\"".repeat(100), "\\"]), format!("[\"{}… (200 bytes)\",\"\\\\\"]", "\\\"".repeat(50))),
        ] {
            assert_eq!(format_value(&value), expected);
            assert_eq!(shorten_json(&value.to_string()), expected);
        }
        let list = |count: usize| Value::from(vec!["item"; count]);
        for value in
            [list(200), list(1_000_000), json!([long.repeat(1_000)]), json!({(long.repeat(1_000)): 1})]
        {
            for text in [format_value(&value), shorten_json(&value.to_string()).into_owned()] {
                assert!(text.chars().count() < 1_030 && text.contains("… ("), "{text}");
            }
        }
    }
}
