//! Paths of fields in definitions: `.spec.name` and `.spec['name']`, resolved against a schema.

use apimachinery::field::FieldPath;

use super::super::node::Node;

/// Resolves a path; None if it is malformed or refers to no declared field.
pub(in super::super) fn resolve(node: &Node, text: &str) -> Option<FieldPath> {
    let (mut path, mut node) = (FieldPath::root(), node);
    let mut tokens = Tokens { rest: text };
    while let Some(token) = tokens.next() {
        let name = match token {
            "." => tokens.next()?.to_owned(),
            "[" => {
                let name = unescape(tokens.next()?.strip_prefix('\'')?.strip_suffix('\'')?)?;
                if tokens.next()? != "]" {
                    return None;
                }
                name
            }
            _ => return None,
        };
        (path, node) = if node.properties.is_empty() {
            (path.key(&name), node.additional()?)
        } else {
            (path.child(&name), node.property(&name)?)
        };
    }
    Some(path)
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

/// Replaces the escapes of a quoted name; None for an unknown escape.
fn unescape(text: &str) -> Option<String> {
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
            Some(_) => return None,
            None => out.push('\\'),
        }
    }
    Some(out)
}
