//! The keys of service-account tokens: the signing key and all verifying keys.

use std::sync::Arc;

use super::keys::{SigningKey, VerifyingKey};

/// A set of keys that is replaced as a whole.
#[derive(Debug, Default)]
pub struct Keyring {
    /// The signing key; None if no tokens are issued.
    pub(super) signing: Option<Arc<SigningKey>>,
    keys: Vec<Arc<VerifyingKey>>,
}

impl Keyring {
    /// Creates a keyring. The signing key also verifies. A key that occurs twice counts once.
    pub fn new(signing: Option<Arc<SigningKey>>, verifying: &[Arc<VerifyingKey>]) -> Self {
        let mut keys: Vec<Arc<VerifyingKey>> = Vec::new();
        for key in signing.iter().map(|key| &key.public).chain(verifying) {
            if !keys.iter().any(|known| known.kid == key.kid) {
                keys.push(Arc::clone(key));
            }
        }
        Keyring { signing, keys }
    }

    /// Returns all verifying keys, that of the signing key first.
    pub(super) fn keys(&self) -> impl Iterator<Item = &VerifyingKey> {
        self.keys.iter().map(|key| &**key)
    }

    /// Returns the keys that may have signed a token: the key with the id `key_id`, or all keys if `key_id`
    /// is None or no key has this id. Another server may have assigned another id to the same key.
    pub(super) fn candidates(&self, key_id: Option<&str>) -> impl Iterator<Item = &VerifyingKey> {
        let matching = key_id.and_then(|key_id| self.keys.iter().find(|key| key.kid == key_id));
        matching.into_iter().chain(self.keys.iter().filter(move |_| matching.is_none())).map(|key| &**key)
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}
