//! The error for a value of a wrong type.

/// A value whose JSON type or text the schema rejects; the response is 400.
///
/// `Display` is the text after `ConfigMap in version "v1" cannot be handled as a ConfigMap: ` in the
/// response.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{message}")]
pub struct TypeError {
    /// The path of the field: `spec.containers[0].name`.
    pub path: String,
    /// The error, in the wording of the reference where known.
    pub message: String,
}
