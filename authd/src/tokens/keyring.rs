//! The keys of an issuer: the one that signs, and all that verify.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use super::keys::{SigningKey, VerifyingKey};

/// Keys that belong together; replaced as a whole.
#[derive(Debug, Default)]
pub struct Keyring {
    /// The key that signs. None: no tokens are issued.
    pub(super) signing: Option<Arc<SigningKey>>,
    keys: Vec<Arc<VerifyingKey>>,
    /// Where each key stands, by its name.
    places: HashMap<String, usize>,
}

impl Keyring {
    /// The key that signs verifies, too; a key that comes twice counts once.
    pub fn new(signing: Option<Arc<SigningKey>>, verifying: &[Arc<VerifyingKey>]) -> Self {
        let own = signing.iter().map(|key| &key.public);
        let mut ring = Keyring { signing: signing.clone(), ..Keyring::default() };
        for key in own.chain(verifying) {
            let place = ring.keys.len();
            if let Entry::Vacant(free) = ring.places.entry(key.kid.clone()) {
                free.insert(place);
                ring.keys.push(Arc::clone(key));
            }
        }
        ring
    }

    /// All keys, the one that signs first.
    pub(super) fn keys(&self) -> impl Iterator<Item = &VerifyingKey> {
        self.keys.iter().map(|key| &**key)
    }

    /// The keys that may have signed a token: the one it names, or all, since a token may leave the name out, or have one
    /// that another server gave to the same key.
    pub(super) fn candidates(&self, name: Option<&str>) -> impl Iterator<Item = &VerifyingKey> {
        let named = name.and_then(|name| self.keys.get(*self.places.get(name)?));
        named.into_iter().chain(self.keys.iter().filter(move |_| named.is_none())).map(|key| &**key)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}
