//! Tokens as signed documents: the JOSE form, the keys, and the service-account tokens made of both.
//!
//! # Contract
//!
//! [`jose`] takes a token apart and checks its signature with a key of [`keys`]; [`claims`] says what a service-account
//! token claims, [`service_account`] issues one with a [`keyring`], and reads one whose signature holds. None of them knows whether the
//! objects that a token names still exist: that is `authn`'s to ask the mirror.
//!
//! # Invariants
//!
//! INVARIANT (the key decides the algorithm): a signature is checked with an algorithm that fits the key; what the token
//! says can only choose among those. So a public key is never the secret of an HMAC, and `none` is no algorithm.
//! INVARIANT (signature first): no claim is believed before the signature holds; the issuer alone is read before, to
//! find the method that the token concerns.

pub mod bootstrap;
pub mod claims;
pub mod jose;
pub mod jwk;
pub mod keyring;
pub mod keys;
pub mod service_account;
