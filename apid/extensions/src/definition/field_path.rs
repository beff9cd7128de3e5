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

const NO_FIELD: &str = "does not refer to a valid field";
const END: &str = "unexpected end of JSON path";

/// Resolves a path.
///
/// # Errors
///
/// The reason for which the path is invalid.
pub(crate) fn resolve<'a>(
    path: &str,
    schema: Props<'a>,
    syntax: PathSyntax,
) -> Result<ResolvedPath<'a>, String> {
    let mut resolved = ResolvedPath { text: String::new(), root: String::new(), schema: Some(schema) };
    let mut tokens = Tokens { rest: path };
    while let Some(token) = tokens.next() {
        match token {
            "[" if syntax == PathSyntax::Dotted => return Err("array notation is not allowed".to_owned()),
            "[" => {
                let quoted = tokens.next().ok_or(END)?;
                let inner = quoted.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\''));
                let inner = inner.ok_or_else(|| format!("expected single quoted string but got {quoted}"))?;
                resolved.descend(&unescape(inner)?)?;
                match tokens.next() {
                    Some("]") => {}
                    Some(other) => return Err(format!("expected ] but got {other}")),
                    None => return Err(END.to_owned()),
                }
            }
            "." => {
                let name = tokens.next().ok_or(END)?;
                resolved.descend(name)?;
            }
            other => return Err(format!("expected [ or . but got: {other}")),
        }
    }
    Ok(resolved)
}

impl ResolvedPath<'_> {
    /// Continues with a property or with a key.
    fn descend(&mut self, name: &str) -> Result<(), String> {
        let schema = self.schema.ok_or(NO_FIELD)?;
        if self.text.is_empty() {
            name.clone_into(&mut self.root);
        }
        if schema.has_properties() {
            self.schema = Some(schema.property(name).ok_or(NO_FIELD)?);
            if !self.text.is_empty() {
                self.text.push('.');
            }
            self.text.push_str(name);
            return Ok(());
        }
        self.schema = match schema.additional() {
            Additional::Schema(values) => Some(values),
            Additional::Allowed(_) => None,
            Additional::Absent => return Err(NO_FIELD.to_owned()),
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
fn unescape(text: &str) -> Result<String, String> {
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
            other => return Err(format!("invalid string literal: invalid escape char \\{other}")),
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
        let text = |path: &str| resolve(path, schema, PathSyntax::DottedOrQuoted).map(|found| found.text);
        for (path, expected) in [
            (".a", Ok("a")),
            (".a['it\\'s']", Ok("a.it's")),
            ("['s']", Ok("s")),
            (".m.key.x", Ok("m[key].x")),
            (".m['a.b']", Ok("m[a.b]")),
            (".free.any", Ok("free[any]")),
            (".free.any.more", Err(NO_FIELD)),
            (".b", Err(NO_FIELD)),
            (".s.x", Err(NO_FIELD)),
            (".", Err(END)),
            ("a", Err("expected [ or . but got: a")),
            (".a[0]", Err("expected single quoted string but got 0")),
            (".a['it\\'s'", Err(END)),
            (".a['it\\'s'.", Err("expected ] but got .")),
            (".a['\\x']", Err("invalid string literal: invalid escape char \\x")),
        ] {
            assert_eq!(text(path), expected.map(str::to_owned).map_err(str::to_owned), "{path}");
        }
        let dotted = resolve("['s']", schema, PathSyntax::Dotted).map(|found| found.text);
        assert_eq!(dotted, Err("array notation is not allowed".to_owned()));
    }
}
