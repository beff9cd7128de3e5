//! The results of decryptions.

use std::collections::HashMap;
use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;

/// The text about a value without encryption or with fewer bytes than its format has.
pub(crate) const TOO_SHORT: &str = "the stored data was shorter than the required size";

/// The reason why a value was not decrypted.
#[derive(Debug)]
pub(crate) enum ReadError {
    /// The value is damaged, or its key is not configured.
    Damaged(String),
    /// The provider is not available. A later read may succeed.
    Unavailable(String),
    /// The data encryption key must be decrypted by a KMS plugin first.
    MissingDek(Box<dyn MissingDek>),
}

/// A data encryption key that is not in memory.
#[async_trait]
pub(crate) trait MissingDek: std::fmt::Debug + Send + Sync {
    /// A digest of all that determines the key.
    fn digest(&self) -> [u8; 32];

    /// Lets the plugin decrypt the key. The next decryption of the value then finds the key.
    async fn load(&self) -> Result<(), ReadError>;
}

/// The keys that were not decrypted for earlier values of a page or batch. The plugin is asked once for each of them.
#[derive(Default)]
pub(crate) struct FailedKeys(HashMap<[u8; 32], Failure>);

#[derive(Clone)]
enum Failure {
    Damaged(String),
    Unavailable(String),
}

impl FailedKeys {
    /// The earlier failure of a key.
    pub(crate) fn get(&self, missing: &dyn MissingDek) -> Option<ReadError> {
        self.0.get(&missing.digest()).cloned().map(|failure| match failure {
            Failure::Damaged(reason) => ReadError::Damaged(reason),
            Failure::Unavailable(reason) => ReadError::Unavailable(reason),
        })
    }

    /// Remembers the failure of the key with this digest.
    pub(crate) fn insert(&mut self, digest: [u8; 32], error: &ReadError) {
        let failure = match error {
            ReadError::Damaged(reason) => Failure::Damaged(reason.clone()),
            ReadError::Unavailable(reason) => Failure::Unavailable(reason.clone()),
            ReadError::MissingDek(_) => return,
        };
        self.0.insert(digest, failure);
    }
}

/// A decrypted value. `Debug` shows its length only.
pub(crate) struct Plain {
    pub(crate) value: Bytes,
    /// Whether the next write encrypts the object in another way.
    pub(crate) is_stale: bool,
}

impl fmt::Debug for Plain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plain")
            .field("bytes", &self.value.len())
            .field("is_stale", &self.is_stale)
            .finish_non_exhaustive()
    }
}

/// Joins error texts as kube-apiserver does; None without errors.
pub(crate) fn join(mut errors: Vec<String>) -> Option<String> {
    let mut seen = std::collections::BTreeSet::new();
    errors.retain(|error| seen.insert(error.clone()));
    match errors.as_slice() {
        [] => None,
        [error] => Some(error.clone()),
        errors => Some(format!("[{}]", errors.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_shows_no_plain_value() {
        let plain = Plain { value: Bytes::from_static(b"secret"), is_stale: true };
        assert_eq!(format!("{plain:?}"), "Plain { bytes: 6, is_stale: true, .. }");
    }
}
