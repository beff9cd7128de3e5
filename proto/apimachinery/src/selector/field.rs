//! Field selectors: `metadata.name=x,spec.nodeName!=y`, with `\\`, `\,` and `\=` in values.
//!
//! # Contract
//!
//! The grammar and the error texts are those of Kubernetes. Blanks belong to names and values. Terms are kept
//! sorted, so their order in the text makes no difference. The kind decides whether it supports a field.

use super::SelectorError;
use crate::attributes::{Operator, ParsedSelector, Requirement};

/// Parsed field selector. The default selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FieldSelector {
    terms: Box<[Term]>,
}

/// One comparison.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Term {
    field: Box<str>,
    /// Whether the field must have the value; otherwise the field must have another one.
    equal: bool,
    value: Box<str>,
}

impl FieldSelector {
    /// Parses the query parameter `fieldSelector`.
    ///
    /// # Errors
    ///
    /// See [`SelectorError`].
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut parts = split_terms(text);
        parts.sort_unstable();
        let terms = parts.into_iter().filter(|part| !part.is_empty()).map(|part| {
            let (field, equal, value) = split_term(part).ok_or_else(|| SelectorError::MissingOperator {
                selector: text.to_owned(),
                term: part.to_owned(),
            })?;
            Ok(Term { field: field.into(), equal, value: unescape(value)?.into() })
        });
        Ok(FieldSelector { terms: terms.collect::<Result<_, SelectorError>>()? })
    }

    /// Whether the selector selects everything.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// Returns the number of requirements.
    pub fn len(&self) -> usize {
        self.terms.len()
    }

    /// Iterates over the fields, for the check that the kind supports them.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        self.terms.iter().map(|term| &*term.field)
    }

    /// Returns the value that the selector requires of a field: `metadata.name=x` gives `x`.
    pub fn exact(&self, field: &str) -> Option<&str> {
        self.terms.iter().find(|term| term.equal && *term.field == *field).map(|term| &*term.value)
    }

    /// Whether an object matches; `field` returns the value of a field, `""` when unset.
    pub fn matches<'a>(&self, field: impl Fn(&str) -> &'a str) -> bool {
        self.terms.iter().all(|term| (field(&term.field) == &*term.value) == term.equal)
    }

    /// Converts to the form that authorization examines.
    pub fn requirements(&self) -> ParsedSelector {
        let requirement = |term: &Term| Requirement {
            key: term.field.clone().into_string(),
            operator: if term.equal { Operator::In } else { Operator::NotIn },
            values: vec![term.value.clone().into_string()],
        };
        ParsedSelector::Requirements(self.terms.iter().map(requirement).collect())
    }
}

/// Splits at commas without a backslash.
fn split_terms(text: &str) -> Vec<&str> {
    let mut escaped = false;
    text.split(|c| {
        let separates = c == ',' && !escaped;
        escaped = c == '\\' && !escaped;
        separates
    })
    .collect()
}

/// Splits a term into its field, whether the value must be equal, and the value with its backslashes.
fn split_term(term: &str) -> Option<(&str, bool, &str)> {
    let at = term.find(['=', '!']).and_then(|first| {
        // A `!` without a following `=` belongs to the name.
        (first..term.len())
            .find(|at| term.get(*at..).is_some_and(|rest| rest.starts_with("!=") || rest.starts_with('=')))
    })?;
    let (field, rest) = term.split_at_checked(at)?;
    let (operator, equal) = match rest {
        _ if rest.starts_with("!=") => ("!=", false),
        _ if rest.starts_with("==") => ("==", true),
        _ => ("=", true),
    };
    Some((field, equal, rest.strip_prefix(operator)?))
}

/// Removes the backslashes that escape `\\`, `,` and `=`.
fn unescape(value: &str) -> Result<String, SelectorError> {
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => out.push(c),
                other => {
                    return Err(SelectorError::InvalidEscape(other.map(String::from).unwrap_or_default()));
                }
            },
            ',' | '=' => return Err(SelectorError::Unescaped(c)),
            c => out.push(c),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the terms of a selector in their sorted order.
    fn parsed(text: &str) -> Result<Vec<(String, bool, String)>, String> {
        let selector = FieldSelector::parse(text).map_err(|error| error.to_string())?;
        Ok(selector.terms.iter().map(|t| (t.field.to_string(), t.equal, t.value.to_string())).collect())
    }

    #[test]
    fn field_selector_grammar_matches_reference() {
        let term = |field: &str, equal, value: &str| (field.to_owned(), equal, value.to_owned());
        for (text, expected) in [
            ("", vec![]),
            (",", vec![]),
            ("a=b", vec![term("a", true, "b")]),
            ("a==b", vec![term("a", true, "b")]),
            ("a!=b", vec![term("a", false, "b")]),
            ("a=", vec![term("a", true, "")]),
            ("=b", vec![term("", true, "b")]),
            ("b=2,,a!=1,", vec![term("a", false, "1"), term("b", true, "2")]),
            (" a = b ", vec![term(" a ", true, " b ")]),
            (r"a=x\,y\=z\\", vec![term("a", true, r"x,y=z\")]),
            (r"a=\\,b=1", vec![term("a", true, r"\"), term("b", true, "1")]),
            ("a!b=c", vec![term("a!b", true, "c")]),
        ] {
            assert_eq!(parsed(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn field_selector_errors_match_reference() {
        for (text, expected) in [
            ("a", "invalid selector: 'a'; can't understand 'a'"),
            ("a=b,c!", "invalid selector: 'a=b,c!'; can't understand 'c!'"),
            ("a=b=c", "invalid field selector: unescaped character in value: 61"),
            ("a===b", "invalid field selector: unescaped character in value: 61"),
            (r"a=\n", r"invalid field selector: invalid escape sequence: \n"),
            (r"a=b\", r"invalid field selector: invalid escape sequence: \"),
        ] {
            assert_eq!(parsed(text), Err(expected.to_owned()), "{text}");
        }
    }

    #[test]
    fn field_selector_matches_and_converts_to_requirements() {
        let selector = FieldSelector::parse("metadata.name=x,spec.nodeName!=").unwrap();
        let matches =
            |name, node| selector.matches(|field| if field == "metadata.name" { name } else { node });
        assert!(matches("x", "n1"));
        assert!(!matches("x", ""));
        assert!(!matches("y", "n1"));
        assert_eq!(selector.exact("metadata.name"), Some("x"));
        assert_eq!(selector.exact("spec.nodeName"), None);
        assert_eq!(selector.fields().collect::<Vec<_>>(), ["metadata.name", "spec.nodeName"]);
        let requirement = |key: &str, operator, value: &str| Requirement {
            key: key.to_owned(),
            operator,
            values: vec![value.to_owned()],
        };
        assert_eq!(
            selector.requirements(),
            ParsedSelector::Requirements(vec![
                requirement("metadata.name", Operator::In, "x"),
                requirement("spec.nodeName", Operator::NotIn, "")
            ])
        );
    }
}
