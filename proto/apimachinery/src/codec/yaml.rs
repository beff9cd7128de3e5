//! YAML: decodes the first document into a tree, and encodes a tree in block style.
//!
//! # Contract
//!
//! Scalars are resolved as in the YAML 1.1 readers of the Kubernetes tools: `y`, `on` and `No` are booleans,
//! `010` is eight, `1_000` a thousand. A date stays a string. Number and boolean keys become text; null and
//! collections are invalid keys. `<<` merges mappings, and explicit keys win. A float without a fraction
//! becomes an integer, because kube-apiserver converts YAML to JSON first. NaN and infinity are rejected.
//!
//! [`decode`] and other readers of YAML 1.1 and 1.2 decode the output of [`encode`] to an equal value,
//! because ambiguous text is quoted.
//!
//! # Invariants
//!
//! INVARIANT (bounded): the depth limit applies after alias expansion. The total weight of the copies for
//! anchors and aliases is at most [`Limits::bytes`](crate::codec::Limits::bytes), so that a few lines cannot
//! grow into gigabytes. An alias inside its own anchor is an error.
//!
//! # Reference
//!
//! `sigs.k8s.io/yaml` over `go-yaml` v2. Known difference: in kube-apiserver an explicit key before `<<` loses
//! against the merged key, which contradicts the YAML specification.

mod duplicate_keys;
mod lines;
mod read;
mod scalar;
mod write;

pub use duplicate_keys::duplicate_keys;
pub use lines::{Lines, lines};
pub use read::decode;
pub use write::{encode, encode_item};

#[cfg(test)]
#[path = "tests/yaml.rs"]
mod tests;
