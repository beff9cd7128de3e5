//! Encryption at rest against recorded values of kube-apiserver, a KMS plugin, and the contract of the store.

mod configuration;
mod conformance;
mod environment;
mod kill;
mod kms;
mod store;
mod vectors;
