//! Parses text to [`ast`](crate::ast). The `cel` crate provides the grammar.
//!
//! # Invariants
//! INVARIANT (bounded recursion): the guard always runs before the parser.

use cel::Env;
use cel::IdedExpr;
use cel::common::ast::{EntryExpr, Expr as Parsed, LiteralValue, SourceInfo};

use crate::ast::{Expr, Kind, Literal, StructField};
use crate::error::{CompileError, Issue};
use crate::guard;

/// Parses one expression.
pub(crate) fn parse(source: &str) -> Result<Expr, CompileError> {
    let Some(at) = guard::inspect(source)? else { return parse_tokens(source, source) };
    // As in cel-go, the lexer drops the rest of the text, and the parser sees the tokens before the literal.
    let (tokens, rest) = source.split_at_checked(at).unwrap_or((source, ""));
    let message = format!("Syntax error: token recognition error at: '{rest}'");
    let mut error = CompileError::at(source, at, message);
    if let Err(other) = parse_tokens(source, tokens) {
        error.issues.extend(other.issues);
        error.issues.sort_by_key(|issue| (issue.line, issue.column));
    }
    Err(error)
}

/// Parses the tokens at the start of a source.
fn parse_tokens(source: &str, tokens: &str) -> Result<Expr, CompileError> {
    if tokens.trim().is_empty() {
        return Err(CompileError::at(source, 0, "Syntax error: mismatched input '<EOF>'"));
    }
    // An environment without macros keeps macro calls unexpanded.
    let parser = Env::default().with_optional_support(true).parser().max_recursion_depth(250);
    let (tree, positions) = parser.parse_with_source_info(tokens).map_err(|errors| {
        let mut issues: Vec<Issue> = Vec::new();
        for error in errors.errors {
            let line = usize::try_from(error.pos.0).unwrap_or(1).max(1);
            let column = usize::try_from(error.pos.1).unwrap_or(1).max(1);
            // The grammar reports unterminated input with a message that begins with `Incomplete`.
            let message = match error.msg {
                text if text.starts_with("Incomplete") => "Syntax error: incomplete expression".to_owned(),
                text if text.starts_with("invalid bytes literal") => "unable to unescape string".to_owned(),
                text => reserved_field_message(&text).unwrap_or(text),
            };
            issues.push(Issue::new(source, line, column, message));
        }
        CompileError { issues, plan: None }
    })?;
    Converter { positions }.convert(tree)
}

/// The message of cel-go about a reserved word in place of a field name; None for other messages.
fn reserved_field_message(message: &str) -> Option<String> {
    let word = message.strip_prefix("Syntax error: no viable alternative at input '.")?.strip_suffix('\'')?;
    let is_reserved = matches!(word, "true" | "false" | "null" | "in");
    is_reserved.then(|| format!("Syntax error: mismatched input '{word}' expecting IDENTIFIER"))
}

/// Converts the tree of the `cel` crate to [`ast`](crate::ast).
struct Converter {
    positions: SourceInfo,
}

impl Converter {
    /// Byte offset of a node in the source.
    fn offset(&self, id: u64) -> usize {
        self.positions.offset_for(id).map_or(0, |(start, _)| start as usize)
    }

    fn convert_all(&self, list: Vec<IdedExpr>) -> Result<Vec<Expr>, CompileError> {
        list.into_iter().map(|e| self.convert(e)).collect()
    }

    fn convert(&self, node: IdedExpr) -> Result<Expr, CompileError> {
        let at = self.offset(node.id);
        let kind = match node.expr {
            Parsed::Ident(name) => Kind::Ident(name),
            Parsed::Literal(literal) => Kind::Literal(match literal {
                LiteralValue::Boolean(b) => Literal::Bool(*b),
                LiteralValue::Bytes(b) => Literal::Bytes(b.to_vec()),
                LiteralValue::Double(d) => Literal::Double(*d),
                LiteralValue::Int(i) => Literal::Int(*i),
                LiteralValue::Null => Literal::Null,
                LiteralValue::String(s) => Literal::String(s.inner().to_owned()),
                LiteralValue::UInt(u) => Literal::Uint(*u),
            }),
            Parsed::Select(select) => Kind::Select(Box::new(self.convert(*select.operand)?), select.field),
            Parsed::Call(call) => Kind::Call {
                target: call.target.map(|target| self.convert(*target).map(Box::new)).transpose()?,
                name: call.func_name,
                arguments: self.convert_all(call.args)?,
            },
            Parsed::List(list) => {
                let optional = list.optional_indices;
                let elements = self.convert_all(list.elements)?;
                Kind::List(
                    elements.into_iter().enumerate().map(|(i, e)| (e, optional.contains(&i))).collect(),
                )
            }
            Parsed::Map(map) => {
                let mut entries = Vec::with_capacity(map.entries.len());
                for entry in map.entries {
                    if let EntryExpr::MapEntry(entry) = entry.expr {
                        entries.push((self.convert(entry.key)?, self.convert(entry.value)?, entry.optional));
                    }
                }
                Kind::Map(entries)
            }
            Parsed::Struct(message) => {
                let mut fields = Vec::with_capacity(message.entries.len());
                for entry in message.entries {
                    if let EntryExpr::StructField(field) = entry.expr {
                        let (name, value, is_optional) =
                            (field.field, self.convert(field.value)?, field.optional);
                        fields.push(StructField { name, value, is_optional });
                    }
                }
                Kind::Struct(message.type_name, fields)
            }
            Parsed::Comprehension(_) | Parsed::Unspecified => {
                return Err(CompileError::at(&self.positions.source, at, "unsupported expression"));
            }
        };
        Ok(Expr { at, kind })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parser_keeps_macro_calls_and_byte_offsets() {
        let tree = parse("'é' + x.all(i, i)").unwrap();
        let Kind::Call { name, arguments, .. } = tree.kind else { panic!("not a call") };
        assert_eq!((name.as_str(), tree.at), ("_+_", 5));
        let Kind::Call { name, .. } = &arguments[1].kind else { panic!("not a call") };
        assert_eq!((name.as_str(), arguments[1].at), ("all", 12));
    }

    #[test]
    fn syntax_errors_have_position() {
        for (source, expected) in [
            ("v.true", &["mismatched input 'true' expecting IDENTIFIER"][..]),
            (
                "{'x': 'q'q'}",
                &["mismatched input 'q' expecting {'}', ','}", "token recognition error at: ''}'"],
            ),
            ("1 == 'é", &["token recognition error at: ''é'", "mismatched input '<EOF>'"]),
        ] {
            let error = parse(source).unwrap_err();
            let messages: Vec<&str> = error.issues.iter().map(|issue| issue.message.as_str()).collect();
            assert_eq!(messages.len(), expected.len(), "{source}: {messages:?}");
            for (message, expected) in messages.iter().zip(expected) {
                assert!(message.starts_with(&format!("Syntax error: {expected}")), "{source}: {messages:?}");
            }
        }
        for source in ["1 +", "a; b", "", "  ", "f(", "'open", "a b"] {
            let error = parse(source).unwrap_err();
            assert!(!error.issues.is_empty(), "{source}");
            assert!(error.to_string().starts_with("ERROR: <input>:1:"), "{source}: {error}");
        }
    }
}
