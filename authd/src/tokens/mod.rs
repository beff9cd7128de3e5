//! Tokens as signed documents: JOSE form, keys, and service-account tokens.
//!
//! # Contract
//!
//! [`jose`] decodes a token and verifies its signature with a key of [`keys`] and an [`algorithm`]. [`claims`]
//! defines the claims of a service-account token. [`service_account`] issues one with a [`keyring`] and reads one
//! with a valid signature. No part checks whether the objects of a token still exist: `authn` reads the mirror.
//!
//! # Invariants
//!
//! INVARIANT (the key decides the algorithm): a signature is verified with an algorithm that fits the key;
//! the token only chooses among those. So a public key is never the secret of an HMAC, and `none` is not an
//! algorithm.
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
