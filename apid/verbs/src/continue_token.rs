//! Continue tokens: position of the next chunk of a list and the revision of the list.
//!
//! # Contract
//!
//! A token is opaque to clients and authenticated with an HMAC. A token returns 400 if it was modified, or
//! belongs to another store, another scope or other selectors (requirement D-PAGE-12). A token holds the
//! revision of the first chunk, the position of the next chunk in the scope, and the number of objects after
//! it. The compaction of the store's history limits its lifetime. The HMAC key is in the store, so tokens
//! survive a restart and are valid for every process on that store.
//!
//! A token grants no rights: each chunk is read under the authorization of the request that sends the token.

use std::fmt;
use std::hash::{Hash, Hasher};

use apimachinery::attributes::ParsedSelector;
use apimachinery::status::Status;
use aws_lc_rs::{constant_time, hmac, rand};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use storage::{Error, Op, Revision, Store};

/// Storage key of the HMAC key; outside the key prefixes of all kinds.
const KEY_ROW: &str = "/apid/continue-key";

/// Length of the HMAC key in bytes.
const KEY_BYTES: usize = 32;

/// Length of the truncated HMAC in bytes.
const MAC_BYTES: usize = 16;

/// First byte of every token: the format version.
const FORMAT_VERSION: u8 = 2;

/// HMAC key of continue tokens.
pub struct TokenKey(hmac::Key);

impl fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenKey")
    }
}

impl TokenKey {
    /// Returns the HMAC key of a store; creates the key in a new store.
    ///
    /// # Errors
    ///
    /// Errors of store reads and commits; `Corrupt` for a stored key of another length.
    pub async fn load_or_create(store: &dyn Store) -> Result<Self, Error> {
        let row = match store.get(KEY_ROW, None).await? {
            Some(row) => row,
            None => {
                let mut key_bytes = [0; KEY_BYTES];
                rand::fill(&mut key_bytes)
                    .map_err(|_| Error::Unavailable("the random number generator failed".to_owned()))?;
                let key_bytes = Bytes::copy_from_slice(&key_bytes);
                match store.commit(KEY_ROW, Op::Create(key_bytes.clone())).await {
                    Ok(_) => return Ok(TokenKey::new(&key_bytes)),
                    // Another process created the key first.
                    Err(Error::Exists(row)) => *row,
                    Err(error) => return Err(error),
                }
            }
        };
        match row.value.len() {
            KEY_BYTES => Ok(TokenKey::new(&row.value)),
            length => Err(Error::Corrupt(format!(
                "continue token key {KEY_ROW} has {length} bytes instead of {KEY_BYTES}"
            ))),
        }
    }

    fn new(bytes: &[u8]) -> Self {
        TokenKey(hmac::Key::new(hmac::HMAC_SHA256, bytes))
    }

    /// Returns the HMAC of a token's content for a list.
    fn mac(&self, list_fingerprint: u64, content: &[u8]) -> [u8; MAC_BYTES] {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(&[FORMAT_VERSION]);
        context.update(&list_fingerprint.to_be_bytes());
        context.update(content);
        context.sign().as_ref().first_chunk().copied().unwrap_or_default()
    }
}

/// The content of a continue token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    /// The revision of the whole list; 0 if that revision was compacted, so that the list continues in the
    /// newest state.
    pub(super) revision: Revision,
    /// Number of objects after the last delivered object, if known.
    pub(super) remaining: Option<u64>,
    /// The storage key of the last delivered object, without the key prefix of the list.
    pub(super) last_key: String,
}

impl Token {
    /// Encodes the token as `metadata.continue` of the list with this fingerprint.
    pub(super) fn encode(&self, key: &TokenKey, list_fingerprint: u64) -> String {
        let (revision, remaining) =
            (self.revision.0, self.remaining.map_or(0, |count| count.saturating_add(1)));
        let content =
            [&revision.to_be_bytes()[..], &remaining.to_be_bytes(), self.last_key.as_bytes()].concat();
        let mac = key.mac(list_fingerprint, &content);
        URL_SAFE_NO_PAD.encode([&[FORMAT_VERSION][..], &mac, &content].concat())
    }

    /// Decodes a token of the list with this fingerprint.
    ///
    /// # Errors
    ///
    /// 400: the token is malformed, was modified, or belongs to another list.
    pub(super) fn decode(text: &str, key: &TokenKey, list_fingerprint: u64) -> Result<Self, Status> {
        Self::parse(text, key, list_fingerprint)
            .ok_or_else(|| Status::bad_request("continue key is not valid: it does not belong to this list"))
    }

    fn parse(text: &str, key: &TokenKey, list_fingerprint: u64) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (format_version, rest) = bytes.split_first()?;
        let (mac, content) = rest.split_first_chunk::<MAC_BYTES>()?;
        if *format_version != FORMAT_VERSION
            || constant_time::verify_slices_are_equal(mac, &key.mac(list_fingerprint, content)).is_err()
        {
            return None;
        }
        let (revision, rest) = content.split_first_chunk::<8>()?;
        let (remaining, last_key) = rest.split_first_chunk::<8>()?;
        Some(Token {
            revision: Revision(u64::from_be_bytes(*revision)),
            remaining: u64::from_be_bytes(*remaining).checked_sub(1),
            last_key: std::str::from_utf8(last_key).ok()?.to_owned(),
        })
    }
}

/// Returns a hash of the scope and selectors of a list, which its continue tokens must have.
pub(super) fn fingerprint(scope: &str, labels: &ParsedSelector, fields: &ParsedSelector) -> u64 {
    let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
    (scope, labels, fields).hash(&mut hasher);
    hasher.finish()
}

/// FNV-1a: unlike the hash of the standard library, the same in every process.
struct Fnv(u64);

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use storage::Observers;
    use storage::engine::memory::MemoryStore;

    use super::*;

    fn key() -> TokenKey {
        TokenKey::new(&[7; KEY_BYTES])
    }

    #[test]
    fn continue_token_is_valid_only_for_its_list_and_store() {
        let (none, some) = (ParsedSelector::default(), ParsedSelector::Unparsable("x=y".to_owned()));
        let list_fingerprint = fingerprint("/core/configmaps/a/", &some, &none);
        for (revision, remaining) in [(7, Some(0)), (0, Some(3)), (u64::MAX, None)] {
            let token = Token { revision: Revision(revision), remaining, last_key: "settings".to_owned() };
            let text = token.encode(&key(), list_fingerprint);
            assert_eq!(Token::decode(&text, &key(), list_fingerprint), Ok(token));
            for other in [
                fingerprint("/core/configmaps/b/", &some, &none),
                fingerprint("/core/configmaps/a/", &none, &some),
            ] {
                assert_eq!(Token::decode(&text, &key(), other).unwrap_err().code, 400);
            }
            let other_key = TokenKey::new(&[8; KEY_BYTES]);
            assert_eq!(
                Token::decode(&text, &other_key, list_fingerprint).unwrap_err().code,
                400,
                "key of another store"
            );
        }
    }

    #[test]
    fn malformed_or_modified_continue_token_returns_400() {
        let list_fingerprint = fingerprint("s", &ParsedSelector::default(), &ParsedSelector::default());
        let token = Token { revision: Revision(3), remaining: Some(1), last_key: "a".to_owned() };
        let text = token.encode(&key(), list_fingerprint);
        let assert_rejected = |text: &str| {
            assert_eq!(Token::decode(text, &key(), list_fingerprint).unwrap_err().code, 400, "{text}");
        };
        for bad in ["", "zzz", "!!", "AAAA", &format!("{text}="), &format!("{text}AA")] {
            assert_rejected(bad);
        }
        let bytes = URL_SAFE_NO_PAD.decode(&text).unwrap();
        for index in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[index] ^= 1;
            assert_rejected(&URL_SAFE_NO_PAD.encode(&changed));
            assert_rejected(&URL_SAFE_NO_PAD.encode(&bytes[..index]));
        }
    }

    #[tokio::test]
    async fn continue_token_key_is_created_once_per_store() {
        let store = MemoryStore::new(Arc::new(Observers(Vec::new())));
        let first = TokenKey::load_or_create(&store).await.unwrap();
        let again = TokenKey::load_or_create(&store).await.unwrap();
        assert_eq!(first.mac(1, b"x"), again.mac(1, b"x"), "the key is created once");
        assert_eq!(format!("{first:?}"), "TokenKey");
        let other = MemoryStore::new(Arc::new(Observers(Vec::new())));
        other.commit(KEY_ROW, Op::Create(Bytes::from("short"))).await.unwrap();
        let error = TokenKey::load_or_create(&other).await.unwrap_err();
        assert!(matches!(error, Error::Corrupt(_)), "{error}");
    }
}
