//! Encryption at rest against recorded values of kube-apiserver, a KMS plugin, and the contract of the store.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    unreachable_pub,
    reason = "a test fails by panicking, and the modules share their parts"
)]

mod configuration;
mod conformance;
mod environment;
mod kill;
mod kms;
mod store;
mod vectors;
