//! The results of decryptions.

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
    /// Lets the plugin decrypt the key. The next decryption of the value then finds the key.
    async fn load(&self) -> Result<(), ReadError>;
}

/// A decrypted value.
#[derive(Debug)]
pub(crate) struct Plain {
    pub(crate) value: Bytes,
    /// Whether the next write encrypts the object in another way.
    pub(crate) is_stale: bool,
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
