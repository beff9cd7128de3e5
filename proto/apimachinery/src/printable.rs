//! Escapes characters that change how a terminal or a viewer shows a text: control and bidirectional characters.
//!
//! # Contract
//!
//! User names and names of objects are free texts. A log line or a table with such a character must not move the
//! cursor, change the order of characters or hide text.

use std::fmt::Write as _;

/// Whether a character is invisible or changes how the text around it is shown.
pub fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Replaces each unprintable character by its Rust escape, such as `\u{1b}` or `\n`.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_unprintable(c) { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

/// As [`escape`], but keeps line feeds.
pub fn escape_lines(text: &str) -> String {
    text.split('\n').map(escape).collect::<Vec<_>>().join("\n")
}

/// Replaces each unprintable character of a JSON document by its JSON escape, such as `\u202e`. Keeps line feeds
/// and tabs, which only separate tokens there.
pub fn escape_json(json: String) -> String {
    // Most documents have printable ASCII only.
    if json.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\n' | b'\t' | b'\r')) {
        return json;
    }
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if is_unprintable(c) && !matches!(c, '\n' | '\t' | '\r') {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing to a String does not fail.
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_and_bidirectional_characters_are_escaped() {
        let text = "ja\u{202e}ne\u{1b}[2J\n\u{9b}é\u{200b}\u{7f}日";
        assert_eq!(escape(text), "ja\\u{202e}ne\\u{1b}[2J\\n\\u{9b}é\\u{200b}\\u{7f}日");
        assert_eq!(escape_lines("a\u{7}\nb"), "a\\u{7}\nb");
        let json = serde_json::json!({"name": text, "tag": "\u{e0041}"});
        let escaped = escape_json(format!("{json:#}"));
        assert!(!escaped.chars().any(|c| is_unprintable(c) && c != '\n'), "{escaped}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).unwrap(), json);
        assert_eq!(escape_json("{\"a~\":\n\t1}".to_owned()), "{\"a~\":\n\t1}");
        assert_eq!(escape_json("\"\u{7f}\"".to_owned()), "\"\\u007f\"");
    }
}
