//! The formats of tokens: JOSE and its keys, service-account tokens, and bootstrap tokens.
//!
//! # Contract
//!
//! [`jose`] decodes a token and verifies its signature with a key of [`keys`] and an [`algorithm`].
//! [`claims`] defines the claims of a service-account token. [`service_account`] issues such tokens with a
//! [`keyring`], and returns the claims of a token with a valid signature. No part checks whether the objects
//! that a token names still exist: `authn` reads the mirror.
//!
//! # Invariants
//!
//! INVARIANT (the key decides the algorithm): a signature is verified with an algorithm that fits the key;
//! the token only chooses among those. So a public key is never used as the secret of an HMAC, and a token
//! with the algorithm `none` is rejected.
//! INVARIANT (signature first): no claim is trusted before signature verification; only the issuer is read
//! before, to select the authenticator.

pub mod algorithm;
pub mod bootstrap;
pub mod claims;
pub mod jose;
pub mod jwk;
pub mod keyring;
pub mod keys;
pub mod service_account;

use aws_lc_rs::digest;

/// Returns the SHA-256 of bytes, in hexadecimal digits.
pub(crate) fn sha256_hex(bytes: &[u8]) -> String {
    digest::digest(&digest::SHA256, bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}
