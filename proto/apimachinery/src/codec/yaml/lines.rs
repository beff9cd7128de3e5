//! Line numbers of the fields of a document, for messages about files that people write.

use std::collections::HashMap;

use granit_parser::{Event, Parser};

use crate::codec::Limits;
use crate::codec::duplicates::{push_field, push_item};

/// Maximum number of bytes of all recorded paths. At the limit the recording ends; no file that a person
/// writes reaches the limit.
const MAX_BYTES: usize = 4 * 1024 * 1024;

/// Line numbers of the fields of a document.
#[derive(Clone, Debug, Default)]
pub struct Lines(HashMap<String, usize>);

impl Lines {
    /// Returns the line of a field, from 1, for a path like `jwt[0].issuer.url`.
    ///
    /// A field without a recorded line has the line of the nearest field around it. Returns None if no field around it
    /// has a recorded line either.
    pub fn line_of(&self, path: &str) -> Option<usize> {
        let mut path = path;
        loop {
            if let Some(line) = self.0.get(path) {
                return Some(*line);
            }
            path = path.get(..path.rfind(['.', '['])?)?;
        }
    }
}

/// Open mapping or list.
enum OpenCollection {
    /// Mapping: length of its path, and whether a key waits for its value.
    Map(usize, bool),
    /// List: length of its path, and index of the next item.
    List(usize, usize),
}

/// Reads only the line numbers of the first document.
///
/// A syntax error ends the recording; text that is not UTF-8 has no line numbers. Of duplicate keys, the line
/// of the last one is recorded. Fields that come from an alias or from `<<` are not recorded.
pub fn lines(input: &[u8], limits: Limits) -> Lines {
    let mut lines = HashMap::new();
    let Ok(text) = std::str::from_utf8(input) else { return Lines(lines) };
    let options = granit_parser::options! {
        flow_nesting_limit: limits.depth.saturating_add(8),
        block_nesting_limit: limits.depth.saturating_add(8),
    };
    let mut parser = Parser::new_from_str_with_options(text.trim_start_matches('\u{feff}'), options);
    let mut frames: Vec<OpenCollection> = Vec::new();
    let mut path = String::new();
    let mut bytes = 0;
    while let Some(Ok((event, span))) = parser.next_event() {
        if bytes > MAX_BYTES || frames.len() > limits.depth || matches!(event, Event::DocumentEnd) {
            break;
        }
        let line = span.start.line();
        let mut record = |path: &str| {
            bytes += path.len();
            lines.insert(path.to_owned(), line);
        };
        match &event {
            Event::Scalar(key, ..) if matches!(frames.last(), Some(OpenCollection::Map(_, false))) => {
                if let Some(OpenCollection::Map(path_length, has_key)) = frames.last_mut() {
                    path.truncate(*path_length);
                    push_field(&mut path, key);
                    record(&path);
                    *has_key = true;
                }
                continue;
            }
            Event::Scalar(..) | Event::Alias(_) | Event::SequenceStart(..) | Event::MappingStart(..) => {
                if let Some(OpenCollection::List(path_length, next)) = frames.last_mut() {
                    path.truncate(*path_length);
                    push_item(&mut path, *next);
                    record(&path);
                    *next += 1;
                }
            }
            Event::SequenceEnd | Event::MappingEnd => drop(frames.pop()),
            _ => continue,
        }
        match &event {
            Event::SequenceStart(..) => frames.push(OpenCollection::List(path.len(), 0)),
            Event::MappingStart(..) => frames.push(OpenCollection::Map(path.len(), false)),
            _ => {
                if let Some(OpenCollection::Map(path_length, has_key)) = frames.last_mut() {
                    path.truncate(*path_length);
                    *has_key = false;
                }
            }
        }
    }
    Lines(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yaml_fields_and_items_have_line_numbers() {
        let text = "\
# a file
kind: X
jwt:
- issuer:
    url: https://a
    audiences: [a,
      b]
  rules:
  - claim: x
  - {claim: y, value: {deep: 1}}
- issuer: *none
anonymous:
  enabled: true
";
        let lines = lines(text.as_bytes(), Limits::BODY);
        for (path, line) in [
            ("kind", Some(2)),
            ("jwt", Some(3)),
            ("jwt[0]", Some(4)),
            ("jwt[0].issuer.url", Some(5)),
            ("jwt[0].issuer.discoveryURL", Some(4)),
            ("jwt[0].issuer.audiences[0]", Some(6)),
            ("jwt[0].issuer.audiences[1]", Some(7)),
            ("jwt[0].rules[0].claim", Some(9)),
            ("jwt[0].rules[1].value.deep", Some(10)),
            ("jwt[0].rules[1].message", Some(10)),
            ("nothing", None),
            ("", None),
        ] {
            assert_eq!(lines.line_of(path), line, "{path}");
        }
    }

    #[test]
    fn invalid_yaml_has_no_line_numbers() {
        for text in ["", "\u{feff}", "[", "a: [", "- - - -", "\t"] {
            assert_eq!(lines(text.as_bytes(), Limits::BODY).line_of("x"), None, "{text}");
        }
        assert_eq!(lines(&[0xff], Limits::BODY).line_of("x"), None);
        let same = lines(br#"{"a": 1, "b": {"c": [2]}}"#, Limits::BODY);
        assert_eq!((same.line_of("a"), same.line_of("b.c[0]")), (Some(1), Some(1)));
    }
}
