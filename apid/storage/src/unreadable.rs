//! Values that a layer above the engine could not decrypt.
//!
//! # Contract
//!
//! Such a value takes the place of the object in rows and changes, so that one damaged object does not stop the reads
//! of others. It is neither JSON nor CBOR, so each decoder rejects it, and [`unreadable_reason`] says why.

use bytes::Bytes;

/// The bytes with which the values of all encryption providers begin, as in kube-apiserver.
pub const ENCRYPTED_PREFIX: &[u8] = b"k8s:enc:";

/// The text of kube-apiserver about an encrypted value of a resource without encryption.
pub const IDENTITY_READ_ENCRYPTED: &str = "identity transformer tried to read encrypted data";

/// The beginning of a value that stands for an unreadable object.
const MARK: &[u8] = b"\0unreadable\0";

/// The value that stands for an object that cannot be decrypted.
pub fn unreadable_value(reason: &str) -> Bytes {
    [MARK, reason.as_bytes()].concat().into()
}

/// The reason why a value cannot be decrypted; None for any other value.
///
/// A value that is encrypted here, above all layers, has no provider.
pub fn unreadable_reason(value: &[u8]) -> Option<&str> {
    if value.starts_with(ENCRYPTED_PREFIX) {
        return Some(IDENTITY_READ_ENCRYPTED);
    }
    std::str::from_utf8(value.strip_prefix(MARK)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_value_has_its_reason() {
        assert_eq!(unreadable_reason(&unreadable_value("wrong key")), Some("wrong key"));
        assert_eq!(unreadable_reason(b"k8s:enc:aesgcm:v1:k:"), Some(IDENTITY_READ_ENCRYPTED));
        assert_eq!(unreadable_reason(b"{}"), None);
        assert_eq!(unreadable_reason(b""), None);
    }
}
