//! Escaping of property names in expressions.
//!
//! Expressions can use a property whose name consists of ASCII letters, digits and `_.-/` and does not begin
//! with a digit. Escapes: `__` to `__underscores__`, `.` to `__dot__`, `-` to `__dash__`, `/` to `__slash__`.
//! A reserved word gets the prefix and suffix `__`.

/// Escapes `name` for expressions; `None` if expressions cannot use the name.
pub fn escape(name: &str) -> Option<String> {
    if is_reserved(name) {
        return Some(format!("__{name}__"));
    }
    let mut chars = name.chars();
    let first = chars.next()?;
    let is_letter_or_symbol = |c: char| c.is_ascii_alphabetic() || matches!(c, '_' | '.' | '-' | '/');
    if !is_letter_or_symbol(first) || !chars.all(|c| is_letter_or_symbol(c) || c.is_ascii_digit()) {
        return None;
    }
    // The first replacement does not touch the underscores of the other escapes.
    let escaped = name.replace("__", "__underscores__").replace('.', "__dot__");
    Some(escaped.replace('-', "__dash__").replace('/', "__slash__"))
}

/// Whether a word is reserved in the language.
fn is_reserved(word: &str) -> bool {
    matches!(
        word,
        "true"
            | "false"
            | "null"
            | "in"
            | "as"
            | "break"
            | "const"
            | "continue"
            | "else"
            | "for"
            | "function"
            | "if"
            | "import"
            | "let"
            | "loop"
            | "package"
            | "namespace"
            | "return"
            | "var"
            | "void"
            | "while"
    )
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
