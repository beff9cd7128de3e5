//! Label and field selectors (requirements D-QP-45, D-QP-46).

pub mod field;
pub mod label;
pub mod syntax;

/// Invalid selector. The text is part of a 400 response and equals that of kube-apiserver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// A label selector has a token at a wrong position.
    #[error("found '{found}', expected: {expected}")]
    UnexpectedToken {
        /// The token.
        found: String,
        /// The tokens that are valid at the position.
        expected: &'static str,
    },
    /// `in` or `notin` has no list.
    #[error("found '{0}' expected: '('")]
    MissingList(String),
    /// A requirement of a label selector is invalid.
    #[error("unable to parse requirement: {0}")]
    Requirement(#[source] Box<SelectorError>),
    /// A key or a value of a label selector violates the rules of labels.
    #[error("{0}")]
    InvalidLabel(String),
    /// A term of a field selector has no operator.
    #[error("invalid selector: '{selector}'; can't understand '{term}'")]
    MissingOperator {
        /// The whole selector.
        selector: String,
        /// The term.
        term: String,
    },
    /// A value of a field selector has a backslash before a character that needs none.
    #[error("invalid field selector: invalid escape sequence: \\{0}")]
    InvalidEscape(String),
    /// A value of a field selector has a comma or an equals sign without a backslash.
    ///
    /// The text contains the code point, as in kube-apiserver.
    #[error("invalid field selector: unescaped character in value: {}", u32::from(*.0))]
    Unescaped(char),
}

impl From<SelectorError> for String {
    fn from(error: SelectorError) -> Self {
        error.to_string()
    }
}
