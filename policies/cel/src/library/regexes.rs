//! Regular expressions: `matches`, and `find` and `findAll` of the extension.
//!
//! The syntax is RE2's: `\d`, `\w`, `\s` and `\b` are ASCII, while text is matched by characters. A
//! pattern that is written in the expression is compiled with it, once; others when they are met.

use std::any::Any;

use regex::Regex;

use crate::cost::CallCost;
use crate::error::EvalError;
use crate::program::Node;
use crate::value::{Opaque, Value, char_count};

use super::{Function, Library};

/// Size limit of a compiled pattern, in bytes.
const COMPILED_LIMIT: usize = 2 << 20;

/// All releases.
pub(super) static LIBRARY: Library = Library {
    since: 0,
    functions: &[
        Function {
            declares: &[".string.matches(string) -> bool", "matches(string, string) -> bool"],
            cost: CallCost::Regex,
            prepare: Some(prepare),
            body: |a| match a {
                [Value::String(s), pattern] => with(pattern, |regex| Value::Bool(regex.is_match(s.as_str()))),
                _ => Err(EvalError::NoOverload),
            },
        },
        Function {
            declares: &[".string.find(string) -> string"],
            cost: CallCost::Regex,
            prepare: Some(prepare),
            body: |a| match a {
                [Value::String(s), pattern] => with(pattern, |regex| {
                    Value::text(regex.find(s.as_str()).map_or("", |found| found.as_str()))
                }),
                _ => Err(EvalError::NoOverload),
            },
        },
        Function {
            declares: &[
                ".string.findAll(string) -> list(string)",
                ".string.findAll(string, int) -> list(string)",
            ],
            cost: CallCost::Regex,
            prepare: Some(prepare),
            body: |a| {
                let (text, pattern, limit) = match a {
                    [Value::String(s), pattern] => (s, pattern, -1),
                    [Value::String(s), pattern, Value::Int(limit)] => (s, pattern, *limit),
                    _ => return Err(EvalError::NoOverload),
                };
                let limit = usize::try_from(limit).unwrap_or(usize::MAX);
                with(pattern, |regex| {
                    let found = regex.find_iter(text.as_str()).take(limit);
                    Value::list(found.map(|found| Value::text(found.as_str())).collect())
                })
            },
        },
    ],
};

/// A pattern of the expression, compiled with it.
struct Pattern {
    regex: Regex,
    length: u64,
}

impl Opaque for Pattern {
    fn type_name(&self) -> &'static str {
        "string"
    }

    fn equals(&self, _other: &dyn Opaque) -> bool {
        false
    }

    fn size(&self) -> u64 {
        self.length
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Compiles a pattern that is written in the expression.
fn prepare(arguments: &mut [Node]) -> Result<(), EvalError> {
    if let Some(Node::Const(value)) = arguments.get_mut(1)
        && let Some(pattern) = value.as_str()
    {
        let compiled = Pattern { regex: compile(pattern)?, length: char_count(pattern) };
        *value = Value::opaque(compiled);
    }
    Ok(())
}

fn with<'a>(pattern: &Value<'a>, run: impl FnOnce(&Regex) -> Value<'a>) -> Result<Value<'a>, EvalError> {
    match (pattern.downcast::<Pattern>(), pattern.as_str()) {
        (Some(pattern), _) => Ok(run(&pattern.regex)),
        (None, Some(text)) => Ok(run(&compile(text)?)),
        (None, None) => Err(EvalError::NoOverload),
    }
}

/// Compiles a pattern as RE2 reads it.
fn compile(pattern: &str) -> Result<Regex, EvalError> {
    let compiled = regex::RegexBuilder::new(&ascii_classes(pattern)).size_limit(COMPILED_LIMIT).build();
    compiled.map_err(|error| {
        let text = error.to_string();
        let reason = text.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
        EvalError::failed(format!("error parsing regexp: {reason}: `{pattern}`"))
    })
}

/// The pattern with the classes that RE2 means for ASCII only spelled out.
fn ascii_classes(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len());
    let mut chars = pattern.chars();
    let mut quoted = false;
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            // What stands between \Q and \E is text.
            Some('Q') if !quoted => {
                quoted = true;
                let rest: String = chars.clone().collect();
                let literal = rest.split("\\E").next().unwrap_or_default();
                out.push_str(&regex::escape(literal));
                for _ in 0..literal.chars().count() {
                    chars.next();
                }
            }
            Some('E') if quoted => quoted = false,
            Some('d') => out.push_str("[0-9]"),
            Some('D') => out.push_str("[^0-9]"),
            Some('w') => out.push_str("[0-9A-Za-z_]"),
            Some('W') => out.push_str("[^0-9A-Za-z_]"),
            Some('s') => out.push_str("[\\t\\n\\x0c\\r ]"),
            Some('S') => out.push_str("[^\\t\\n\\x0c\\r ]"),
            Some('b') => out.push_str("(?-u:\\b)"),
            Some('B') => out.push_str("(?-u:\\B)"),
            // The very end of the text.
            Some('z') => out.push_str("\\z"),
            Some(other) => {
                out.push('\\');
                out.push(other);
            }
            None => out.push('\\'),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::compile;

    #[test]
    fn classes_are_ascii() {
        for (pattern, text, matches) in [
            (r"^\d$", "٣", false),
            (r"^\d$", "3", true),
            (r"^\w$", "é", false),
            (r"^[\w.]+$", "a.b", true),
            (r"^[^\s]$", "\u{a0}", true),
            (r"^.$", "é", true),
            (r"\bb", "éb", true),
            (r"^\Qa.b\E$", "a.b", true),
            (r"^\Qa.b\E$", "axb", false),
            (r"\\d", "\\d", true),
            (r"(?i)^ABC$", "abc", true),
        ] {
            assert_eq!(compile(pattern).unwrap().is_match(text), matches, "{pattern} {text}");
        }
        for bad in ["[", "(?=a)", r"(a)\1", "a{1001}{1001}{1001}"] {
            assert!(compile(bad).is_err(), "{bad}");
        }
    }
}
