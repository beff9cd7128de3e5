//! Messages about duplicate keys with their lines, as go-yaml writes them.
//!
//! The decoder reports paths of duplicate keys. This second pass over a document runs only for an API object with
//! duplicate keys.

use std::collections::HashSet;

use granit_parser::{Event, Parser, ScalarStyle};

use super::scalar::{self, Scalar};
use crate::codec::Limits;
use crate::codec::json::short_float_text;
use crate::field::quote;

/// Maximum number of messages.
const MAX_MESSAGES: usize = 100;

/// Open mapping or list.
enum OpenCollection {
    List,
    Map { keys: HashSet<String>, pending: Option<PendingKey> },
}

/// Key whose value follows or is open.
struct PendingKey {
    text: String,
    /// Line on which the value begins; 0 before the value.
    line: usize,
}

/// Returns a message for each duplicate key of the first document: `line 3: key "a" already set in map`.
///
/// The line is that of the value. A duplicate key follows the duplicate keys inside its value. At most 100
/// messages; a syntax error ends the list.
pub fn duplicate_keys(input: &[u8], limits: Limits) -> Vec<String> {
    let mut messages = Vec::new();
    let Ok(text) = std::str::from_utf8(input) else { return messages };
    let options = granit_parser::options! {
        flow_nesting_limit: limits.depth.saturating_add(8),
        block_nesting_limit: limits.depth.saturating_add(8),
    };
    let mut parser = Parser::new_from_str_with_options(text.trim_start_matches('\u{feff}'), options);
    let mut frames: Vec<OpenCollection> = Vec::new();
    while let Some(Ok((event, span))) = parser.next_event() {
        if matches!(event, Event::DocumentEnd) || messages.len() >= MAX_MESSAGES {
            break;
        }
        if let Some(OpenCollection::Map { pending, .. }) = frames.last_mut() {
            match (&event, &mut *pending) {
                (Event::Scalar(key, style, ..), None) => {
                    *pending = Some(PendingKey { text: key_text(key, *style), line: 0 });
                    continue;
                }
                // An alias as a key has no text here, so that it is never a duplicate.
                (Event::Alias(id), None) => {
                    *pending = Some(PendingKey { text: format!("*{id}"), line: 0 });
                    continue;
                }
                (_, Some(key)) if key.line == 0 => key.line = span.start.line(),
                _ => {}
            }
        }
        match event {
            Event::SequenceStart(..) => {
                frames.push(OpenCollection::List);
                continue;
            }
            Event::MappingStart(..) => {
                frames.push(OpenCollection::Map { keys: HashSet::new(), pending: None });
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => drop(frames.pop()),
            Event::Scalar(..) | Event::Alias(_) => {}
            _ => continue,
        }
        // A value is complete.
        if let Some(OpenCollection::Map { keys, pending }) = frames.last_mut()
            && let Some(PendingKey { text, line }) = pending.take()
        {
            let is_merge_key = text == "\"<<\"";
            if keys.contains(&text) && !is_merge_key {
                messages.push(format!("line {line}: key {text} already set in map"));
            } else {
                keys.insert(text);
            }
        }
    }
    messages
}

/// The text of a key as Go's `%#v`.
fn key_text(key: &str, style: ScalarStyle) -> String {
    if style != ScalarStyle::Plain {
        return quote(key);
    }
    match scalar::resolve(key) {
        Scalar::Integer(integer) => integer.to_string(),
        Scalar::Float(float) => short_float_text(float),
        Scalar::Bool(value) => value.to_string(),
        Scalar::Null | Scalar::Text(_) => quote(key),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicate_keys_have_the_line_of_their_value() {
        let text = "\
kind: X
data:
  a: 1
  b:
    c: 1
    c: 2
  'a': 2
kind:
  Y
list:
- {k: 1, k: 2}
- k: 1
b:
  d: 1
b:
  e: 1
  e: 2
1: x
1: y
<<: {z: 1}
<<: {z: 2}
";
        assert_eq!(
            duplicate_keys(text.as_bytes(), Limits::BODY),
            [
                "line 6: key \"c\" already set in map",
                "line 7: key \"a\" already set in map",
                "line 9: key \"kind\" already set in map",
                "line 11: key \"k\" already set in map",
                "line 17: key \"e\" already set in map",
                "line 16: key \"b\" already set in map",
                "line 19: key 1 already set in map",
            ]
        );
        let json = br#"{"a":{"b":1,"b":2},"a":1}"#;
        assert_eq!(
            duplicate_keys(json, Limits::BODY),
            ["line 1: key \"b\" already set in map", "line 1: key \"a\" already set in map"]
        );
        assert!(duplicate_keys(b"a: 1\nb: {", Limits::BODY).is_empty());
        let many: String = (0..1_000).map(|i| format!("k{i}: 1\nk{i}: 2\n")).collect();
        assert_eq!(duplicate_keys(many.as_bytes(), Limits::BODY).len(), 100);
    }
}
