//! Syntax of the regular expressions in `pattern`.
//!
//! # Contract
//!
//! [`syntax_error`] returns a message in the form of the Go package `regexp/syntax`, which kube-apiserver
//! uses. Only the syntax counts: an expression that is too large to compile has no syntax error.

use regex_syntax::Parser;
use regex_syntax::ast::ErrorKind;

/// Syntax error of a regular expression; None for a valid or an empty one.
pub(super) fn syntax_error(pattern: &str) -> Option<String> {
    let normalized = normalize(pattern);
    let Err(error) = Parser::new().parse(&normalized) else { return None };
    let (code, shown) = match &error {
        regex_syntax::Error::Parse(error) => {
            let span = error.span();
            let from_start = normalized.get(span.start.offset..).unwrap_or("");
            let part = normalized.get(span.start.offset..span.end.offset).unwrap_or("");
            match error.kind() {
                ErrorKind::GroupUnclosed => ("missing closing )", pattern),
                ErrorKind::GroupUnopened => ("unexpected )", pattern),
                ErrorKind::ClassUnclosed => ("missing closing ]", from_start),
                ErrorKind::ClassRangeInvalid => ("invalid character class range", part),
                ErrorKind::RepetitionMissing => ("missing argument to repetition operator", part),
                ErrorKind::RepetitionCountInvalid => ("invalid repeat count", part),
                ErrorKind::EscapeUnexpectedEof => ("trailing backslash at end of expression", ""),
                ErrorKind::EscapeUnrecognized
                | ErrorKind::EscapeHexEmpty
                | ErrorKind::EscapeHexInvalid
                | ErrorKind::EscapeHexInvalidDigit
                | ErrorKind::UnsupportedBackreference => ("invalid escape sequence", part),
                ErrorKind::GroupNameDuplicate { .. } => ("duplicate capture group name", part),
                ErrorKind::NestLimitExceeded(_) => ("expression nests too deeply", pattern),
                _ => ("invalid or unsupported Perl syntax", part),
            }
        }
        regex_syntax::Error::Translate(error) => {
            let span = error.span();
            let part = normalized.get(span.start.offset..span.end.offset).unwrap_or("");
            ("invalid character class range", part)
        }
        _ => ("invalid or unsupported Perl syntax", pattern),
    };
    Some(format!("error parsing regexp: {code}: `{shown}`"))
}

/// Escapes characters that are literals in Go and operators in the syntax of the parser.
/// These are `{` without a valid repetition, and `[`, `&` and `~` inside a class.
fn normalize(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len());
    let mut is_in_class = false;
    let mut chars = pattern.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let rest = pattern.get(at..).unwrap_or("");
        match c {
            '\\' => {
                out.push(c);
                out.extend(chars.next().map(|(_, escaped)| escaped));
            }
            '[' if !is_in_class => {
                is_in_class = true;
                out.push(c);
                // The first `]` of a class is a literal.
                for literal in ['^', ']'] {
                    if chars.next_if(|(_, next)| *next == literal).is_some() {
                        out.push(literal);
                    }
                }
            }
            '[' if rest.starts_with("[:") && rest.contains(":]") => {
                let end = rest.find(":]").map_or(rest.len(), |end| end + 2);
                out.push_str(rest.get(..end).unwrap_or(""));
                while chars.next_if(|(next, _)| *next < at + end).is_some() {}
            }
            '[' | '&' | '~' if is_in_class => out.extend(['\\', c]),
            ']' => {
                is_in_class = false;
                out.push(c);
            }
            '{' if !is_in_class && !begins_repetition(rest) => out.extend(['\\', c]),
            c => out.push(c),
        }
    }
    out
}

/// Whether a text begins with `{n}`, `{n,}` or `{n,m}`.
fn begins_repetition(text: &str) -> bool {
    let Some((counts, _)) = text.strip_prefix('{').and_then(|rest| rest.split_once('}')) else {
        return false;
    };
    let (least, most) = counts.split_once(',').unwrap_or((counts, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    !least.is_empty() && is_number(least) && is_number(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regular_expressions_are_checked() {
        for pattern in [
            "",
            "^[a-z]+$",
            r"\d{3}",
            "(?i)a|b",
            r"^\p{L}*$",
            "a{1000}",
            "a{",
            "a{,5}",
            "{x}",
            "[[]",
            "[]a]",
            "[^[:alpha:]&&]",
        ] {
            assert_eq!(syntax_error(pattern), None, "{pattern}");
        }
        for (pattern, expected) in [
            ("(", "missing closing ): `(`"),
            ("a)", "unexpected ): `a)`"),
            ("a[b", "missing closing ]: `[b`"),
            ("*a", "missing argument to repetition operator: `*`"),
            ("a\\", "trailing backslash at end of expression: ``"),
            ("[z-a]", "invalid character class range: `z-a`"),
            (r"\y", r"invalid escape sequence: `\y`"),
        ] {
            assert_eq!(syntax_error(pattern), Some(format!("error parsing regexp: {expected}")), "{pattern}");
        }
    }
}
