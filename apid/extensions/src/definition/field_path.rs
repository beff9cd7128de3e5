//! Field paths of rules and selectable fields, resolved in a structural schema.
//!
//! # Contract
//!
//! Each name of a path must be a property, or any key where the schema has `additionalProperties`.

use super::props::{AdditionalProperties, Props};
use crate::path_names::{FieldPathError, PathSyntax, path_names};

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

/// Resolves a path.
pub(crate) fn resolve<'a>(
    path: &str,
    schema: Props<'a>,
    syntax: PathSyntax,
) -> Result<ResolvedPath<'a>, FieldPathError> {
    let mut resolved = ResolvedPath { text: String::new(), root: String::new(), schema: Some(schema) };
    for name in path_names(path, syntax) {
        resolved.descend(&name?)?;
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
            AdditionalProperties::Schema(values) => Some(values),
            AdditionalProperties::Allowed(_) => None,
            AdditionalProperties::Absent => return Err(FieldPathError::UnknownField),
        };
        self.text.push_str(&format!("[{name}]"));
        Ok(())
    }
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
        let schema = Props::from_value(&schema).unwrap();
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
