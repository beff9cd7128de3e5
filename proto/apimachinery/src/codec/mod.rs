//! Encodings of the object tree: one file per format.
//!
//! # Contract
//!
//! Decoders accept untrusted bytes. They limit size and depth, report duplicate keys, and fail with a
//! [`DecodeError`] that names the problem and its position. They never panic. Their memory is linear in the
//! input size and limited by [`Limits::tree_bytes`].

mod budget;
pub mod cbor;
mod duplicates;
pub mod json;
pub mod key_order;
pub mod yaml;

pub use budget::{Budget, Cost};
use serde_json::Value;

/// Limits of a decoded document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of bytes of the input.
    pub bytes: usize,
    /// Maximum depth of nested objects and lists.
    pub depth: usize,
    /// Maximum number of values: every scalar, list and object counts one. Keys do not count.
    pub elements: usize,
    /// Maximum estimated memory of the tree with its defaults, in bytes: see [`Cost`].
    pub tree_bytes: usize,
}

impl Limits {
    /// Limits of request bodies: 3 MiB (requirement D-ERR-35), 100 levels, 400,000 values and 48 MiB of
    /// memory.
    ///
    /// The limits are a compromise between the largest objects in use and the memory of a request. A
    /// ConfigMap of 100,000 small keys that is sent back with its `managedFields` has 200,000 values and
    /// costs 39 MB. 10,000 addresses of an Endpoints object cost 24 MB, a CustomResourceDefinition of 1.5 MB
    /// about 20 MB. The example `body_cost` of apid prints CPU time and peak memory of the largest accepted
    /// bodies.
    pub const BODY: Limits =
        Limits { bytes: 3 * 1024 * 1024, depth: 100, elements: 400_000, tree_bytes: 48 << 20 };

    /// No limits, for trees that this process created.
    pub const NONE: Limits =
        Limits { bytes: usize::MAX, depth: usize::MAX, elements: usize::MAX, tree_bytes: usize::MAX };
}

/// Decoded document.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded {
    /// Tree; the last value of a duplicate key wins.
    pub value: Value,
    /// Paths of duplicate keys, in the order of the document: `metadata.labels.a`, `spec.containers[0].name`.
    ///
    /// Each path appears once. The list has at most 100 paths, fewer if their texts are long.
    pub duplicates: Vec<String>,
}

/// Error from decoding.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum DecodeError {
    /// The input has more bytes than the limit.
    #[error("the document is larger than {0} bytes")]
    TooLarge(usize),
    /// The nesting is deeper than the limit.
    #[error("the document is nested deeper than {0} levels")]
    TooDeep(usize),
    /// The tree has more values than [`Limits::elements`].
    #[error("the document has more than {0} values; split the object into several smaller ones")]
    TooManyElements(usize),
    /// The tree takes more memory than the limit.
    #[error("the document takes more than {0} bytes of memory; split the object into several smaller ones")]
    TreeTooLarge(usize),
    /// Invalid syntax; the text names the problem and its position.
    #[error("{0}")]
    Syntax(String),
}

impl DecodeError {
    /// Whether the document exceeds the decode budget: [`Limits::elements`] or [`Limits::tree_bytes`].
    pub fn exceeds_budget(&self) -> bool {
        matches!(self, DecodeError::TooManyElements(_) | DecodeError::TreeTooLarge(_))
    }
}
