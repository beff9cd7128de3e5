//! Key material that is cleared from memory and never shown.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

/// Bytes of a key. `Debug` shows the length only.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretBytes(Zeroizing<Vec<u8>>);

impl SecretBytes {
    /// Takes over the bytes of a key.
    pub fn new(bytes: Vec<u8>) -> Self {
        SecretBytes(Zeroizing::new(bytes))
    }

    /// Decodes a key in base64 with padding; None if the text is no base64. As in Go, line breaks are ignored.
    pub(crate) fn from_base64(text: &str) -> Option<Self> {
        if text.contains(['\n', '\r']) {
            let joined = Zeroizing::new(text.replace(['\n', '\r'], ""));
            return STANDARD.decode(joined.as_bytes()).ok().map(SecretBytes::new);
        }
        STANDARD.decode(text).ok().map(SecretBytes::new)
    }

    /// The bytes of the key.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} secret bytes", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_shows_no_key_material() {
        let key = SecretBytes::from_base64("c2VjcmV0\na2V5\r\n").unwrap();
        assert_eq!(key.expose(), b"secretkey");
        assert_eq!(format!("{key:?}"), "9 secret bytes");
        assert!(SecretBytes::from_base64("%%%").is_none());
    }
}
