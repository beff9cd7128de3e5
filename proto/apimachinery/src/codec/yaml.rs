//! YAML: the first document into a tree, and a tree into a block-style document.
//!
//! # Contract
//!
//! Scalars are read as YAML 1.1 readers of the Kubernetes tools read them (`y`, `on` and `No` are booleans, `010` is
//! eight, `1_000` a thousand); a date stays a string. Keys that are numbers or booleans become their text; null and
//! collections are no keys. `<<` merges mappings, and explicit keys win. A float without a fraction counts as an
//! integer, since the reference reads YAML by way of JSON. NaN and infinity are refused.
//!
//! What [`encode`] writes, [`decode`] reads back equal, and so do readers of YAML 1.1 and 1.2: whatever one of them
//! could take for something else is quoted.
//!
//! # Invariants
//!
//! INVARIANT (bounded): depth is limited after aliases are put in; all copies that anchors and aliases make together
//! weigh no more than the size limit, so that a few lines cannot grow into gigabytes. An alias inside its own anchor
//! is an error.
//!
//! # Reference
//!
//! `sigs.k8s.io/yaml` over `go-yaml` v2. Known difference: there an explicit key before `<<` loses against the merged
//! one, which contradicts the YAML specification.

mod lines;
mod read;
mod scalar;
mod write;

pub use lines::{Lines, lines};
pub use read::decode;
pub use write::{encode, encode_item};

#[cfg(test)]
#[path = "tests/yaml.rs"]
mod tests;
