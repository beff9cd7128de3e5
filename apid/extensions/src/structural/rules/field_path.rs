//! Paths of fields in definitions: `.spec.name` and `.spec['name']`, resolved against a schema.

use apimachinery::field::FieldPath;

use super::super::node::Node;

/// A path that refers to a declared field.
pub(in super::super) struct Resolved<'a> {
    pub(in super::super) path: FieldPath,
    pub(in super::super) node: &'a Node,
}

const UNKNOWN: &str = "does not refer to a valid field";

/// Resolves a path; `allows_brackets` permits quoted names in brackets.
///
/// # Errors
///
/// The reason, in the words of the reference.
pub(in super::super) fn resolve<'a>(
    node: &'a Node,
    text: &str,
    allows_brackets: bool,
) -> Result<Resolved<'a>, String> {
    let mut resolved = Resolved { path: FieldPath::root(), node };
    let mut tokens = Tokens { rest: text };
    while let Some(token) = tokens.next() {
        let name = match token {
            "." => tokens.next().ok_or("unexpected end of JSON path")?.to_owned(),
            "[" if !allows_brackets => return Err("array notation is not allowed".to_owned()),
            "[" => {
                let quoted = tokens.next().ok_or("unexpected end of JSON path")?;
                let inner = quoted.strip_prefix('\'').and_then(|quoted| quoted.strip_suffix('\''));
                let inner = inner.ok_or_else(|| format!("expected single quoted string but got {quoted}"))?;
                let name = unescape(inner)?;
                match tokens.next() {
                    Some("]") => name,
                    Some(other) => return Err(format!("expected ] but got {other}")),
                    None => return Err("unexpected end of JSON path".to_owned()),
                }
            }
            other => return Err(format!("expected [ or . but got: {other}")),
        };
        resolved.step(&name)?;
    }
    Ok(resolved)
}

impl Resolved<'_> {
    fn step(&mut self, name: &str) -> Result<(), String> {
        let (path, node) = if self.node.properties.is_empty() {
            (self.path.key(name), self.node.additional())
        } else {
            (self.path.child(name), self.node.property(name))
        };
        self.path = path;
        self.node = node.ok_or(UNKNOWN)?;
        Ok(())
    }
}

/// Delimiters, quoted strings and other texts.
struct Tokens<'a> {
    rest: &'a str,
}

impl<'a> Iterator for Tokens<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let first = self.rest.chars().next()?;
        let length = match first {
            '.' | '[' | ']' => 1,
            '\'' => self.quoted(),
            _ => self.rest.find(['.', '[', ']']).unwrap_or(self.rest.len()),
        };
        let (token, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(token)
    }
}

impl Tokens<'_> {
    /// Length of a quoted string; the whole rest if the quote does not end.
    fn quoted(&self) -> usize {
        let mut before = '\'';
        for (at, c) in self.rest.char_indices().skip(1) {
            if c == '\'' && before != '\\' {
                return at + 1;
            }
            before = c;
        }
        self.rest.len()
    }
}

fn unescape(text: &str) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('a') => out.push('\u{7}'),
            Some('b') => out.push('\u{8}'),
            Some('f') => out.push('\u{c}'),
            Some('n') => out.push('\n'),
            Some('r') => out.push('\r'),
            Some('t') => out.push('\t'),
            Some('v') => out.push('\u{b}'),
            Some(c @ ('\'' | '\\')) => out.push(c),
            Some(other) => return Err(format!("invalid string literal: invalid escape char \\{other}")),
            None => out.push('\\'),
        }
    }
    Ok(out)
}
