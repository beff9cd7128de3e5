//! Encodings of the object tree: one file a format.
//!
//! # Contract
//!
//! Decoders take untrusted bytes: they limit size and depth, notice duplicate keys, and fail with a [`DecodeError`] that
//! says what was wrong and where. They never panic, and their memory is linear in the input's size.

pub mod cbor;
mod duplicates;
pub mod json;
pub mod yaml;

use serde_json::Value;

/// What a body may cost.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of input.
    pub bytes: usize,
    /// Nesting of objects and lists.
    pub depth: usize,
}

impl Limits {
    /// Request bodies: 3 MiB (requirements D-ERR-35), 100 levels.
    pub const BODY: Limits = Limits { bytes: 3 * 1024 * 1024, depth: 100 };
}

/// A decoded document.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded {
    /// The tree; of a duplicate key the last value.
    pub value: Value,
    /// The paths of keys that came more than once, in the order of the document: `metadata.labels.a`,
    /// `spec.containers[0].name`. Each path once; the first hundred.
    pub duplicates: Vec<String>,
}

/// Why bytes could not be decoded.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum DecodeError {
    /// The input has more bytes than allowed.
    #[error("the document is larger than {0} bytes")]
    TooLarge(usize),
    /// The nesting is deeper than allowed.
    #[error("the document is nested deeper than {0} levels")]
    TooDeep(usize),
    /// Not the format; the text says what and where.
    #[error("{0}")]
    Syntax(String),
}
