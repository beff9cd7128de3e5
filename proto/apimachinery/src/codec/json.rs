//! JSON (RFC 8259).

use serde_json::Value;

use super::{DecodeError, Decoded, Limits};

/// Decodes one JSON document; anything but white space after it is an error.
///
/// # Errors
///
/// See [`DecodeError`].
pub fn decode(input: &[u8], limits: Limits) -> Result<Decoded, DecodeError> {
    if input.len() > limits.bytes {
        return Err(DecodeError::TooLarge(limits.bytes));
    }
    let value = serde_json::from_slice(input).map_err(|e| DecodeError::Syntax(e.to_string()))?;
    Ok(Decoded { value, duplicates: Vec::new() })
}

/// Encodes compactly.
pub fn encode(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}
