//! Continue tokens: where the next chunk of a list begins, and of which version it is.
//!
//! # Contract
//!
//! A token is opaque to clients. It holds the version that the first chunk fixed, the place in the scope where the next
//! one begins, and a fingerprint of the scope and selectors it belongs to, so that a token of another list is refused
//! instead of giving a wrong chunk (requirements D-PAGE-12).
//!
//! A token gives no rights: what it leads to is read under the authorization of the request that brings it, within that
//! request's scope. So a forged one reaches nothing that `resourceVersionMatch=Exact` would not; what is not well-formed is 400.

use std::hash::{Hash, Hasher};

use apimachinery::attributes::ParsedSelector;
use apimachinery::status::Status;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use storage::Revision;

/// What a token says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    /// The version of the whole list.
    pub(super) revision: Revision,
    /// The last key delivered, without the scope's own.
    pub(super) after: String,
}

/// The first byte of every token: its form.
const FORM: u8 = 1;

impl Token {
    /// The text for `metadata.continue`.
    pub(super) fn encode(&self, fingerprint: u64) -> String {
        let mut bytes = vec![FORM];
        bytes.extend_from_slice(&fingerprint.to_be_bytes());
        bytes.extend_from_slice(&self.revision.0.to_be_bytes());
        bytes.extend_from_slice(self.after.as_bytes());
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Reads a token of the list with this fingerprint.
    ///
    /// # Errors
    ///
    /// 400: it is not one of ours, or of another list.
    pub(super) fn decode(text: &str, fingerprint: u64) -> Result<Self, Status> {
        Self::parse(text, fingerprint)
            .ok_or_else(|| Status::bad_request("continue key is not valid: it was not made by this list"))
    }

    fn parse(text: &str, fingerprint: u64) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (form, rest) = bytes.split_first()?;
        let (of, rest) = rest.split_first_chunk::<8>()?;
        let (revision, after) = rest.split_first_chunk::<8>()?;
        let after = std::str::from_utf8(after).ok()?;
        let revision = u64::from_be_bytes(*revision);
        let sound = *form == FORM && u64::from_be_bytes(*of) == fingerprint && revision > 0;
        // A place in the scope is `name` or `namespace/name`.
        let place = !after.is_empty() && !after.starts_with('/') && after.matches('/').count() <= 1;
        (sound && place).then(|| Token { revision: Revision(revision), after: after.to_owned() })
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
    use super::*;

    #[test]
    fn a_token_comes_back_only_in_its_own_list() {
        let (none, some) = (ParsedSelector::default(), ParsedSelector::Unparsable("x=y".to_owned()));
        let mine = fingerprint("/core/configmaps/a/", &some, &none);
        let token = Token { revision: Revision(7), after: "settings".to_owned() };
        let text = token.encode(mine);
        assert_eq!(Token::decode(&text, mine), Ok(token));
        for other in [
            fingerprint("/core/configmaps/b/", &some, &none),
            fingerprint("/core/configmaps/a/", &none, &some),
        ] {
            assert_eq!(Token::decode(&text, other).unwrap_err().code, 400);
        }
    }

    #[test]
    fn what_is_no_token_is_400() {
        let mine = fingerprint("s", &ParsedSelector::default(), &ParsedSelector::default());
        let with = |revision, after: &str| {
            Token { revision: Revision(revision), after: after.to_owned() }.encode(mine)
        };
        for bad in [
            "",
            "zzz",
            "!!",
            "AAAA",
            &with(0, "a"),
            &with(1, ""),
            &with(1, "/a"),
            &with(1, "a/b/c"),
            &format!("{}=", with(1, "a")),
        ] {
            assert_eq!(Token::decode(bad, mine).unwrap_err().code, 400, "{bad}");
        }
    }
}
