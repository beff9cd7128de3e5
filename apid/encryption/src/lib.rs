//! Encryption at rest: a transformer between the store contract and an engine.
//!
//! # Contract
//!
//! [`Encryption`] wraps a [`Store`](storage::Store) and its observer. Above them all values are plain. The engine, with
//! its journals, tables and history, gets encrypted values only, and so do backups. The configuration decides by
//! resource. Values have the format of kube-apiserver, and are bound to the key that an object has there.
//!
//! A value that cannot be decrypted becomes [`storage::unreadable_value`], so that it does not stop the reads of other
//! objects. A provider that is not available now fails the read with `Unavailable`.
//!
//! # Invariants
//!
//! INVARIANT (no plain text below): no plain value of a resource with a rule reaches the engine.
//! INVARIANT (secrets stay secret): no error, log line, metric or `Debug` output contains a key or a plain value.

mod configuration;
mod decryption;
pub mod kms;
mod metrics;
mod providers;
mod reload;
mod rewrite;
mod secret;
mod store;
mod transformers;

pub use configuration::{
    Configuration, ConfigurationError, KmsConfiguration, NamedKey, ProviderConfiguration, Rule,
};
pub use metrics::EncryptionMetrics;
pub use reload::{ReloadOptions, Reloader};
pub use rewrite::{RewriteError, RewriteProgress, rewrite};
pub use secret::SecretBytes;
pub use store::{Encryption, EncryptionError};
pub use transformers::{Keyspace, StoredResource};
