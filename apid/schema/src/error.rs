//! What is wrong with a value of a wrong type.

/// A value whose JSON type or text the schema does not allow. The body is refused with 400. `Display` is the text that
/// follows `ConfigMap in version "v1" cannot be handled as a ConfigMap: ` in the answer.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{message}")]
pub struct TypeError {
    /// The field: `spec.containers[0].name`.
    pub path: String,
    /// What is wrong, in the words of the reference where they can be known.
    pub message: String,
}
