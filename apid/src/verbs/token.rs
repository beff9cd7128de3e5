//! Continue tokens: where the next chunk of a list begins, and of which version it is.
//!
//! # Contract
//!
//! A token is opaque to clients and sealed: it is refused (400) when a bit of it was changed, when another store made it,
//! and in a list of another scope or with other selectors (requirements D-PAGE-12). It holds the version that the first
//! chunk fixed, the place in the scope where the next one begins, and how many objects follow there. How long it leads
//! anywhere follows from the store's history; the key of the seal is in the store, so that tokens outlive a restart and are
//! good for every process on that store.
//!
//! A token gives no rights: what it leads to is read under the authorization of the request that brings it.

use std::fmt;
use std::hash::{Hash, Hasher};

use apimachinery::attributes::ParsedSelector;
use apimachinery::status::Status;
use aws_lc_rs::{constant_time, hmac, rand};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use storage::{Error, Op, Revision, Store};

/// The row of the store that holds the key. No kind has a prefix that it begins with.
const KEY_ROW: &str = "/apid/continue-key";

/// Bytes of the key.
const KEY_BYTES: usize = 32;

/// Bytes of the seal.
const SEAL: usize = 16;

/// The first byte of every token: its form.
const FORM: u8 = 2;

/// What seals tokens.
pub struct TokenKey(hmac::Key);

impl fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenKey")
    }
}

impl TokenKey {
    /// The key of a store, which is made when the store is new.
    ///
    /// # Errors
    ///
    /// Those of reads and commits.
    pub async fn of_store(store: &dyn Store) -> Result<Self, Error> {
        let row = match store.get(KEY_ROW, None).await? {
            Some(row) => row,
            None => {
                let mut made = [0; KEY_BYTES];
                rand::fill(&mut made).map_err(|_| Error::Unavailable("there is no randomness".to_owned()))?;
                let made = Bytes::copy_from_slice(&made);
                match store.commit(KEY_ROW, Op::Create(made.clone())).await {
                    Ok(_) => return Ok(TokenKey::new(&made)),
                    // Another process was quicker.
                    Err(Error::Exists(row)) => *row,
                    Err(error) => return Err(error),
                }
            }
        };
        match row.value.len() {
            KEY_BYTES => Ok(TokenKey::new(&row.value)),
            other => Err(Error::Corrupt(format!("the key of continue tokens has {other} bytes"))),
        }
    }

    fn new(bytes: &[u8]) -> Self {
        TokenKey(hmac::Key::new(hmac::HMAC_SHA256, bytes))
    }

    /// The seal of a token's content in a list.
    fn seal(&self, list: u64, content: &[u8]) -> [u8; SEAL] {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(&[FORM]);
        context.update(&list.to_be_bytes());
        context.update(content);
        let mut seal = [0; SEAL];
        for (to, from) in seal.iter_mut().zip(context.sign().as_ref()) {
            *to = *from;
        }
        seal
    }
}

/// What a token says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    /// The version of the whole list; 0: the newest there is, for who goes on after the list's own version is gone.
    pub(super) revision: Revision,
    /// Objects after the last one delivered, if they were counted.
    pub(super) remaining: Option<u64>,
    /// The last key delivered, without the scope's own.
    pub(super) after: String,
}

impl Token {
    /// The text for `metadata.continue` of a list with this fingerprint.
    pub(super) fn encode(&self, key: &TokenKey, list: u64) -> String {
        let mut content = Vec::with_capacity(16 + self.after.len());
        content.extend_from_slice(&self.revision.0.to_be_bytes());
        content.extend_from_slice(&self.remaining.map_or(0, |count| count.saturating_add(1)).to_be_bytes());
        content.extend_from_slice(self.after.as_bytes());
        let mut bytes = vec![FORM];
        bytes.extend_from_slice(&key.seal(list, &content));
        bytes.extend_from_slice(&content);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Reads a token of the list with this fingerprint.
    ///
    /// # Errors
    ///
    /// 400: it is not one of ours, was changed, or is of another list.
    pub(super) fn decode(text: &str, key: &TokenKey, list: u64) -> Result<Self, Status> {
        Self::parse(text, key, list)
            .ok_or_else(|| Status::bad_request("continue key is not valid: it was not made by this list"))
    }

    fn parse(text: &str, key: &TokenKey, list: u64) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (form, rest) = bytes.split_first()?;
        let (seal, content) = rest.split_first_chunk::<SEAL>()?;
        if *form != FORM || constant_time::verify_slices_are_equal(seal, &key.seal(list, content)).is_err() {
            return None;
        }
        let (revision, rest) = content.split_first_chunk::<8>()?;
        let (remaining, after) = rest.split_first_chunk::<8>()?;
        Some(Token {
            revision: Revision(u64::from_be_bytes(*revision)),
            remaining: u64::from_be_bytes(*remaining).checked_sub(1),
            after: std::str::from_utf8(after).ok()?.to_owned(),
        })
    }
}

/// A number that differs between lists of other scopes or selectors.
pub(super) fn fingerprint(scope: &str, labels: &ParsedSelector, fields: &ParsedSelector) -> u64 {
    let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
    (scope, labels, fields).hash(&mut hasher);
    hasher.finish()
}

/// FNV-1a: the same in every process, unlike the standard library's.
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
    fn a_token_comes_back_only_in_its_own_list() {
        let (none, some) = (ParsedSelector::default(), ParsedSelector::Unparsable("x=y".to_owned()));
        let mine = fingerprint("/core/configmaps/a/", &some, &none);
        for (revision, remaining) in [(7, Some(0)), (0, Some(3)), (u64::MAX, None)] {
            let token = Token { revision: Revision(revision), remaining, after: "settings".to_owned() };
            let text = token.encode(&key(), mine);
            assert_eq!(Token::decode(&text, &key(), mine), Ok(token));
            for other in [
                fingerprint("/core/configmaps/b/", &some, &none),
                fingerprint("/core/configmaps/a/", &none, &some),
            ] {
                assert_eq!(Token::decode(&text, &key(), other).unwrap_err().code, 400);
            }
            let others = TokenKey::new(&[8; KEY_BYTES]);
            assert_eq!(Token::decode(&text, &others, mine).unwrap_err().code, 400, "another store's");
        }
    }

    #[test]
    fn what_is_no_token_or_was_changed_is_400() {
        let mine = fingerprint("s", &ParsedSelector::default(), &ParsedSelector::default());
        let token = Token { revision: Revision(3), remaining: Some(1), after: "a".to_owned() };
        let text = token.encode(&key(), mine);
        let refused =
            |text: &str| assert_eq!(Token::decode(text, &key(), mine).unwrap_err().code, 400, "{text}");
        for bad in ["", "zzz", "!!", "AAAA", &format!("{text}="), &format!("{text}AA")] {
            refused(bad);
        }
        let bytes = URL_SAFE_NO_PAD.decode(&text).unwrap();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            refused(&URL_SAFE_NO_PAD.encode(&changed));
            refused(&URL_SAFE_NO_PAD.encode(&bytes[..at]));
        }
    }

    #[tokio::test]
    async fn the_key_is_that_of_the_store() {
        let store = MemoryStore::new(Arc::new(Observers(Vec::new())));
        let first = TokenKey::of_store(&store).await.unwrap();
        let again = TokenKey::of_store(&store).await.unwrap();
        assert_eq!(first.seal(1, b"x"), again.seal(1, b"x"), "made once");
        assert_eq!(format!("{first:?}"), "TokenKey");
        let other = MemoryStore::new(Arc::new(Observers(Vec::new())));
        other.commit(KEY_ROW, Op::Create(Bytes::from("short"))).await.unwrap();
        let error = TokenKey::of_store(&other).await.unwrap_err();
        assert!(matches!(error, Error::Corrupt(_)), "{error}");
    }
}
