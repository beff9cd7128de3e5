//! Escaping of property names in expressions.
//!
//! Expressions can use a property whose name consists of ASCII letters, digits and `_.-/` and does not begin
//! with a digit. Escapes: `__` to `__underscores__`, `.` to `__dot__`, `-` to `__dash__`, `/` to `__slash__`.
//! A reserved word gets the prefix and suffix `__`.

/// Reserved words of the language.
const RESERVED: [&str; 20] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
];

/// Escapes `name` for expressions; `None` if expressions cannot use the name.
pub fn escape(name: &str) -> Option<String> {
    if RESERVED.contains(&name) || name == "while" {
        return Some(format!("__{name}__"));
    }
    let mut chars = name.chars();
    let first = chars.next()?;
    let is_letter_or_symbol = |c: char| c.is_ascii_alphabetic() || matches!(c, '_' | '.' | '-' | '/');
    if !is_letter_or_symbol(first) || !chars.all(|c| is_letter_or_symbol(c) || c.is_ascii_digit()) {
        return None;
    }
    let mut out = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(c) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("__") {
            out.push_str("__underscores__");
            rest = after;
            continue;
        }
        match c {
            '.' => out.push_str("__dot__"),
            '-' => out.push_str("__dash__"),
            '/' => out.push_str("__slash__"),
            other => out.push(other),
        }
        rest = rest.get(c.len_utf8()..).unwrap_or_default();
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn property_names_are_escaped() {
        for (name, escaped) in [
            ("a", Some("a")),
            ("x__y", Some("x__underscores__y")),
            ("a.b", Some("a__dot__b")),
            ("a-b/c", Some("a__dash__b__slash__c")),
            ("namespace", Some("__namespace__")),
            ("namespaces", Some("namespaces")),
            ("while", Some("__while__")),
            ("___", Some("__underscores___")),
            ("1a", None),
            ("a b", None),
            ("", None),
        ] {
            assert_eq!(escape(name).as_deref(), escaped, "{name}");
        }
    }
}
