//! The providers: each one transforms values that begin with the same prefix.
//!
//! # Reference
//!
//! Formats and error texts are those of kube-apiserver, so that each can read the values of the other.

pub(crate) mod ciphers;

use std::sync::Arc;

use bytes::Bytes;
use storage::ENCRYPTED_PREFIX;

use self::ciphers::Cipher;
use crate::configuration::{NamedKey, ProviderConfiguration};
use crate::decryption::{Plain, ReadError, join};
use crate::kms::KmsProvider;

/// The text about a stored value that no provider for its resource reads.
pub(crate) const NO_PREFIX: &str = "no matching prefix found";

/// A provider of a rule.
#[derive(Clone)]
pub(crate) enum Provider {
    /// Keys of the configuration.
    Keys(Arc<KeyProvider>),
    /// No encryption.
    Identity,
    /// A KMS plugin.
    Kms(Arc<KmsProvider>),
}

impl Provider {
    /// Creates a provider. `kms` returns the provider of a KMS plugin.
    ///
    /// # Errors
    ///
    /// The cryptographic library rejects a key.
    pub(crate) fn new(
        configuration: &ProviderConfiguration,
        kms: impl FnOnce(&str) -> Option<Arc<KmsProvider>>,
    ) -> Result<Self, String> {
        let keys = |name, keys: &[NamedKey], cipher: fn(&[u8]) -> Option<Cipher>| {
            KeyProvider::new(name, keys, cipher).map(|provider| Provider::Keys(Arc::new(provider)))
        };
        match configuration {
            ProviderConfiguration::AesCbc(named) => keys("aescbc", named, Cipher::aes_cbc),
            ProviderConfiguration::AesGcm(named) => keys("aesgcm", named, Cipher::aes_gcm),
            ProviderConfiguration::Secretbox(named) => keys("secretbox", named, Cipher::secretbox),
            ProviderConfiguration::Identity => Ok(Provider::Identity),
            ProviderConfiguration::Kms(configured) => kms(&configured.name)
                .map(Provider::Kms)
                .ok_or_else(|| format!("no provider {}", configured.name)),
        }
    }

    /// The bytes before each value of the provider; empty for the identity.
    pub(crate) fn prefix(&self) -> &str {
        match self {
            Provider::Keys(provider) => &provider.prefix,
            Provider::Identity => "",
            Provider::Kms(provider) => provider.prefix(),
        }
    }

    /// Encrypts a value. `context` is the storage key of the object in kube-apiserver.
    ///
    /// # Errors
    ///
    /// The provider is not available, as text.
    pub(crate) fn encrypt(&self, plain: &Bytes, context: &str) -> Result<Bytes, String> {
        match self {
            Provider::Keys(provider) => provider.encrypt(plain, context).map(Bytes::from),
            Provider::Identity => Ok(plain.clone()),
            Provider::Kms(provider) => provider.encrypt(plain, context).map(Bytes::from),
        }
    }

    /// Decrypts a value that begins with the prefix.
    pub(crate) fn decrypt(&self, stored: &Bytes, context: &str) -> Result<Plain, ReadError> {
        let body = stored.get(self.prefix().len()..).unwrap_or_default();
        match self {
            Provider::Keys(provider) => provider.decrypt(body, context),
            Provider::Identity if stored.starts_with(ENCRYPTED_PREFIX) => {
                Err(ReadError::Damaged(storage::IDENTITY_READ_ENCRYPTED.to_owned()))
            }
            Provider::Identity => Ok(Plain { value: stored.clone(), is_stale: false }),
            Provider::Kms(provider) => provider.decrypt(body, context),
        }
    }
}

/// A provider with keys of the configuration.
pub(crate) struct KeyProvider {
    prefix: String,
    /// The text about a value with another key name.
    no_key: &'static str,
    /// Name of the key with a colon, and the key.
    keys: Vec<(String, Cipher)>,
}

impl KeyProvider {
    fn new(name: &str, keys: &[NamedKey], cipher: impl Fn(&[u8]) -> Option<Cipher>) -> Result<Self, String> {
        let keys = keys.iter().map(|key| {
            let cipher = cipher(key.secret.expose());
            let cipher = cipher.ok_or_else(|| format!("{name}: the key `{}` is not usable", key.name))?;
            Ok((format!("{}:", key.name), cipher))
        });
        let no_key = match name {
            "secretbox" => "no matching key was found for the provided Secretbox transformer",
            _ => "no matching key was found for the provided AES transformer",
        };
        Ok(KeyProvider {
            prefix: format!("k8s:enc:{name}:v1:"),
            no_key,
            keys: keys.collect::<Result<_, String>>()?,
        })
    }

    fn encrypt(&self, plain: &[u8], context: &str) -> Result<Vec<u8>, String> {
        let (name, cipher) = self.keys.first().ok_or_else(|| self.no_key.to_owned())?;
        let mut out =
            Vec::with_capacity(self.prefix.len() + name.len() + plain.len() + ciphers::MAX_OVERHEAD);
        out.extend_from_slice(self.prefix.as_bytes());
        out.extend_from_slice(name.as_bytes());
        cipher.encrypt(plain, context.as_bytes(), &mut out)?;
        Ok(out)
    }

    fn decrypt(&self, body: &[u8], context: &str) -> Result<Plain, ReadError> {
        let mut errors = Vec::new();
        for (index, (name, cipher)) in self.keys.iter().enumerate() {
            // A file may use a name twice, so a key that fails does not end the search.
            let Some(encrypted) = body.strip_prefix(name.as_bytes()) else { continue };
            match cipher.decrypt(encrypted, context.as_bytes()) {
                Ok(plain) => return Ok(Plain { value: plain.into(), is_stale: index > 0 }),
                Err(error) => errors.push(error.to_owned()),
            }
        }
        Err(ReadError::Damaged(join(errors).unwrap_or_else(|| self.no_key.to_owned())))
    }
}
