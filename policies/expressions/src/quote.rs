//! Quotation of texts in messages, like Go's `%q`.

/// Maximum number of quoted characters; the rest of a longer text is left out.
const MAX_CHARS: usize = 1_024;

/// Quotes a text: double quotation marks, and escapes for characters that are not printable.
pub(crate) fn quote(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars().take(MAX_CHARS) {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            c if c < ' ' || c == '\u{7f}' => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            // Beyond ASCII, Rust escapes about the characters that Go escapes.
            c if !c.is_ascii() && c.escape_debug().len() > 1 => match u32::from(c) {
                code @ ..=0xffff => out.push_str(&format!("\\u{code:04x}")),
                code => out.push_str(&format!("\\U{code:08x}")),
            },
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
