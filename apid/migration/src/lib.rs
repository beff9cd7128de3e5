//! Migration from deprecated and removed API versions: conversion of manifests, and the search for uses of deprecated
//! versions.
//!
//! # Contract
//!
//! [`Converter::convert`] converts a manifest between API versions, including versions that are no longer served. The
//! result has the defaults of the version of the manifest, in the stored form of the target version. [`deprecations`] finds uses of deprecated and removed versions in metrics, audit logs and
//! manifests. [`documents`] splits files into manifests.
//!
//! # Invariants
//!
//! INVARIANT (no I/O): callers read files and print results.
//! INVARIANT (a removed version is one row): [`kinds::lifecycle`] lists each version, and a test requires that each removed
//! version with a replacement converts.

mod convert;
pub mod deprecations;
pub mod documents;
mod removed;
mod stored;

pub use convert::{Conversion, ConvertError, Converter};
pub use stored::upgrade_stored;
