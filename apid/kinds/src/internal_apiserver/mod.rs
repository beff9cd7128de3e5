//! API group `internal.apiserver`: the encodings of stored objects.

use crate::Kind;

mod storage_version;

/// Kinds of the group, in discovery order.
pub(crate) const KINDS: &[Kind] = &[storage_version::KIND];
