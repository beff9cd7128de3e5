//! Arrays in JSON log lines, where `tracing` writes a list as a string that contains the list.
//!
//! # Contract
//!
//! The fields of [`ARRAY_FIELDS`] have JSON arrays as values in every line; all other fields keep their values.

use std::borrow::Cow;

/// Names of the fields whose values are lists of strings.
const ARRAY_FIELDS: [&str; 5] = ["authentication", "authorization", "authn", "authz", "files"];

/// The form of JSON: an event with arrays in [`ARRAY_FIELDS`].
pub(super) fn line_with_arrays(event: &[u8]) -> Cow<'_, [u8]> {
    match std::str::from_utf8(event).map(with_arrays) {
        Ok(Cow::Owned(line)) => Cow::Owned(line.into_bytes()),
        Ok(Cow::Borrowed(_)) | Err(_) => Cow::Borrowed(event),
    }
}

/// Replaces the strings in [`ARRAY_FIELDS`] of a JSON line by arrays.
fn with_arrays(line: &str) -> Cow<'_, str> {
    let mut text = Cow::Borrowed(line);
    for field in ARRAY_FIELDS {
        // A quotation mark within a value is escaped, so this text occurs only as a key.
        let key = format!(",\"{field}\":");
        let replaced = text.split_once(&key).and_then(|(before, rest)| {
            let (array, after) = take_array(rest)?;
            Some(format!("{before}{key}{array}{after}"))
        });
        if let Some(replaced) = replaced {
            text = Cow::Owned(replaced);
        }
    }
    text
}

/// Reads the JSON string at the beginning of a text, which contains a list.
///
/// Returns the list as a JSON array, and the rest of the text.
fn take_array(text: &str) -> Option<(String, &str)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<String>();
    let list = values.next()?.ok()?;
    let after = text.get(values.byte_offset()..)?;
    let array: Vec<String> = serde_json::from_str(&list).ok()?;
    Some((serde_json::to_string(&array).ok()?, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_fields_are_arrays_in_json_lines() {
        for (line, expected) in [
            (r#"{"a":1,"files":"[\"x\", \"y\"]","b":2}"#, r#"{"a":1,"files":["x","y"],"b":2}"#),
            (r#"{"a":1,"authn":"[]"}"#, r#"{"a":1,"authn":[]}"#),
            (r#"{"a":1,"other":"[\"x\"]"}"#, r#"{"a":1,"other":"[\"x\"]"}"#),
            (r#"{"a":",\"files\":\"[]\"","b":2}"#, r#"{"a":",\"files\":\"[]\"","b":2}"#),
        ] {
            assert_eq!(with_arrays(line), expected);
        }
    }
}
