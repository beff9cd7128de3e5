//! The error for a value of a wrong type.

use apimachinery::codec::DecodeError;

/// A value whose JSON type or text the schema rejects; the response is 400. Or an object that exceeds the decode
/// budget with its defaults; the response is 413.
///
/// `Display` is the text after `ConfigMap in version "v1" cannot be handled as a ConfigMap: ` in the
/// response.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{message}")]
pub struct TypeError {
    /// The path of the field: `spec.containers[0].name`.
    pub path: String,
    /// The error, in the wording of kube-apiserver where known.
    pub message: String,
    /// The limit that the object exceeds with its defaults; None for a rejected value.
    pub excess: Option<DecodeError>,
}

impl TypeError {
    /// The error for a value at a path.
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        TypeError { path: path.into(), message: message.into(), excess: None }
    }
}

impl From<DecodeError> for TypeError {
    fn from(excess: DecodeError) -> Self {
        TypeError { path: String::new(), message: excess.to_string(), excess: Some(excess) }
    }
}
