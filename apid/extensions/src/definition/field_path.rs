//! Field paths of rules and selectable fields, resolved in a structural schema.
//!
//! # Contract
//!
//! A path is a sequence of `.name` and `['name']`. A quoted name has the escapes of kube-apiserver. Each name
//! must be a property, or any key where the schema has `additionalProperties`.

use super::props::{Additional, Props};

/// Resolved path.
#[derive(Debug)]
pub(crate) struct ResolvedPath<'a> {
    /// Normalized text: properties as `.name`, keys as `[key]`.
    pub(crate) text: String,
    /// The first name.
    pub(crate) root: String,
    /// The schema of the field; None if the schema does not describe it.
    pub(crate) schema: Option<Props<'a>>,
}

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

/// Resolves a path.
pub(crate) fn resolve<'a>(
    path: &str,
    schema: Props<'a>,
    syntax: PathSyntax,
) -> Result<ResolvedPath<'a>, FieldPathError> {
    let mut resolved = ResolvedPath { text: String::new(), root: String::new(), schema: Some(schema) };
    let mut tokens = Tokens { rest: path };
    while let Some(token) = tokens.next() {
        match token {
            "[" if syntax == PathSyntax::Dotted => return Err(FieldPathError::Bracket),
            "[" => {
                let quoted = tokens.next().ok_or(FieldPathError::End)?;
                let inner = quoted.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\''));
                let inner = inner.ok_or_else(|| FieldPathError::Unquoted(quoted.to_owned()))?;
                resolved.descend(&unescape(inner)?)?;
                match tokens.next() {
                    Some("]") => {}
                    Some(other) => return Err(FieldPathError::UnclosedBracket(other.to_owned())),
                    None => return Err(FieldPathError::End),
                }
            }
            "." => {
                let name = tokens.next().ok_or(FieldPathError::End)?;
                resolved.descend(name)?;
            }
            other => return Err(FieldPathError::Step(other.to_owned())),
        }
    }
    Ok(resolved)
}

impl ResolvedPath<'_> {
    /// Continues with a property or with a key.
    fn descend(&mut self, name: &str) -> Result<(), FieldPathError> {
        let schema = self.schema.ok_or(FieldPathError::UnknownField)?;
        if self.text.is_empty() {
            name.clone_into(&mut self.root);
        }
        if schema.has_properties() {
            self.schema = Some(schema.property(name).ok_or(FieldPathError::UnknownField)?);
            if !self.text.is_empty() {
                self.text.push('.');
            }
            self.text.push_str(name);
            return Ok(());
        }
        self.schema = match schema.additional() {
            Additional::Schema(values) => Some(values),
            Additional::Allowed(_) => None,
            Additional::Absent => return Err(FieldPathError::UnknownField),
        };
        self.text.push_str(&format!("[{name}]"));
        Ok(())
    }
}

/// Tokens of a path: `.`, `[`, `]`, quoted names and other text.
struct Tokens<'a> {
    rest: &'a str,
}

impl<'a> Tokens<'a> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn field_paths_resolve_in_schema() {
        let schema = json!({"type": "object", "properties": {
            "a": {"type": "object", "properties": {"it's": {"type": "string"}}},
            "m": {"type": "object", "additionalProperties": {"type": "object", "properties": {"x": {"type": "integer"}}}},
            "free": {"type": "object", "additionalProperties": true},
            "s": {"type": "string"},
        }});
        let schema = Props::of(&schema).unwrap();
        let text = |path: &str, syntax: PathSyntax| {
            resolve(path, schema, syntax).map(|found| found.text).map_err(|error| error.to_string())
        };
        for (path, expected) in [
            (".a", Ok("a")),
            (".a['it\\'s']", Ok("a.it's")),
            ("['s']", Ok("s")),
            (".m.key.x", Ok("m[key].x")),
            (".m['a.b']", Ok("m[a.b]")),
            (".free.any", Ok("free[any]")),
            (".free.any.more", Err("does not refer to a valid field")),
            (".b", Err("does not refer to a valid field")),
            (".s.x", Err("does not refer to a valid field")),
            (".", Err("unexpected end of JSON path")),
            ("a", Err("expected [ or . but got: a")),
            (".a[0]", Err("expected single quoted string but got 0")),
            (".a['it\\'s'", Err("unexpected end of JSON path")),
            (".a['it\\'s'.", Err("expected ] but got .")),
            (".a['\\x']", Err("invalid string literal: invalid escape char \\x")),
        ] {
            let expected = expected.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(text(path, PathSyntax::DottedOrQuoted), expected, "{path}");
        }
        assert_eq!(text("['s']", PathSyntax::Dotted), Err("array notation is not allowed".to_owned()));
    }
}
