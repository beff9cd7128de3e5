//! The names in field paths of rules and selectable fields.
//!
//! # Contract
//!
//! A path is a sequence of `.name` and `['name']`. A quoted name has the escapes of kube-apiserver.

use std::borrow::Cow;
use std::iter;

/// Syntax of the names of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathSyntax {
    /// Only `.name`.
    Dotted,
    /// `.name` and `['name']`.
    DottedOrQuoted,
}

/// The error of an invalid path, with the text of kube-apiserver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FieldPathError {
    /// The path ends within a step.
    #[error("unexpected end of JSON path")]
    End,
    /// The schema declares no such field.
    #[error("does not refer to a valid field")]
    UnknownField,
    /// The syntax of the path has no quoted names.
    #[error("array notation is not allowed")]
    Bracket,
    /// The text in brackets has no quotes.
    #[error("expected single quoted string but got {0}")]
    Unquoted(String),
    /// A text follows the quoted name.
    #[error("expected ] but got {0}")]
    UnclosedBracket(String),
    /// A text is no step.
    #[error("expected [ or . but got: {0}")]
    Step(String),
    /// A quoted name has an unknown escape.
    #[error("invalid string literal: invalid escape char \\{0}")]
    Escape(char),
}

/// Returns the names of a path in order. Callers stop at the first error.
pub(crate) fn path_names(
    path: &str,
    syntax: PathSyntax,
) -> impl Iterator<Item = Result<Cow<'_, str>, FieldPathError>> {
    let mut tokens = Tokens { rest: path };
    iter::from_fn(move || tokens.next().map(|token| tokens.read_name(token, syntax)))
}

/// Tokens of a path: `.`, `[`, `]`, quoted names and other text.
struct Tokens<'a> {
    rest: &'a str,
}

impl<'a> Tokens<'a> {
    /// Reads the name after the first token of a step.
    fn read_name(&mut self, token: &str, syntax: PathSyntax) -> Result<Cow<'a, str>, FieldPathError> {
        match token {
            "[" if syntax == PathSyntax::Dotted => Err(FieldPathError::Bracket),
            "[" => {
                let quoted = self.next().ok_or(FieldPathError::End)?;
                let inner = quoted.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\''));
                let inner = inner.ok_or_else(|| FieldPathError::Unquoted(quoted.to_owned()))?;
                let name = unescape(inner)?;
                match self.next() {
                    Some("]") => Ok(Cow::Owned(name)),
                    Some(other) => Err(FieldPathError::UnclosedBracket(other.to_owned())),
                    None => Err(FieldPathError::End),
                }
            }
            "." => self.next().map(Cow::Borrowed).ok_or(FieldPathError::End),
            other => Err(FieldPathError::Step(other.to_owned())),
        }
    }

    fn next(&mut self) -> Option<&'a str> {
        let first = self.rest.bytes().next()?;
        let end = if matches!(first, b'.' | b'[' | b']') {
            1
        } else if first == b'\'' {
            let bytes = self.rest.as_bytes();
            let closes = |at: &usize| bytes.get(*at) == Some(&b'\'') && bytes.get(at - 1) != Some(&b'\\');
            (1..bytes.len()).find(closes).map_or(self.rest.len(), |at| at + 1)
        } else {
            self.rest.find(['.', '[', ']']).unwrap_or(self.rest.len())
        };
        let (token, rest) = self.rest.split_at_checked(end)?;
        self.rest = rest;
        Some(token)
    }
}

/// Replaces the escapes of a quoted name.
fn unescape(text: &str) -> Result<String, FieldPathError> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        // A final backslash has no pair and stays.
        let Some(escape) = chars.next() else {
            out.push('\\');
            break;
        };
        out.push(match escape {
            'a' => '\u{7}',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'v' => '\u{b}',
            '\'' | '\\' => escape,
            other => return Err(FieldPathError::Escape(other)),
        });
    }
    Ok(out)
}
